"""Starts, ends and reports real servers on loopback, without Docker and without root.

`python -m dev.services up postgres connect`, `status`, `down`; in Python `Services(home).up("postgres", "connect")`.
A second server of a kind has a name after a colon: `postgres:sink`.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import signal as signals
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dev.downloads import DownloadError, Downloads, default_folder, locked
from dev.servers import account, commands, ports, process, spark, watcher
from dev.servers.connect import Connect
from dev.servers.kafka import Kafka
from dev.servers.mysql import Mariadb, Mysql
from dev.servers.postgres import Postgres, data_folder
from dev.servers.process import Process, until
from dev.servers.records import Records
from dev.servers.registry import Registry
from dev.servers.server import Kind, Options, Place, Server, ServiceError
from dev.servers.standalone import Master, Worker

__all__ = ["Server", "ServiceError", "Services", "temporary_services"]

KINDS: dict[str, Kind] = {
    "postgres": Postgres(),
    "kafka": Kafka(),
    "mysql": Mysql(),
    "mariadb": Mariadb(),
    "registry": Registry(),
    "connect": Connect(),
    "standalone": Master(),
    "worker": Worker(),
}
GUESTS = "guests"
NAME = re.compile(r"([a-z]+)(:[a-z0-9_-]+)?")
WHOLE = (signals.SIGKILL, signals.SIGSTOP, signals.SIGCONT)


class Services:
    """The servers of one home folder. Any number of processes may look after the same home."""

    def __init__(self, home: Path, owner_pid: int | None = None) -> None:
        """With an owner, everything ends when that process does; without, it runs until `down`."""
        self.home = Path(home).resolve()
        self.owner = None if owner_pid is None else Process.of(owner_pid)
        if owner_pid is not None and self.owner is None:
            raise ServiceError(f"There is no process {owner_pid} to own the servers.")
        self._records = Records(home=self.home)
        self._interrupted = threading.Event()

    def up(self, *names: str, **options: Any) -> dict[str, Server]:
        """Start what does not run yet, wait until all of it answers, and return it by name; options as in `Options`."""
        chosen = Options(**options)
        if unknown := set(chosen.settings) - set(KINDS):
            raise ServiceError(f"Settings go by kind, and there is no {', '.join(sorted(unknown))}.")
        stages = _stages(names, chosen)
        self.home.mkdir(parents=True, exist_ok=True)
        self._interrupted.clear()
        if self.owner:
            with locked(self.home / ".lock"):
                watcher.ensure(self._records, self.owner)
        found: dict[str, Server] = {}
        for stage in stages:
            found |= self._all(stage, lambda name: self._start(name, chosen))
        return found

    def down(self, *names: str, remove: bool = False) -> None:
        """End these servers, or all and the watcher; `remove` deletes their data and logs too.

        Data that had to be put outside of the home is deleted with the last server of a home that has an owner.
        """
        known = self._records.names()
        with_workers = [name for name in known if name.startswith("worker:")] if "standalone" in names else []
        if not names:
            _killed(GUESTS, lambda: process.working_below(self.home / GUESTS))
        self._all([*names, *with_workers] if names else known, lambda name: self._end(name, remove=remove))
        if not self._records.marked():
            owned = bool(self.owner or self._records.watchers())
            watcher.end(self._records)
            if not names and (owned or remove):
                account.remove_outside(self.home)

    def guest(self, name: str) -> Path:
        """Return a folder for something else: what works in it or below it ends with the servers."""
        return self.home / GUESTS / name

    def status(self) -> dict[str, Server]:
        """Return every server of this home, running or not."""
        known = {name: self._records.server(name) for name in sorted(self._records.names())}
        return {name: server for name, server in known.items() if server}

    def restart(self, name: str) -> Server:
        """End a server if it runs, and start it with its port, data and options."""
        if not self._records.state(name):
            raise ServiceError(f"There is no server {name} in {self.home}: start it with `up {name}`.")
        self._end(name)
        return self._start(name, self._records.options(name))

    def kill(self, name: str, signal: int = signals.SIGKILL) -> None:
        """Send a signal: SIGKILL (and wait), SIGSTOP, SIGCONT to all of its processes, another to the main one."""
        main = self._records.main(name)
        targets = self._records.processes(name) if signal in WHOLE else [main] if main else []
        if not targets:
            raise ServiceError(f"The server {name} does not run.")
        for target in targets:
            target.send(signal)
        if signal == signals.SIGKILL:
            self._kill_all(name)

    def take_down_after(self, owner: Process) -> None:
        """Wait for the owner's end, then end everything; this is what the watcher does."""
        watcher.wait_for_end(owner)
        while self._records.marked():
            with contextlib.suppress(ServiceError):  # something does not end yet; there is nobody to report it to
                self.down()
        # One more look: the starter may have been killed between a spawn and its look at the owner.
        time.sleep(1.0)
        self.down()
        account.remove_outside(self.home)

    def _start(self, name: str, options: Options) -> Server:
        folder = self._records.folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        mark = self._records.mark(name)
        downloads = Downloads(folder=default_folder(), mark=mark)
        place = Place(name=name, folder=folder, home=self.home, downloads=downloads, mark=mark)
        with locked(folder / ".lock"):
            if server := self._reused(name, options):
                return server
            former = self._records.ports(name)
            for _ in range(3):
                self._kill_all(name)
                try:
                    return self._spawn(place, options, former)
                except (DownloadError, OSError) as error:
                    raise ServiceError(f"The server {name} could not be started: {error}") from error
                except ServiceError as error:
                    self._kill_all(name)
                    # A port can be taken between the look and the bind.
                    if not re.search("Address already in use|BindException", str(error)):
                        raise
                    former, failure = {}, error
        raise failure

    def _reused(self, name: str, options: Options) -> Server | None:
        server = self._records.server(name)
        if server is None or not server.running:
            return None
        kind = KINDS[server.kind]
        running, wanted = kind.chosen(self._records.options(name)), kind.chosen(options)
        if different := [key for key in wanted if wanted[key] != running[key]]:
            raise ServiceError(f"The server {name} runs with another {' and '.join(different)}: `down {name}` first.")
        self._await(server, server.log.stat().st_size)
        return server

    def _spawn(self, place: Place, options: Options, former: dict[str, int]) -> Server:
        name, log_start = place.name, place.log.stat().st_size if place.log.exists() else 0
        kind = KINDS[_kind(name)]
        chosen = ports.choose(kind.ports, former)
        launch = kind.prepare(place, self._resolved(name, options), chosen)
        state = {
            "ports": chosen,
            "options": dataclasses.asdict(options),
            "url": launch.url,
            "user": launch.login,
            "password": launch.password,
        }
        self._records.write(name, state)
        main = process.spawn(
            launch.command,
            mark=place.mark,
            cwd=launch.cwd,
            log=place.log,
            environment={**spark.cleaned(), **launch.environment},
            user=launch.user,
        )
        self._records.write(name, {**state, "pid": main.pid, "started": main.started})
        if self.owner and not self.owner.alive:
            raise ServiceError(f"The owner of {self.home} is gone.")
        server = self._records.server(name)
        assert server is not None
        self._await(server, log_start)
        return server

    def _resolved(self, name: str, options: Options) -> Options:
        """Put the address of our own master for its name."""
        kind = _kind(name)
        if kind != "worker" and (kind != "connect" or options.master != "standalone"):
            return options
        master = self._records.server("standalone")
        if master is None or not master.running:
            raise ServiceError("The standalone master does not run: `up standalone` first.")
        return dataclasses.replace(options, master=master.url)

    def _await(self, server: Server, log_start: int) -> None:
        """Wait until it answers, it has ended, or its time is up."""
        kind = KINDS[server.kind]
        ready = False

        def settled() -> bool:
            nonlocal ready
            main = self._records.main(server.name)
            ready = main is not None and kind.answers(server)
            return ready or main is None or self._interrupted.is_set()

        in_time = until(settled, timeout=kind.deadline)
        if not ready:
            what = "ended while it started" if in_time else f"did not answer within {kind.deadline:.0f} s"
            raise ServiceError(
                f"The server {server.name} {what}; the end of {server.log}:\n{_tail(server.log, log_start)}"
            )

    def _end(self, name: str, *, remove: bool = False) -> None:
        kind = KINDS[_kind(name)]
        if main := self._records.main(name):
            main.send(kind.stop_signal)
            main.send(signals.SIGCONT)  # a stopped process hears nothing else
            main.wait(kind.patience)
        self._kill_all(name)
        if remove:
            folder = self._records.folder(name)
            shutil.rmtree(data_folder(self.home, folder), ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)

    def _kill_all(self, name: str) -> None:
        """Kill until no process of a server is left, also what appears meanwhile."""
        _killed(name, lambda: self._records.processes(name))

    def _all(self, names: Iterable[str], act: Callable[[str], Any]) -> dict[str, Any]:
        """Do it to all of them at once; the first failure is raised when all are done."""
        names = list(dict.fromkeys(names))
        if not names:
            return {}
        with ThreadPoolExecutor(len(names)) as pool:
            try:
                futures = {name: pool.submit(act, name) for name in names}
                return {name: future.result() for name, future in futures.items()}
            except KeyboardInterrupt:
                self._interrupted.set()
                raise


