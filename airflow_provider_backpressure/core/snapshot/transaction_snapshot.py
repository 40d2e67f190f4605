"""Which transactions a reader of a source sees.

A position of the log does not say that: a commit can be in the log before readers see it, as where it waits for a
standby. So a window goes in only once every reader that comes sees all of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

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
