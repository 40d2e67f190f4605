"""Replaying a database's log (``catch_up``): what one plan replays of it, and when a target has caught up.

A hydration's first plan reads the table's ranges, each at its own time, after the log was kept from a position on
(``Plan.position``). Each range records the log's position after its rows were read (``Marker.read_at``). What follows
are plans of windows: half-open pieces of the log by the positions of commits, ``[start, end)``, one after another, each
written as upserts and deletes by key in one transaction with the frontier's move. The target is consistent once the
frontier has reached its goal, the latest of those positions; of a binlog the union of their sets of transactions.

Where a position is inside a transaction does not count: a transaction belongs to the window in which its commit begins.
So a window may end anywhere, and is empty or very large where the log is. How each part treats such a plan:

- source: :class:`..core.ports.ChangeLog` keeps the log, cuts windows, releases it; ``slice`` takes ``LogBounds``
- planner: path ``replay``, reader's kind ``<kind>_log``, ``read.window`` of a :class:`ReplayWindow`, ``write.ordered``
- ledger: ranges go in one after another; their unit is that of positions: bytes, or transactions
- Spark: :mod:`..spark.change_rows` between the log's reader and the sink's writer
- sink: the frontier's row of ``stream`` moves from ``start.at`` to ``end.at`` with the rows, or the attempt is refused
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import InvalidDeclaration

COLUMN = "log position"
"""What stands for the rising column in a :class:`Window` of a log."""
BYTES, TRANSACTIONS = "bytes of log", "transactions"
"""What positions count: of a binlog its transactions, since its files are removed and another server has others."""


@dataclass(frozen=True, kw_only=True)
class ReplayWindow:
    """What one plan replays: ``[start, end)`` of a stream."""

    stream: str
    """Names the log's reader, under which the sink keeps its position: a slot, or the origin of a binlog."""
    start: LogPosition
    end: LogPosition
    """The log's position when the plan was made: everything before it is safe on the source's disk."""
    goal: LogPosition
    """What the frontier has to reach for the target to be consistent, as known when the plan was made."""
    first: bool = False
    """Whether it follows the ranges, so that the sink may have no frontier yet, or one of an earlier life."""
    hydrating: bool = False
    """Whether the target is not consistent before the goal is reached."""
    unit: str = BYTES
    """What its positions count."""

    def __post_init__(self) -> None:
        """Refuse the empty window."""
        if self.end <= self.start:
            raise InvalidDeclaration(f"The window [{self.start.label}, {self.end.label}) of {self.stream} is empty.")

    @property
    def reached(self) -> bool:
        """Whether its end is the goal or lies behind it."""
        return self.end.has_reached(self.goal)

    def window(self, after: str | None) -> Window:
        """Return it as the window of a plan; ``after``: the ``upto`` of the plan before, or its position."""
        return Window(column=COLUMN, after=after, upto=self.to_text())

    def to_text(self) -> str:
        """Return it as JSON."""
        ends = {name: str(getattr(self, name)) for name in ("start", "end", "goal")}
        return json.dumps(
            {"stream": self.stream, **ends, "first": self.first, "hydrating": self.hydrating, "unit": self.unit}
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what :meth:`to_text` wrote."""
        value = json.loads(text)
        return cls(**{**value, **{name: LogPosition.parse(value[name]) for name in ("start", "end", "goal")}})

    @classmethod
    def from_window(cls, window: Window | None) -> Self | None:
        """Return what a plan's window is about; ``None`` for one of a rising column or of a topic."""
        return cls.from_text(window.upto) if window is not None and window.column == COLUMN else None


def goal(start: LogPosition, read_at: Iterable[str]) -> LogPosition:
    """Return the latest of the positions in the markers; ``start`` where none has one.

    Of sets of transactions it is their union: a server that took another one's place may not have all that was seen.
    The farthest place in each file stays with it: a server that was restored commits the same numbers again, elsewhere.
    """
    positions = [start, *(LogPosition.parse(text) for text in sorted(set(read_at)) if text)]
    latest = max(positions)
    if latest.transactions is None:
        return latest
    seen = GtidSet.parse(",".join(position.label for position in positions))
    places: dict[str, int] = {}
    for position in positions:
        for file, at in position.places.items():
            places[file] = max(at, places.get(file, 0))
    return LogPosition(at=seen.count, text="@".join([str(seen), *(f"{file}:{at}" for file, at in places.items())]))


def number_windows(windows: Iterable[LogBounds]) -> Iterator[PlannedRange]:
    """Yield a range for each window, in order. Their unit is that of positions; how many rows they hold is open."""
    for seq, bounds in enumerate(windows):
        yield PlannedRange(seq=seq, bounds=bounds, rows=bounds.length, bytes=bounds.length)
