"""A Spark standalone master and its workers, each of them a server of its own."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from dev.servers import spark
from dev.servers.server import HOST, Kind, Launch, Options, Place, Server


class Master(Kind):
    """The master; a Connect server or a submitted job names its `url`."""

    ports = ("port", "ui_port")
    stop_signal = signal.SIGTERM
    patience = 8.0
    deadline = 120.0

    def chosen(self, options: Options) -> dict[str, Any]:
        """Nothing: workers are servers of their own."""
        return {}

    def prepare(self, place: Place, options: Options, ports: Mapping[str, int]) -> Launch:
        """Say how to start it."""
        return Launch(
            command=_command(place, "master.Master", ports),
            cwd=place.folder,
            environment=_environment(place),
            url=f"spark://{HOST}:{ports['port']}",
        )

    def answers(self, server: Server) -> bool:
        """Whether it calls itself alive."""
        return bool(_state(server).get("status") == "ALIVE")


class Worker(Kind):
    """One worker; its executors end with it."""

    ports = ("port", "ui_port")
    stop_signal = signal.SIGTERM
    patience = 8.0
    deadline = 120.0

    def chosen(self, options: Options) -> dict[str, Any]:
        """Its size and place."""
        return {name: getattr(options, name) for name in ("worker_cores", "worker_memory", "apart")}

    def prepare(self, place: Place, options: Options, ports: Mapping[str, int]) -> Launch:
        """Say how to start it; `options.master` is the master's address."""
        work = place.folder / "work"
        work.mkdir(parents=True, exist_ok=True)
        size = ["--cores", str(options.worker_cores), "--memory", options.worker_memory, "--work-dir", str(work)]
        # The last --host counts.
        host = ["--host", f"127.0.0.{place.name.partition(':')[2]}"] if options.apart else []
        return Launch(
            command=[*_command(place, "worker.Worker", ports), *host, *size, options.master],
            cwd=place.folder,
            environment=_environment(place),
            url=f"http://{HOST}:{ports['ui_port']}",
        )

    def answers(self, server: Server) -> bool:
        """Whether a master has taken it on."""
        return bool(_state(server).get("masterurl"))


def _command(place: Place, name: str, ports: Mapping[str, int]) -> list[str]:
    properties = place.folder / "spark.conf"
    spark.write_properties(properties, {"spark.redaction.string.regex": spark.SECRETS})
    listening = ["--host", HOST, "--port", str(ports["port"]), "--webui-port", str(ports["ui_port"])]
    program = [str(spark.home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    return [*program, *listening, "--properties-file", str(properties)]


def _environment(place: Place) -> dict[str, str]:
    scratch = place.folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    return {**spark.environment(), **small, "SPARK_LOCAL_DIRS": str(scratch)}


def _state(server: Server) -> dict[str, Any]:
    """Return what the page says of itself; empty while it does not answer."""
    try:
        with urllib.request.urlopen(f"{server.ui_url}/json/", timeout=2.0) as answer:
            return dict(json.loads(answer.read()))
    except (OSError, ValueError, urllib.error.URLError):
        return {}
