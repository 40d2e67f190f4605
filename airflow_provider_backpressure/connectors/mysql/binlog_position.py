"""The position of a server's binlog: the transactions that it holds, and the place in its files after them."""

import re
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_backpressure.core.clock import Clock, PollPolicy, SystemClock
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.exceptions import SourceRefused

Intervals = tuple[tuple[int, int], ...]
"""Half-open, in order, with gaps between them."""
_SOURCE = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class GtidSet:
    """Transactions by the server that made them. Raises ``SourceRefused`` for text that is none."""

    sources: Mapping[str, Intervals]

    @classmethod
    def parse(cls, text: str) -> "GtidSet":
        """Read what MySQL prints: ``uuid:1-5:7,uuid:1``."""
        found: dict[str, list[tuple[int, int]]] = {}
        for part in "".join(text.split()).lower().split(","):
            if part:
                name, *intervals = part.split(":")
                found.setdefault(_source(name, part), []).extend(_interval(each, part) for each in intervals)
        return cls({name: _join(found[name]) for name in sorted(found)})

    def __str__(self) -> str:
        """Return it as MySQL prints it."""
        return ",".join(
            ":".join((name, *(f"{start}-{end - 1}" if end - start > 1 else str(start) for start, end in intervals)))
            for name, intervals in self.sources.items()
        )

    @property
    def count(self) -> int:
        """Number of transactions."""
        return sum(end - start for intervals in self.sources.values() for start, end in intervals)

    def has(self, source: str, number: int) -> bool:
        """Whether a transaction is among them."""
        return any(start <= number < end for start, end in self.sources.get(source, ()))

    def union(self, other: "GtidSet") -> "GtidSet":
        """Return the transactions of both."""
        names = sorted({*self.sources, *other.sources})
        return GtidSet({name: _join([*self.sources.get(name, ()), *other.sources.get(name, ())]) for name in names})

    def minus(self, other: "GtidSet") -> "GtidSet":
        """Return the transactions that the other has not."""
        left = {name: _without(mine, other.sources.get(name, ())) for name, mine in self.sources.items()}
        return GtidSet({name: intervals for name, intervals in left.items() if intervals})

    def within(self, other: "GtidSet") -> bool:
        """Whether the other has all of them."""
        return not self.minus(other).sources

    def pieces(self, size: int) -> Iterator["GtidSet"]:
        """Yield sets of so many transactions at most that together are this one, each source's in its order."""
        for name, intervals in self.sources.items():
            for start, end in intervals:
                for first in range(start, end, size):
                    yield GtidSet({name: ((first, min(first + size, end)),)})

    def encode(self) -> bytes:
        """Return it as the server's protocol has it."""
        parts = [struct.pack("<Q", len(self.sources))]
        for name, intervals in self.sources.items():
            parts += [uuid.UUID(name).bytes, struct.pack("<Q", len(intervals))]
            parts += [struct.pack("<QQ", start, end) for start, end in intervals]
        return b"".join(parts)


def _source(name: str, part: str) -> str:
    if _SOURCE.fullmatch(name) is None:
        raise SourceRefused(f"{part!r} is no set of transactions as MySQL prints one.")
    return name


def _interval(text: str, part: str) -> tuple[int, int]:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise SourceRefused(
            f"The transactions {part!r} have a tag, or are not what MySQL prints: catch_up knows no tagged GTIDs."
        )
    first, last = match.groups()
    return int(first), int(last or first) + 1


def _join(intervals: Iterable[tuple[int, int]]) -> Intervals:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(joined)


def _without(mine: Intervals, others: Intervals) -> Intervals:
    left: list[tuple[int, int]] = []
    for start, end in mine:
        for taken, until in others:
            if until <= start or taken >= end:
                continue
            if taken > start:
                left.append((start, taken))
            start = until
        if start < end:
            left.append((start, end))
    return tuple(left)


SETTLED_SECONDS = 5.0
"""Longest wait for transactions that are in the files, and not yet known as committed."""
NOWHERE = ""
Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs a statement and returns its rows."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Transactions, and where in the files to begin to look for what follows them."""

    gtids: GtidSet
    file: str = NOWHERE
    at: int = 4
    made: str = ""
    """Which server began the file, and when: ``<server_uuid>/<seconds>``. Positions of older versions lack it."""

    @property
    def position(self) -> LogPosition:
        """Return it as a position: the number of the transactions, and what its reader needs."""
        made = f"{self.made}/" if self.made else ""
        place = f"@{made}{self.file}:{self.at}" if self.file else ""
        return LogPosition(at=self.gtids.count, text=f"{self.gtids}{place}")

    @classmethod
    def from_position(cls, position: LogPosition) -> "Place":
        """Read what :attr:`position` gave."""
        gtids, _, place = position.text.partition("@")
        made, _, place = place.rpartition("/")
        file, _, at = place.rpartition(":")
        return cls(gtids=GtidSet.parse(gtids), file=file, at=int(at or 4), made=made)


def read_executed_gtids(ask: Ask) -> GtidSet:
    """Return the transactions whose changes every query from now on sees."""
    return GtidSet.parse(_value(ask, "SELECT @@GLOBAL.gtid_executed"))


def seen(ask: Ask) -> GtidSet:
    """Return transactions among which are all whose changes a query before may have seen.

    A transaction is seen a moment before it counts as executed; until then the server knows it as owned.
    """
    owned = _read_owned_gtids(ask)
    return read_executed_gtids(ask).union(owned)


def read_current_place(ask: Ask, *, clock: Clock | None = None) -> Place:
    """Return the executed transactions, and a place in the files that has only these before it."""
    file, at = status(ask)[:2]
    owned = _read_owned_gtids(ask)

    def are_owned_visible() -> bool | None:
        return True if not owned.minus(owned.minus(_read_owned_gtids(ask))).sources else None

    known = PollPolicy().until(are_owned_visible, timeout=SETTLED_SECONDS, clock=clock or SystemClock())
    gtids = read_executed_gtids(ask)
    return Place(gtids=gtids, file=str(file), at=int(at)) if known else Place(gtids=gtids)


def status(ask: Ask) -> tuple[Any, ...]:
    """Return file, place, and the databases that are logged and that are not. Takes REPLICATION CLIENT."""
    new = _version(ask) >= (8, 2)
    return ask("SHOW BINARY LOG STATUS" if new else "SHOW MASTER STATUS")[0]


def _version(ask: Ask) -> tuple[int, ...]:
    return tuple(int(part) for part in _value(ask, "SELECT SUBSTRING_INDEX(VERSION(), '-', 1)").split("."))


def _read_owned_gtids(ask: Ask) -> GtidSet:
    """Return the transactions that sessions have open; of each the server also names the session, after a ``#``."""
    text = _value(ask, "SELECT @@GLOBAL.gtid_owned")
    return GtidSet.parse(",".join(_without_owner(part) for part in text.split(",")))


def _without_owner(part: str) -> str:
    return ":".join(interval.partition("#")[0] for interval in part.split(":"))


def _value(ask: Ask, query: str) -> str:
    return str(ask(query)[0][0] or "")
