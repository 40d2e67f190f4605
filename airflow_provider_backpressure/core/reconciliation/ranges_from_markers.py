"""The ranges of a plan, rebuilt from its markers: what is committed is known by them, the rest is planned again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean
from typing import Any, TypeVar

from airflow_provider_backpressure.core.ports import ChangeLog, Source
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.bounds import (
    Bounds,
    FileBounds,
    KeyBounds,
    LogBounds,
    LogPosition,
    NullBounds,
    OffsetBounds,
    Part,
    Piece,
    Values,
    bounds_from_json,
)
from airflow_provider_backpressure.core.snapshot.plan import LANDED, Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState, seq_of, slice_id
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, find_missing, pack_pieces
from airflow_provider_backpressure.exceptions import RESTART, LedgerRefused

B = TypeVar("B", FileBounds, KeyBounds, LogBounds, NullBounds, OffsetBounds)

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
            return not any(list(pieces) for _, pieces in _find_missing(window, _select_kind(there, OffsetBounds)))
        replayed = ReplayWindow.from_window(self.plan.read.window)
        if replayed is not None:
            return _find_replayed_position(there, replayed).has_reached(replayed.end)
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
        if start.has_reached(window.end):
            return there
        # After a fail-over the log's order may be another one: only cuts that the window's end contains are in it.
        cuts = log.windows(start, bytes=WINDOW_BYTES)
        inner = [*takewhile(lambda bounds: bounds.end < window.end and window.end.has_reached(bounds.end), cuts)]
        last = LogBounds(stream=log.stream, start=inner[-1].end if inner else start, end=window.end)
        first = self._first_new()
        return [*there, *(self._plan_range(seq, bounds, there) for seq, bounds in enumerate([*inner, last], first))]

    def rebuild_all(self, source: Source, snapshot: Snapshot) -> list[RangeRecord]:
        """Return all ranges; those without a marker are planned again, from what the source holds of them now."""
        there = self.list_committed()
        if (window := LogWindow.from_window(self.plan.read.window)) is not None:
            missing = list(self._of_log(there, window))
        elif self.plan.read.kind == LANDED:
            missing = list(self._of_files(there, source, snapshot))
        else:
            columns = self._check_key(there, snapshot.split)
            pieces = list(self._of_key(there, source, columns))
            missing = pieces if snapshot.unique or not columns else self._with_nulls(there, pieces, columns[0])
        first = self._first_new()
        return [*there, *(self._plan_range(seq, bounds, there) for seq, bounds in enumerate(missing, first))]

    def list_later(self) -> set[str]:
        """Return the slices one of which a ledger that was rebuilt, and is lost again, may have submitted.

        Windows go in one after another: it is the one behind the last marker, or the first that was planned again.
        """
        if not self.plan.replays:
            return set()
        last = max((seq_of(name) for name in self.markers), default=-1)
        return {slice_id(last + 1), slice_id(self._first_new())}

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

    def _of_files(self, there: Sequence[RangeRecord], source: Source, snapshot: Snapshot) -> Iterator[Bounds]:
        """Yield the files that are not in, each by itself; ``LedgerRefused`` where the table holds other rows now."""
        if snapshot.version != self.plan.version:
            raise LedgerRefused(
                f"{source.identity} has changed since plan {self.plan.plan_id} was made of its files, so the rest of "
                f"the plan cannot be listed again: {RESTART}."
            )
        taken = {name for bounds in _select_kind(there, FileBounds) for name in bounds.files}
        for each in source.ranges(snapshot, rows=1, bytes=1):
            if isinstance(each.bounds, FileBounds) and not taken.issuperset(each.bounds.files):
                yield each.bounds

    def _check_key(self, there: Sequence[RangeRecord], now: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of the key; ``LedgerRefused`` where committed ranges were cut by others than ``now``.

        The end of a piece of one key is no start of a piece of another: rows would be doubled, and others missing.
        """
        cut = {_key_of(record.bounds) for record in there if not isinstance(record.bounds, NullBounds)}
        if cut - {now}:
            before = " and ".join(sorted(", ".join(columns) or "blocks" for columns in cut))
            raise LedgerRefused(
                f"The committed ranges of plan {self.plan.plan_id} were cut by {before}, and the source would be cut "
                f"by {', '.join(now) or 'blocks'} now, so the rest of the plan cannot be listed again. Name the column "
                f"as split_column where one is possible; otherwise {RESTART}."
            )
        return now

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

    def _with_nulls(self, there: Sequence[RangeRecord], pieces: Sequence[Bounds], column: str) -> list[Bounds]:
        """Return the pieces with the rows without a key once: a range of their own, unless one piece is all of it."""
        keyed: list[Bounds] = [bounds for bounds in pieces if not isinstance(bounds, NullBounds)]
        is_whole = any(isinstance(bounds, KeyBounds) and bounds.is_open for bounds in keyed)
        if not _select_kind(there, NullBounds):
            return keyed if is_whole else [*keyed, NullBounds(column=column)]
        if is_whole:
            raise LedgerRefused(
                f"Of plan {self.plan.plan_id} only the rows without {column} are committed, and the others cannot "
                f"be cut, so the rest of the plan cannot be listed again: {RESTART}."
            )
        return keyed

    def _of_log(self, there: Sequence[RangeRecord], window: LogWindow) -> Iterator[Bounds]:
        taken = _select_kind(there, OffsetBounds)
        most = max((bounds.offsets for bounds in taken), default=0)
        most = most or -(-window.total // max(1, self.plan.ranges or 1)) or 1
        for part, pieces in _find_missing(window, taken):
            for bounds in pack_pieces(pieces, offsets=most):
                yield replace(bounds, ordered=self.plan.write.ordered, part=part)

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


def _find_missing(window: LogWindow, taken: Sequence[OffsetBounds]) -> Iterator[tuple[Part | None, Iterator[Piece]]]:
    """Yield each part of a log's keys with what of the window is in none of these bounds of it."""
    for part in window.list_parts():
        yield part, find_missing(window, [bounds for bounds in taken if bounds.part == part])


def _same(record: RangeRecord | None, marker: Marker) -> bool:
    """Whether a ledger's range is the marker's: it may have been cut since, or its number may have been used again."""
    if record is None or record.bounds != bounds_from_json(dict(marker.bounds)):
        return False
    return not marker.revoked or record.state is RangeState.REVOKED


def _key_of(bounds: Bounds) -> tuple[str, ...]:
    """Return the columns by which a range of a table was cut; none where that was by its blocks."""
    return bounds.columns if isinstance(bounds, KeyBounds) else ()


def _length(bounds: Bounds) -> int | None:
    """Return what a piece of a log counts; ``None`` for one of a table."""
    match bounds:
        case OffsetBounds():
            return bounds.share
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
