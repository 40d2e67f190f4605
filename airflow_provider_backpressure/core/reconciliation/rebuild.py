"""The ranges of a plan from its markers in the sink: what is committed, and what has to be planned again.

Uncommitted ranges are the complement of the committed bounds. Only the source knows the order of its key, so pieces are
put together by their ends, and the source is asked for the order of what is left over. Revoked markers cover nothing:
the range that was cut has others in its place, which may be missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from airflow_provider_backpressure.core.ports import ChangeLog, Marker, Source
from airflow_provider_backpressure.core.snapshot.bounds import (
    Bounds,
    KeyBounds,
    LogBounds,
    NullBounds,
    OffsetBounds,
    Values,
    bounds_from_json,
)
from airflow_provider_backpressure.core.snapshot.log_position import LogPosition
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow, find_missing, pack_pieces
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState, seq_of, slice_id
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow

B = TypeVar("B", KeyBounds, LogBounds, NullBounds, OffsetBounds)

WINDOW_BYTES = 64 * 1024 * 1024
"""Most log in a window that is planned again."""
BEYOND = 1_000_000
"""Numbers of new ranges begin at the next multiple: late attempts may still bear one that was given out before."""


def gaps(source: Source, plan: Plan, columns: tuple[str, ...], there: Sequence[KeyBounds]) -> list[KeyBounds]:
    """Return the parts of a key that none of these pieces covers, in the key's order; the pieces do not overlap."""
    starts, ends = {piece.start for piece in there}, {piece.end for piece in there}
    # A gap begins where a piece ends and none begins, and the other way round; open ends come first and last.
    opening = _sort(source, plan, columns, ends - starts - {None})
    closing = _sort(source, plan, columns, starts - ends - {None})
    first: list[Values | None] = [] if None in starts else [None]
    last: list[Values | None] = [] if None in ends else [None]
    return [
        KeyBounds(columns=columns, start=start, end=end)
        for start, end in zip([*first, *opening], [*closing, *last], strict=True)
    ]


