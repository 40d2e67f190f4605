"""Sets of transactions by their GTIDs, as MySQL prints and encodes them. Two of them are not two points of one line."""

import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_backpressure.exceptions import SourceRefused

Intervals = tuple[tuple[int, int], ...]
"""Half-open, in order, with gaps between them."""
_SOURCE = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FIRST = re.compile(rf"\s*{_SOURCE.pattern}:", re.IGNORECASE)
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


def is_gtid_set(text: str) -> bool:
    """Whether a text begins as a set of transactions does. An empty one may be anything."""
    return _FIRST.match(text) is not None


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
