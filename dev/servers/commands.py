"""The command line of the services: words to calls, servers to lines."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dev.downloads import REPOSITORY
from dev.servers.process import Process
from dev.servers.server import Options, Server, ServiceError

if TYPE_CHECKING:
    from dev.services import Services


def main(services: "type[Services]", words: list[str] | None = None) -> int:
    """Run one command: 0 it worked, 1 it did not, 2 wrong use."""
    wanted = _parser().parse_args(words)
    try:
        return _run(services, wanted)
    except ServiceError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted: `down` ends what was started.", file=sys.stderr)
        return 130


def _run(services: "type[Services]", wanted: argparse.Namespace) -> int:
    if wanted.command == "watch":
        owner = Process(pid=wanted.owner_pid, started=wanted.owner_started)
        services(wanted.home).take_down_after(owner)
    elif wanted.command == "down":
        services(wanted.home).down(*wanted.names, remove=wanted.remove)
    elif wanted.command == "status":
        _show(services(wanted.home).status(), as_json=wanted.json)
    else:
        running = services(wanted.home, wanted.owner_pid).up(
            *wanted.names,
            workers=wanted.workers,
            master=wanted.master,
            driver_memory=wanted.driver_memory,
            spark_conf=dict(wanted.conf),
            jars=tuple(wanted.jars),
            fsync=wanted.fsync,
        )
        _show(running, as_json=wanted.json)
    return 0


def _show(servers: dict[str, Server], *, as_json: bool) -> None:
    """Print the servers; passwords only as JSON, which programs read."""
    if as_json:
        print(json.dumps({name: dataclasses.asdict(one) for name, one in servers.items()}, default=str, indent=1))
        return
    for name, one in servers.items():
        state = f"pid {one.pid}" if one.running else "not running"
        page = f", page {one.ui_url}" if one.ui_port else ""
        print(f"{name:16} {one.host}:{one.port}  {state}{page}  {one.log}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.services", description="Real servers on loopback.")
    commands = parser.add_subparsers(dest="command", required=True)
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument("--home", type=Path, default=REPOSITORY / ".services", help="folder of data, logs and state")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="everything, with passwords, for programs")
    defaults = Options()

    up = commands.add_parser("up", parents=[home, as_json], help="start what does not run yet")
    up.add_argument("names", nargs="*", default=["postgres", "connect"], metavar="NAME", help="postgres, postgres:sink")
    up.add_argument("--owner-pid", type=int, help="end everything when this process ends")
    up.add_argument("--workers", type=int, default=defaults.workers, help="of the standalone master")
    up.add_argument("--master", default=defaults.master, help="of the Connect server: `standalone` or as Spark has it")
    up.add_argument("--driver-memory", default=defaults.driver_memory, help="of the Connect server")
    up.add_argument(
        "--conf", action="append", default=[], type=_pair, metavar="NAME=VALUE", help="of the Connect server"
    )
    up.add_argument("--jars", nargs="*", default=list(defaults.jars), help="postgres, mysql, kafka, or paths")
    up.add_argument("--fsync", action="store_true", help="let PostgreSQL survive a crash of the machine")

    down = commands.add_parser("down", parents=[home], help="end servers; all of them if none is named")
    down.add_argument("names", nargs="*", metavar="NAME")
    down.add_argument("--remove", action="store_true", help="delete data and logs too")

    commands.add_parser("status", parents=[home, as_json], help="say what there is")

    watch = commands.add_parser("watch", parents=[home])
    watch.add_argument("--owner-pid", type=int, required=True)
    watch.add_argument("--owner-started", type=int, required=True)
    return parser