def _sort(source: Source, plan: Plan, columns: tuple[str, ...], values: set[Values | None]) -> list[Values]:
    known = [value for value in values if value is not None]
    return known if len(known) < 2 else source.in_order(plan.read, columns, known)


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """Makes the records of a plan's ranges."""

    hydration_id: str
    plan: Plan
    markers: Mapping[str, Marker]

    def list_committed(self) -> list[RangeRecord]:
        """Return the ranges whose rows are in, in the order of their numbers."""
        found = (self._from_marker(marker) for marker in self.markers.values() if not marker.revoked)
        return sorted(found, key=lambda record: record.seq)

    def known(self, records: Sequence[RangeRecord]) -> list[RangeRecord] | None:
        """Return the ranges that a ledger has of the plan as the markers have them; ``None`` where they are others."""
        by_id = {record.slice_id: record for record in records}
        if not all(_same(by_id.get(each), marker) for each, marker in self.markers.items()):
            return None
        return [self._as_marked(record) for record in records]

    def complete(self) -> bool:
        """Whether the markers alone prove that nothing is missing, whatever the source says."""
        window, there = LogWindow.from_window(self.plan.read.window), self.list_committed()
        if window is not None:
            return not list(find_missing(window, _select_kind(there, OffsetBounds)))
        replayed = ReplayWindow.from_window(self.plan.read.window)
        if replayed is not None:
            return _find_replayed_position(there, replayed) >= replayed.end
        key = {column for piece in _select_kind(there, KeyBounds) for column in piece.columns}
        nulls = not key <= {column.name for column in self.plan.read.columns if not column.nullable}
        numbers, keyed = {record.seq for record in there}, _select_kind(there, KeyBounds)
        if self.plan.ranges is None:
            return False
        if numbers.issuperset(range(self.plan.ranges)):
            return True
        # Some were cut into others; the last one of all may be that of the rows without a key.
        starts, ends = {piece.start for piece in keyed}, {piece.end for piece in keyed}
        return starts == ends and None in starts and (not nulls or self.plan.ranges - 1 in numbers)

    def windows(self, log: ChangeLog) -> list[RangeRecord]:
        """Return all windows of a plan that replays a log; those without a marker are planned again.

        They went in one after another, so what is missing lies behind the last of them. ``LogLost`` where the source
        no longer has that.
        """
        there, window = self.list_committed(), ReplayWindow.from_window(self.plan.read.window)
        assert window is not None, "asked of a plan that replays"
        start = _find_replayed_position(there, window)
        if start >= window.end:
            return there
        inner = [bounds for bounds in log.windows(start, bytes=WINDOW_BYTES) if bounds.end < window.end]
        last = LogBounds(stream=log.stream, start=inner[-1].end if inner else start, end=window.end)
        first = self._first_new()
        return [*there, *(self._plan_range(seq, bounds, there) for seq, bounds in enumerate([*inner, last], first))]

    def rebuild_all(self, source: Source, columns: tuple[str, ...], *, nulls: bool) -> list[RangeRecord]:
        """Return all ranges; those without a marker are planned again.

        ``columns``: those of the key; ``nulls``: whether rows without a key are a range of their own.
        """
        there = self.list_committed()
        window = LogWindow.from_window(self.plan.read.window)
        if window is not None:
            anew = list(self._of_log(there, window))
        else:
            anew = [*self._of_key(there, source, columns), *self._of_nulls(there, columns if nulls else ())]
        first = self._first_new()
        return [*there, *(self._plan_range(seq, bounds, there) for seq, bounds in enumerate(anew, first))]

    def _first_new(self) -> int:
        last = max((seq_of(name) for name in self.markers), default=-1)
        return (max(last, self.plan.ranges or 0) // BEYOND + 1) * BEYOND

    def _plan_range(self, seq: int, bounds: Bounds, there: Sequence[RangeRecord]) -> RangeRecord:
        rows, size = self._sizes(there)
        return RangeRecord(
            hydration_id=self.hydration_id,
            plan_id=self.plan.plan_id,
            seq=seq,
            bounds=bounds,
            state=RangeState.PLANNED,
            planned_rows=_length(bounds) or rows,
            planned_bytes=bounds.length if isinstance(bounds, LogBounds) else size,
        )

    def _of_key(self, there: Sequence[RangeRecord], source: Source, columns: tuple[str, ...]) -> Iterator[Bounds]:
        """Yield pieces of each gap: at most as many as ranges of the plan may be missing there."""
        keyed = {bounds: record.seq for record in there if isinstance(bounds := record.bounds, KeyBounds)}
        before = {bounds.end: seq for bounds, seq in keyed.items()}
        behind = {bounds.start: seq for bounds, seq in keyed.items()}
        ranges = self.plan.ranges or 0
        every = max(1, len(set(range(ranges)) - set(keyed.values())))
        for gap in gaps(source, self.plan, columns, list(keyed)):
            first = before[gap.start] if gap.start is not None else -1
            last = behind[gap.end] if gap.end is not None else ranges
            number = last - first - 1
            yield from source.cut(self.plan.read, gap, parts=number if 0 < number < every else every)

    @staticmethod
    def _of_nulls(there: Sequence[RangeRecord], columns: tuple[str, ...]) -> Iterator[Bounds]:
        if columns and not _select_kind(there, NullBounds):
            yield NullBounds(column=columns[0])

    def _of_log(self, there: Sequence[RangeRecord], window: LogWindow) -> Iterator[Bounds]:
        taken = _select_kind(there, OffsetBounds)
        most = max((bounds.offsets for bounds in taken), default=0)
        most = most or -(-window.total // max(1, self.plan.ranges or 1)) or 1
        for bounds in pack_pieces(find_missing(window, taken), offsets=most):
            yield replace(bounds, ordered=self.plan.write.ordered)

    def _sizes(self, there: Sequence[RangeRecord]) -> tuple[int, int]:
        """Return the rows and bytes to be expected of a range."""
        full = [record for record in there if record.rows]
        if not full:
            return (self.plan.total or 0) // max(1, self.plan.ranges or 1), 0
        return round(fmean(record.rows or 0 for record in full)), round(fmean(record.bytes or 0 for record in full))

    def _from_marker(self, marker: Marker) -> RangeRecord:
        return RangeRecord(
            hydration_id=self.hydration_id,
            plan_id=self.plan.plan_id,
            seq=seq_of(marker.slice_id),
            bounds=bounds_from_json(dict(marker.bounds)),
            planned_rows=marker.rows,
            planned_bytes=marker.bytes,
            **_outcome(marker),
        )

    def _as_marked(self, record: RangeRecord) -> RangeRecord:
        marker = self.markers.get(slice_id(record.seq))
        if marker is not None and not marker.revoked:
            return replace(record, lease_until=None, error=None, **_outcome(marker))
        if record.state is RangeState.REVOKED:
            return record
        gone = dict.fromkeys(("lane", "session_id", "lease_until", "rows", "bytes", "checksum", "committed_at"))
        return replace(record, state=RangeState.PLANNED, **gone)  # type: ignore[arg-type]


def _same(record: RangeRecord | None, marker: Marker) -> bool:
    """Whether a ledger's range is the marker's: it may have been cut since, or its number may have been used again."""
    if record is None or record.bounds != bounds_from_json(dict(marker.bounds)):
        return False
    return not marker.revoked or record.state is RangeState.REVOKED


def _length(bounds: Bounds) -> int | None:
    """Return what a piece of a log counts; ``None`` for one of a table."""
    match bounds:
        case OffsetBounds():
            return bounds.offsets
        case LogBounds():
            return bounds.length
    return None


def _find_replayed_position(there: Sequence[RangeRecord], window: ReplayWindow) -> LogPosition:
    """Return how far a log is in: its windows go in one after another."""
    return max((bounds.end for bounds in _select_kind(there, LogBounds)), default=window.start)


def _select_kind(there: Sequence[RangeRecord], kind: type[B]) -> list[B]:
    return [record.bounds for record in there if isinstance(record.bounds, kind)]


def _outcome(marker: Marker) -> dict[str, Any]:
    return {
        "state": RangeState.COMMITTED,
        "attempt": marker.attempt,
        "rows": marker.rows + marker.quarantined,
        "bytes": marker.bytes,
        "checksum": marker.checksum,
        "committed_at": marker.committed_at,
    }
