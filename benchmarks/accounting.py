"""What trees of processes take while a block runs: CPU seconds, those of ended children included, and memory.

A child's times are with its parent once it has been waited for. A parent that ignores SIGCHLD, as the daemon of
Spark's Python workers does, never gets them: such a child is counted by the last look at it, at most :data:`LOOK`
before its end.

Memory is what is resident, with each page that several processes share divided among them, as the kernel reports it
(PSS): otherwise workers that were forked from one daemon would count their shared pages once for each.
"""

import os
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
LOOK = 0.5
"""Seconds between two looks at all processes."""
SIGCHLD_BIT = 1 << 16
Key = tuple[int, str]
"""A pid and when its process started, in ticks after boot: the two together are never recycled."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process as the kernel counts it; a zombie too, until its parent takes its times over."""

    key: Key
    parent: int
    ticks: int
    """Its own CPU time and that of all its children which were waited for."""
    resident_bytes: int


class Tree:
    """A process and all its descendants, from the first look on. ``weighed``: whether their memory is looked at."""

    def __init__(self, root: int, *, weighed: bool = True) -> None:
        self._root = root
        self._weighed = weighed
        self._lost: dict[Key, int] = {}
        self._last: dict[Key, tuple[Process, bool]] = {}
        self._first_ticks = 0
        self._ticks = 0
        self.bytes = 0
        """Resident memory of all together at the last look."""
        self.peak_bytes = 0
        """Most of it at any look."""

    @property
    def keys(self) -> frozenset[Key]:
        """Who was there at the last look."""
        return frozenset(self._last)

    @property
    def cpu_seconds(self) -> float:
        """User and system time between :meth:`begin` and the last look."""
        return (self._ticks - self._first_ticks) / TICK

    def begin(self) -> None:
        """Count from the last look on."""
        self._first_ticks = self._ticks

    def look(self, every: Mapping[int, Process]) -> None:
        """Take the figures of this moment."""
        found = {process.key: process for process in descendants(every, self._root)}
        for key, (process, ignored) in self._last.items():
            if ignored and key not in found:
                self._lost[key] = process.ticks
        ignoring = {pid for pid in {process.parent for process in found.values()} if _ignores_children(pid)}
        self._last = {key: (process, process.parent in ignoring) for key, process in found.items()}
        self._ticks = sum(process.ticks for process in found.values()) + sum(self._lost.values())
        self.bytes = sum(map(held_bytes, found.values())) if self._weighed else 0
        self.peak_bytes = max(self.peak_bytes, self.bytes)


class Accounts:
    """Wall time, and CPU time and memory of several trees by name, while the block runs."""

    def __init__(self, roots: Mapping[str, int], *, own: Collection[str] = (), apart: Collection[str] = ()) -> None:
        """``own``: names of the trees whose memory is looked at, and as one: a side's own processes, not its servers.

        Without any, that of each tree is. A look at memory has its price, and a database's server has many processes.
        ``apart``: names of trees within the own ones that do not count.
        """
        self.seconds = 0.0
        self.peak_bytes = 0
        """Most resident memory of the ``own`` ones together at any look."""
        self._own, self._apart = own, apart
        self.trees = {name: Tree(pid, weighed=not own or name in {*own, *apart}) for name, pid in roots.items()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Accounts":
        """Begin. A process that ends within the first look may be in it twice, so the last one counts."""
        self._look_twice()
        for tree in self.trees.values():
            tree.begin()
        self._thread.start()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self.seconds = time.perf_counter() - self._began
        self._over.set()
        self._thread.join()
        self._look_twice()

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            self._look()

    def _look_twice(self) -> None:
        """Look until two looks find the same: one that ended within a look is missed by it, or counted twice."""
        self._look()
        before: dict[str, frozenset[Key]] = {}
        while before != (before := {name: tree.keys for name, tree in self.trees.items()}):
            self._look()

    def _look(self) -> None:
        every = processes()
        for tree in self.trees.values():
            tree.look(every)
        own, apart = (sum(self.trees[name].bytes for name in names) for names in (self._own, self._apart))
        self.peak_bytes = max(self.peak_bytes, own - apart)


def processes() -> dict[int, Process]:
    """Return all processes by pid."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {process.key[0]: process for process in map(_read, pids) if process}


def descendants(every: Mapping[int, Process], root: int) -> list[Process]:
    """Return a process and all that came of it."""
    children: dict[int, list[int]] = {}
    for process in every.values():
        children.setdefault(process.parent, []).append(process.key[0])
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid in every:
            found.append(every[pid])
            waiting += children.get(pid, [])
    return found


def resident_bytes(root: int) -> int:
    """Return the resident memory of a process and all that came of it, now; pages that they share count once."""
    return sum(map(held_bytes, descendants(processes(), root)))


def held_bytes(process: Process, kind: str = "Pss") -> int:
    """Return a process's part of resident memory; where the kernel does not report it, all that is resident.

    ``kind``: a line of ``smaps_rollup``. ``Pss_Anon`` leaves out the pages of files, such as libraries: its part of
    those grows when others that have them too end.
    """
    try:
        lines = Path(f"/proc/{process.key[0]}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))
    except PermissionError:
        return process.resident_bytes
    except (OSError, StopIteration):
        return 0  # It is gone, or a zombie.


def _read(pid: int) -> Process | None:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return Process(
            key=(pid, fields[19]),
            parent=int(fields[1]),
            ticks=sum(map(int, fields[11:15])),
            resident_bytes=int(fields[21]) * PAGE,
        )
    return None


def _ignores_children(pid: int) -> bool:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) & SIGCHLD_BIT)
    return False
