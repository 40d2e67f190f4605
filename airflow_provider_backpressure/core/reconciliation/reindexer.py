"""Reindexing: a ledger that was lost, or is older than the sink, follows the sink again. Reads no row of the source."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from airflow_provider_backpressure.core.config import Consistency, NewColumn
from airflow_provider_backpressure.core.gate.hydration import Hydration, RangeCounts
from airflow_provider_backpressure.core.ports import ChangeLog, Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger, count_leased, every_range, list_submitted
from airflow_provider_backpressure.core.ports.sink import FencesSlices, Marker, PlanRow, Sink
from airflow_provider_backpressure.core.reconciliation.last_writes import LastWrites
from airflow_provider_backpressure.core.reconciliation.restore_detection import Comparison, Finding, Standing
from airflow_provider_backpressure.core.snapshot.bounds import (
    Bounds,
    FileBounds,
    KeyBounds,
    LogBounds,
    LogPosition,
    NullBounds,
    OffsetBounds,
    Values,
    bounds_from_json,
)
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow, find_missing, pack_pieces
from airflow_provider_backpressure.core.snapshot.plan import LANDED, Plan, Snapshot, check_increment
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState, seq_of, slice_id
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.schema_change import keep_planned_columns
from airflow_provider_backpressure.exceptions import RESTART, LedgerRefused, LedgerUnavailable, PlanSuperseded

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


def _key_of(bounds: Bounds) -> tuple[str, ...]:
    """Return the columns by which a range of a table was cut; none where that was by its blocks."""
    return bounds.columns if isinstance(bounds, KeyBounds) else ()


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


log = logging.getLogger(__name__)

OPEN = (RangeState.PLANNED, RangeState.ADMITTED, RangeState.FAILED)
"""States of a range that the ledger does not have as committed, and that may be so in the sink."""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """What a ledger knows again."""

    plan: Plan
    ranges: int
    committed: int
    mixed: bool
    """Whether ranges are open whose snapshot is gone: they cannot be read beside those that are committed."""


@dataclass(frozen=True, kw_only=True)
class Reindexer:
    """Compares ledger and sink of one hydration, and lets the ledger follow."""

    source: Source
    sink: Sink
    runner: Runner
    ledger: Ledger
    environment: str

    def compare(self, hydration: Hydration) -> Finding:
        """Return how they compare; ask the sink two questions, and the source none."""
        return self._comparison(hydration)[0]

    def follow(
        self, hydration: Hydration, *, who: str, accept: bool = False, within_plan: bool = False
    ) -> Followed | None:
        """Let the ledger follow the sink; ``None`` where they agree.

        ``accept``: also where the ledger knows more. ``within_plan``: only where both are at the same plan.
        ``LedgerRefused`` where the ledger knows more and that is not accepted, and where the sink's plan row is of
        another hydration or does not hold the whole plan.
        """
        finding, row = self._comparison(hydration)
        same_plan = row is not None and hydration.plan is not None and row.plan_id == hydration.plan.plan_id
        if finding.standing is Standing.AGREED or (within_plan and not same_plan):
            return None
        if finding.standing is Standing.SINK_BEHIND and not accept:
            raise LedgerRefused(finding.sentence)
        checked_row = self._check(row)
        self._check_log(hydration, checked_row)
        return self._rebuild(hydration, checked_row, who=who, why=finding.sentence)

    def _comparison(self, hydration: Hydration) -> tuple[Finding, PlanRow | None]:
        plan = hydration.plan
        counts = self.ledger.counts(plan.plan_id) if plan else RangeCounts()
        row, unsettled, unknown = self.sink.held(), 0, False
        mirrored = plan is not None and plan.mirrored_since and row is not None and row.plan_id == plan.plan_id
        confirmed = 0
        if plan is not None and mirrored:
            # Both of one list: a range that is confirmed meanwhile would make one number larger, and not the other.
            records = list(every_range(self.ledger, plan.plan_id, [RangeState.COMMITTED]))
            counts, confirmed = replace(counts, committed=len(records)), self._count_confirmed(plan, records)
        if plan is not None and row is not None and row.plan_id == plan.plan_id and counts.open:
            # Asked for in this order: whatever is committed meanwhile makes the row's number larger, and no other one.
            unsettled = self._count_unsettled(plan)
            row = self.sink.held()
            most = counts.committed - confirmed + unsettled
            unknown = row is not None and row.committed > most and self._unknown(plan)
        comparison = Comparison(
            target=self.sink.identity,
            plan=plan,
            counts=counts,
            row=row,
            unsettled=unsettled,
            confirmed=confirmed,
            unknown=unknown,
            source_identity=self.source.identity,
            environment=self.environment,
        )
        return comparison.find(), row

    def _count_unsettled(self, plan: Plan) -> int:
        """Count the ranges that were tried, are open in the ledger, and are committed in the sink."""
        tried = {record.slice_id: record for record in every_range(self.ledger, plan.plan_id, OPEN) if record.attempt}
        found = self.sink.markers(plan.plan_id, list(tried)) if tried else {}
        return sum(not marker.revoked and marker.has_bounds(tried[each].bounds) for each, marker in found.items())

    def _count_confirmed(self, plan: Plan, committed: Sequence[RangeRecord]) -> int:
        """Count those of the ranges that the ledger has as committed because they did not change."""
        writes, markers = LastWrites(plan, self.sink), self.sink.markers(plan.plan_id)
        return sum(each.slice_id not in markers and writes.proves(each) is not None for each in committed)

    def _unknown(self, plan: Plan) -> bool:
        """Whether a marker is of no range in the ledger. It has each range before anything of it can be committed."""
        markers = self.sink.markers(plan.plan_id)
        for record in every_range(self.ledger, plan.plan_id):
            marker = markers.get(record.slice_id)
            if marker is not None and marker.has_bounds(record.bounds):
                del markers[record.slice_id]
        return bool(markers)

    def _check(self, row: PlanRow | None) -> PlanRow:
        if row is None:
            raise LedgerRefused(f"{self.sink.identity} holds no plan that could be followed: {RESTART}.")
        if row.source_identity != self.source.identity:
            raise LedgerRefused(f"{self.sink.identity} is held by a plan of {row.source_identity}: {RESTART}.")
        if row.plan is None:
            raise LedgerRefused(
                f"Plan {row.plan_id} was begun by a release that did not keep the whole plan in {self.sink.identity}, "
                f"so it cannot be rebuilt: {RESTART}."
            )
        return row

    def _check_log(self, hydration: Hydration, row: PlanRow) -> None:
        """Raise ``LedgerRefused`` where a log would have to be replayed on from a place that nobody knows any more."""
        plan = row.plan
        if plan is None or plan.consistency is not Consistency.CATCH_UP:
            return
        if hydration.plan is None and plan.hydration_id != hydration.id:
            raise LedgerRefused(
                f"{self.sink.identity} follows the log of {self.source.identity} under the id of a hydration that the "
                f"ledger has lost, so its place in the log is not known any more: {RESTART}."
            )

    def _rebuild(self, hydration: Hydration, row: PlanRow, *, who: str, why: str) -> Followed:
        assert row.plan is not None, "checked"
        held = count_leased(self.ledger, hydration.id)
        if held:
            # Before anything is fenced off: their lanes may be at work, and this comparison be of two moments.
            raise LedgerUnavailable(
                f"{held} ranges of {self.sink.identity} are in flight: ask again when they are over."
            )
        snapshot = None if self._rebuilt(hydration, row.plan).complete() else self._snapshot(row.plan)
        known = list(every_range(self.ledger, row.plan_id, None))
        for record in known:
            if record.state is RangeState.ADMITTED and record.session_id and record.tag:
                self.runner.interrupt(record.session_id, record.tag)
        if isinstance(self.sink, FencesSlices):
            planned = {slice_id(seq) for seq in range(row.plan.ranges or 0)} | {each.slice_id for each in known}
            slices = sorted(planned | self._rebuilt(hydration, row.plan).list_later())
            self.sink.tell_submitted(
                lambda plan_id: slices if plan_id == row.plan_id else list_submitted(self.ledger, plan_id)
            )
        # From here on no attempt of before can commit: what has a marker now is all that will have had one.
        epoch = self.sink.renew(row.plan_id)
        if epoch is None:
            raise PlanSuperseded(f"Another plan has just taken {self.sink.identity}: ask again.")
        # Ranges that did not change have no marker of the plan: they are staged, since nobody knows their bounds now.
        plan = replace(row.plan, epoch=epoch, sink_identity=self.sink.identity, mirrored_since=0)
        if snapshot is not None:
            # Connections may bear other names by now.
            plan = replace(plan, read=replace(plan.read, conn_id=self.source.read_spec(snapshot).conn_id))
        records = self._records(self._rebuilt(hydration, plan), known, snapshot)
        self.ledger.restore(hydration.id, plan, records, who=who, why=why)
        committed = sum(record.state is RangeState.COMMITTED for record in records)
        log.info("%s. The ledger follows: %s of %s ranges are committed.", why, committed, len(records))
        blocks = snapshot is not None and not snapshot.split
        mixed = plan.consistency is Consistency.SNAPSHOT and (
            blocks or committed < len(records) or not self._is_of_one_moment(plan)
        )
        return Followed(plan=plan, ranges=len(records), committed=committed, mixed=mixed)

    def _rebuilt(self, hydration: Hydration, plan: Plan) -> Rebuilt:
        return Rebuilt(hydration_id=hydration.id, plan=plan, markers=self.sink.markers(plan.plan_id))

    def _is_of_one_moment(self, plan: Plan) -> bool:
        """Whether all ranges that have a marker were read in one snapshot, or found to be the same in the last one."""
        if not plan.survives:
            return True
        epochs = {marker.epoch for marker in self.sink.markers(plan.plan_id).values() if not marker.revoked}
        return len(epochs) < 2 or self.sink.mirror(plan.write).find_confirmation(plan.plan_id) >= max(epochs)

    def _records(self, rebuilt: Rebuilt, known: list[RangeRecord], snapshot: Snapshot | None) -> list[RangeRecord]:
        records = rebuilt.known(known) if known else None
        if records is not None:
            return records
        if rebuilt.plan.replays:
            return rebuilt.windows(self.source.log(rebuilt.hydration_id))
        if snapshot is None or (not snapshot.split and rebuilt.plan.consistency is Consistency.SNAPSHOT):
            return rebuilt.list_committed()
        return rebuilt.rebuild_all(self.source, snapshot)

    def _snapshot(self, plan: Plan) -> Snapshot:
        """Return what there is to be cut, as the plan has it; ``SourceRefused`` where the columns are others by now."""
        rising = plan.increment and not plan.replays
        if rising:
            check_increment(plan, self.source.increment_column)
        after = plan.read.window.after if plan.read.window and rising else plan.version or None
        found = self.source.snapshot(None if rising else plan.consistency, after=after, counted=False)
        return replace(keep_planned_columns(found, plan, NewColumn.ADD), window=plan.read.window)
