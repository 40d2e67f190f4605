"""What a home folder remembers of its servers, and how their processes are found from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dev.servers import postgres, process
from dev.servers.process import Process
from dev.servers.server import HOST, Options, Server

WATCHER = "watcher-"


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of one home. A process is known by its mark too, which it has from its first instruction on."""

    home: Path

    def folder(self, name: str) -> Path:
        """Return where a server keeps everything."""
        return self.home / name.replace(":", "-")

    def mark(self, name: str) -> str:
        """Return the mark of a server's processes."""
        return f"{self.home}#{name}"

    def names(self) -> set[str]:
        """Return the names of all servers: from folders, and from processes whose folder is gone."""
        states = (_read(file) for file in self.home.glob("*/server.json"))
        return {state["name"] for state in states if state} | self.marked()

    def marked(self) -> set[str]:
        """Return the names of servers that have a living, marked process."""
        every = (mark.removeprefix(self.mark("")) for mark, _ in process.marked() if mark.startswith(self.mark("")))
        return {name for name in every if not name.startswith(WATCHER)}

    def watchers(self) -> dict[str, Process]:
        """Return the watchers by what they watch."""
        prefix = self.mark(WATCHER)
        return {mark.removeprefix(prefix): one for mark, one in process.marked() if mark.startswith(prefix)}

    def state(self, name: str) -> dict[str, Any]:
        """Return what was written; empty for a server that never was."""
        return _read(self.folder(name) / "server.json")

    def write(self, name: str, state: Mapping[str, Any]) -> None:
        """Write it whole or not at all, for the owner's eyes: it holds a password."""
        fresh = self.folder(name) / "server.json.new"
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps({**state, "name": name}, indent=1, default=dict))
        fresh.replace(self.folder(name) / "server.json")

    def options(self, name: str) -> Options:
        """Return the options a server was started with; those of an older version may be fewer or more."""
        names = {field.name for field in fields(Options)}
        kept = {option: value for option, value in self.state(name)["options"].items() if option in names}
        return Options(**{**kept, "jars": tuple(kept["jars"])})

    def ports(self, name: str) -> dict[str, int]:
        """Return the ports a server had."""
        return dict(self.state(name).get("ports", {}))

    def server(self, name: str) -> Server | None:
        """Return a server as it is now."""
        state, main = self.state(name), self.main(name)
        if not state.get("ports"):
            return None
        return Server(
            name=name,
            kind=name.partition(":")[0],
            host=HOST,
            port=state["ports"]["port"],
            ui_port=state["ports"].get("ui_port"),
            login_port=state["ports"].get("login_port"),
            pid=main.pid if main else None,
            log=self.folder(name) / "server.log",
            url=state["url"],
            user=state["user"],
            password=state["password"],
        )

    def main(self, name: str) -> Process | None:
        """Return the recorded process if it lives."""
        state = self.state(name)
        if "pid" not in state:
            return None
        main = Process(pid=state["pid"], started=state["started"])
        return main if main.alive else None

    def processes(self, name: str) -> list[Process]:
        """Return all living processes of a server: by record, by mark, and PostgreSQL's by where they work."""
        found = [main] if (main := self.main(name)) else []
        found += [one for mark, one in process.marked() if mark == self.mark(name)]
        if name.startswith("postgres"):
            found += process.working_in(postgres.data_folder(self.home, self.folder(name)), "postgres")
        return list(dict.fromkeys(found))


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
