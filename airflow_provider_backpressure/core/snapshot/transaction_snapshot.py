"""Which transactions a reader of a source sees, and how ranges and windows of its log may take turns by that.

A position of the log does not say what a reader sees: a commit can be in the log before readers see it, as where it
waits for a standby. So ranges and windows are ordered by snapshots. Each range is read in a snapshot. A window goes in
only if every snapshot in flight sees all of it, and a range only if its snapshot sees all that windows have brought.
Then a range never takes back what a window has written, and replaying the log from the frontier on corrects the rest.

A snapshot is in flight from before its rows are read until its slice's marker is in the target, committed or revoked:
an attempt that is thought dead may still commit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Self

from airflow_provider_backpressure.core.snapshot.bounds import LogPosition

_CIRCLE = 0xFFFFFFFF
"""The log has the last 32 bits of a transaction's number."""


@dataclass(frozen=True, kw_only=True)
class TransactionSnapshot:
    """The transactions that a reader sees: those below ``end`` that were not running."""

    end: int
    running: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what PostgreSQL's ``pg_current_snapshot()`` prints: ``xmin:xmax:xip,xip``."""
        _, end, running = text.split(":")
        return cls(end=int(end), running=frozenset(int(number) for number in running.split(",") if number))

    def list_unseen(self, numbers: Iterable[int]) -> list[int]:
        """Return the transactions of these that are not seen. Numbers have 32 bits here, and run in a circle."""
        running, end = {number & _CIRCLE for number in self.running}, self.end & _CIRCLE
        return [number for number in numbers if number in running or (number - end) & _CIRCLE < _CIRCLE // 2]

    def includes(self, other: "TransactionSnapshot") -> bool:
        """Whether every transaction that the other one sees is seen."""
        return self.end >= other.end and all(number >= other.end or number in other.running for number in self.running)


@dataclass(frozen=True, kw_only=True)
class LoggedTransaction:
    """A transaction as the log has it."""

    number: int
    """Of 32 bits."""
    commit: LogPosition
    """Where its commit begins, by which it belongs to a window."""


def may_begin_read(snapshot: TransactionSnapshot, windows: TransactionSnapshot) -> bool:
    """Whether rows that are read in a snapshot are not older than what windows bring.

    ``windows`` sees every transaction of the windows that are in the target, or are planned. Asked before the rows are
    read, when the snapshot is there, and again by the target before they go in.
    """
    return snapshot.includes(windows)


def find_window_end(
    transactions: Iterable[LoggedTransaction], snapshots: Iterable[TransactionSnapshot], *, upto: LogPosition
) -> LogPosition:
    """Return where a window must end: before the first transaction that some snapshot does not see, or at ``upto``.

    ``transactions``: those of the log in its order. ``snapshots``: those in flight, and the current one, which then
    sees all of the window.
    """
    within = list(takewhile(lambda each: each.commit < upto, transactions))
    numbers = [each.number for each in within]
    unseen = {number for snapshot in snapshots for number in snapshot.list_unseen(numbers)}
    return next((each.commit for each in within if each.number in unseen), upto)