def _killed(name: str, find: Callable[[], Iterable[Process]]) -> None:
    if left := process.kill_all(find):
        raise ServiceError(f"Processes of {name} do not end: {[one.pid for one in left]}.")


def _kind(name: str) -> str:
    match = NAME.fullmatch(name)
    if not match or match.group(1) not in KINDS:
        raise ServiceError(f"There is no server {name!r}: there are {', '.join(KINDS)}.")
    return match.group(1)


@contextlib.contextmanager
def temporary_services() -> Iterator[Services]:
    """Give servers that end with this block, or with this process, and leave no data."""
    with tempfile.TemporaryDirectory(prefix="backpressure-services-") as folder:
        services = Services(Path(folder), owner_pid=os.getpid())
        try:
            yield services
        finally:
            services.down(remove=True)


def _stages(names: Iterable[str], options: Options) -> list[list[str]]:
    """Return what can start at once, stage by stage: a master comes before its workers and its Connect server."""
    first = list(dict.fromkeys(names))
    kinds = {name: _kind(name) for name in first}
    on_master = [name for name in first if kinds[name] == "connect"] if options.master == "standalone" else []
    if on_master and "standalone" not in first:
        first.append("standalone")
    if "standalone" not in first:
        return [first]
    second = [*(f"worker:{number}" for number in range(1, options.workers + 1)), *on_master]
    return [[name for name in first if name not in second], second]


def _tail(log: Path, start: int = 0) -> str:
    """Return the last 20 lines; Java's stack frames would hide what they belong to."""
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines() if log.exists() else []
    return "\n".join([line for line in lines if not line.startswith(("\tat ", "\t... "))][-20:])


if __name__ == "__main__":
    sys.exit(commands.main(Services))
