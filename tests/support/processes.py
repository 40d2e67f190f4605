"""What processes show of themselves while a test is at work: command lines and environments, looked at all the time."""

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kept import stands_in
from tests.support.waiting import beside

PERIOD = 0.05
"""Seconds between two looks. What starts and ends between them is not seen."""
COMMAND, ENVIRONMENT = "cmdline", "environ"


@dataclass(kw_only=True)
class Processes:
    """Looks at all command lines, and at the environments of this process and of those that it started.

    Everybody on a machine may read command lines: a secret there is a leak, were it for a moment only. Environments are
    read by the same account and root alone, who could as well read the memory; but each child inherits them, and crash
    reports and `ps e` print them, so none of ours may have a secret either. What this process may not look at is left
    out: unless it is root's, environments of other accounts' servers and of Airflow's tasks.
    """

    looks: int = 0
    seen: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    """In how many looks there was a command line or an environment, by its kind and text."""
    _programs: dict[tuple[str, bytes], str] = field(default_factory=dict)
    """Whose it was at first sight."""
    _family: set[int] = field(default_factory=set)
    _sessions: set[int] = field(default_factory=set)
    """Those that family members lead or led: by them one is found whose parent has ended."""

    @contextmanager
    def looking(self) -> Iterator["Processes"]:
        """Look until the block is left, and once more then."""
        with beside(self._look_on):
            yield self

    def commands(self, word: str) -> int:
        """Return in how many looks there was a command line with a word, each of several counted by itself."""
        return sum(times for (kind, text), times in self.seen.items() if kind == COMMAND and word.encode() in text)

    def leaks(self, secrets: Mapping[str, str]) -> dict[str, set[str]]:
        """Return the names of those secrets that were seen, by where."""
        found: dict[str, set[str]] = {}
        for each in self.seen:
            if names := {name for name, secret in secrets.items() if stands_in(secret, each[1])}:
                found.setdefault(f"{each[0]} of {self._programs[each]}", set()).update(names)
        return found

    def _look_on(self, over: threading.Event) -> None:
        while not over.wait(PERIOD):
            self._look()
        self._look()

    def _look(self) -> None:
        pids = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
        self._meet(pids)
        shown = {(COMMAND, _read(pid, COMMAND)): pid for pid in pids}
        shown |= {(ENVIRONMENT, _read(pid, ENVIRONMENT)): pid for pid in self._family}
        for each, pid in shown.items():
            if each[1] and each not in self._programs:
                self._programs[each] = _read(pid, "comm").decode(errors="replace").strip()
        self.seen.update(each for each in shown if each[1])
        self.looks += 1

    def _meet(self, pids: set[int]) -> None:
        """Take those into the family that have come, and those out of it that have gone."""
        self._family &= pids
        for pid in sorted(pids - self._family):
            parent, session = _origin(pid)
            if pid == os.getpid() or parent in self._family or session in self._sessions:
                self._family.add(pid)
                # This process's own may be shared with whatever has started it.
                self._sessions |= {session} - {os.getsid(0), 0}


def _origin(pid: int) -> tuple[int, int]:
    """Return parent and session; zeros where it has gone."""
    # The name in parentheses may hold anything.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[1]), int(fields[3])) if fields else (0, 0)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
