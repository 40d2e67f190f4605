"""The completion check: nothing ends or is published before ranges, markers and totals agree.

It asks for no row: ranges come from the ledger, markers from the sink. Every mode and target passes it, whatever
``verify`` says.
"""

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.ports.ledger import LedgerReader, every_range
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.reconciliation.last_writes import LastWrites
from airflow_provider_backpressure.core.snapshot.bounds import (
    BlockBounds,
    Bounds,
    FileBounds,
    KeyBounds,
    LogBounds,
    NullBounds,
    OffsetBounds,
    Part,
    name_part,
)
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.exceptions import RESTART, LedgerUnavailable, VerificationFailed

Line = tuple[Hashable, ...]
"""Names an order in which pieces follow one another: a key's, a file's blocks, a partition's offsets, a log's."""
FIRST, LAST = "the beginning", "the end"
"""The open ends of a line."""


@dataclass(kw_only=True)
class Coverage:
    """Collects pieces and finds what they leave out or hold twice.

    Pieces are half-open, so on each line every end but the last is another piece's start, and only there. Ends and
    starts that have met are forgotten, so that a million pieces that come in order take no memory.
    """

    _open: dict[Line, Counter[Hashable]] = field(default_factory=dict)
    """By line and value: how many more pieces start there than end there."""
    _alone: Counter[str] = field(default_factory=Counter)
    """Pieces that are on no line, by their text: the rows without a key, files."""

    def add(self, bounds: Bounds) -> None:
        """Take one piece in."""
        for line, start, end in _steps(bounds):
            ends = self._open.setdefault(line, Counter())
            for value, change in ((start, 1), (end, -1)):
                ends[value] += change
                if not ends[value]:
                    del ends[value]
        if isinstance(bounds, NullBounds | FileBounds):
            self._alone[str(bounds)] += 1

    def faults(self, plan: Plan) -> Iterator[str]:
        """Yield in words where the pieces leave a gap or overlap."""
        expected = _find_expected(plan)
        for line in {**expected, **self._open}:
            start, end = expected.get(line, (_start_of(line), LAST))
            left = Counter(self._open.get(line, Counter()))
            left.subtract({start: 1, end: -1})
            gaps = [str(_to_line(value)) for value, number in left.items() if number < 0]
            twice = [str(_to_line(value)) for value, number in left.items() if number > 0]
            if gaps or twice:
                places = sorted({*gaps, *twice})[:3]
                yield f"they leave a gap or overlap at {', '.join(places)} of {_title(line)}"
        for text, number in self._alone.items():
            if number > 1:
                yield f"{number} of them hold {text}"

    def lacks_rows_without_key(self, plan: Plan) -> bool:
        """Whether the key may be NULL by the plan's columns, and no piece holds the rows where it is."""
        nullable = {column.name for column in plan.read.columns if column.nullable}
        lines = {name for line in self._open if line[0] == "key" for name in line[1:]}
        return bool(lines & nullable) and not any(text.endswith(" is NULL") for text in self._alone)


def _find_expected(plan: Plan) -> Mapping[Line, tuple[Hashable, Hashable]]:
    """Return start and end of each line that the plan itself names."""
    offsets, log = LogWindow.from_window(plan.read.window), ReplayWindow.from_window(plan.read.window)
    if offsets is not None:
        return {
            _offsets_line(partition, part): (start, end)
            for partition, start, end in offsets.pieces()
            for part in offsets.list_parts()
        }
    if log is not None:
        return {("log", log.stream): (log.start.at, log.end.at)}
    return {}


def _steps(bounds: Bounds) -> Iterator[tuple[Line, Hashable, Hashable]]:
    match bounds:
        case KeyBounds():
            start = FIRST if bounds.start is None else bounds.start
            yield ("key", *bounds.columns), start, LAST if bounds.end is None else bounds.end
        case BlockBounds():
            yield ("blocks", bounds.table), bounds.start, LAST if bounds.end is None else bounds.end
        case OffsetBounds():
            for partition, first, last in bounds.pieces:
                yield _offsets_line(partition, bounds.part), first, last
        case LogBounds():
            yield ("log", bounds.stream), bounds.start.at, bounds.end.at


def _offsets_line(partition: int, part: Part | None) -> Line:
    return ("offsets", partition) if part is None else ("offsets", partition, name_part(part))


def _start_of(line: Line) -> Hashable:
    return (0, 0) if line[0] == "blocks" else FIRST


def _to_line(value: Hashable) -> Hashable:
    return f"({', '.join(map(str, value))})" if isinstance(value, tuple) else value


def _title(line: Line) -> str:
    kind, *names = line
    text = ", ".join(map(str, names))
    return {"key": f"key {text}", "blocks": f"table {text}", "offsets": f"partition {text}"}.get(
        str(kind), f"log {text}"
    )


log = logging.getLogger(__name__)

BATCH = 5_000
"""Markers that are asked for at once."""
REINDEX = "`airflow backpressure reindex` lets the ledger follow the target"


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Checks that a plan whose ranges are committed is complete."""

    plan: Plan
    ledger: LedgerReader
    sink: Sink

    @cached_property
    def _writes(self) -> LastWrites:
        return LastWrites(self.plan, self.sink)

    def check(self) -> int:
        """Confirm the ranges that did not change, since the run before or an earlier snapshot, once everything agrees.

        Return how many rows the ranges have brought; one that was repaired counts once.

        Raise ``VerificationFailed`` with cause and remedy where anything is missing, doubled or of other bounds.

        ``LedgerUnavailable`` while another run has ranges in flight. It never closes the plan.
        """
        self._check_states()
        found = _Found()
        coverage = Coverage()
        for records in _batches(every_range(self.ledger, self.plan.plan_id), BATCH):
            for record in records:
                found.count(record, self.plan)
                if record.state is RangeState.COMMITTED or record.skipped:
                    coverage.add(record.bounds)
            self._check_markers([record for record in records if record.state is RangeState.COMMITTED], found)
        self._check_cover(coverage, found)
        self._check_surplus(found)
        self._check_total(found)
        if self.plan.mode is Mode.MIRROR or found.outdated:
            target = self.sink.mirror(self.plan.write)
            # What is confirmed already may have taken the target's place since.
            if self.plan.mode is Mode.MIRROR or target.find_confirmation(self.plan.plan_id) < self.plan.snapshot_epoch:
                target.confirm(self.plan, rows=found.confirmed_rows)
        return found.rows

    def _check_states(self) -> None:
        counts = self.ledger.counts(self.plan.plan_id)
        if counts.admitted and counts.admitted == counts.open:
            raise LedgerUnavailable(f"{counts.admitted} ranges are still in flight with another run of this hydration.")
        if counts.open:
            raise VerificationFailed(
                f"{counts.open} of {counts.total} ranges are not committed yet: clear the task that hydrates them."
            )

    def _check_markers(self, records: list[RangeRecord], found: "_Found") -> None:
        """See that each range is in the target under its own bounds, and add up what was read."""
        markers = self.sink.markers(self.plan.plan_id, [record.slice_id for record in records]) if records else {}
        for record in records:
            marker = markers.get(record.slice_id)
            if marker is None and (earlier := self._writes.proves(record)) is not None:
                marker = earlier
                found.confirmed += 1
                found.confirmed_rows += marker.rows
            if marker is None or marker.revoked:
                raise self._failure(
                    f"the target has no marker of range {record.seq}, which the ledger has as committed"
                )
            if not marker.has_bounds(record.bounds):
                raise self._failure(
                    f"range {record.seq} is {record.bounds} in the ledger, and the target has it with other bounds"
                )
            if self.plan.is_outdated(marker.plan_id, marker.epoch):
                found.outdated += 1
                if (marker.rows_read, marker.checksum) != (record.rows, record.checksum):
                    raise self._failure(f"range {record.seq} was confirmed with other rows than its marker has")
            found.rows += marker.rows_read
            found.epochs.add(marker.epoch)
        one_moment = self.plan.consistency is Consistency.SNAPSHOT and not (self.plan.survives or self.plan.increment)
        if one_moment and len(found.epochs) > 1:
            raise self._failure("its ranges were read in more than one snapshot")

    def _check_cover(self, coverage: Coverage, found: "_Found") -> None:
        for fault in coverage.faults(self.plan) if found.ranges or self.plan.ranges else ():
            raise self._failure(f"its ranges do not cover the plan once: {fault}")
        planned = self.plan.ranges
        if planned is None or found.planned == planned:
            return
        # A ledger that was rebuilt from the target has other numbers: the bounds alone decide, and of files their rows.
        if not (
            found.on_lines or (found.file_rows is not None and found.file_rows == self.plan.total)
        ) or coverage.lacks_rows_without_key(self.plan):
            raise self._failure(f"the ledger has {found.planned} of the {planned} ranges that were planned")

    def _check_surplus(self, found: "_Found") -> None:
        self.sink.check_history()
        row = self.sink.held()
        if row is None or row.plan_id != self.plan.plan_id:
            raise self._failure("the target is no longer held by it")
        if self.plan.survives and row.epoch != self.plan.epoch:
            raise self._failure(f"the target has epoch {row.epoch} of it, and the ledger {self.plan.epoch}")
        if row.committed != found.committed - found.confirmed:
            raise self._failure(
                f"the target has {row.committed} committed ranges of it, and the ledger {found.committed}"
            )

    def _check_total(self, found: "_Found") -> None:
        total = exact_total(self.plan)
        if total is None or found.skipped or found.rows == total:
            return
        raise VerificationFailed(
            f"Plan {self.plan.plan_id} of {self.plan.source_identity} is not complete: {found.rows} rows were read, "
            f"and the source held {total}. {self._cause()} Nothing was published; {RESTART}."
        )

    def _cause(self) -> str:
        if self.plan.consistency is Consistency.STATIC:
            return "It was declared static and has changed since it was planned, or a range lost rows."
        return "A range lost rows or holds some twice."

    def _failure(self, what: str) -> VerificationFailed:
        return VerificationFailed(
            f"Plan {self.plan.plan_id} of {self.plan.source_identity} is not complete: {what}. Nothing was published; "
            f"{REINDEX}, or {RESTART}."
        )


@dataclass(kw_only=True)
class _Found:
    """What a pass over the ranges has seen."""

    ranges: int = 0
    planned: int = 0
    """Ranges with a number that the planner gave out, whatever became of them."""
    committed: int = 0
    skipped: int = 0
    confirmed: int = 0
    """Ranges that did not change, and have a marker of an earlier plan."""
    confirmed_rows: int = 0
    outdated: int = 0
    """Ranges that did not change since an earlier snapshot, whose marker they have."""
    rows: int = 0
    epochs: set[int] = field(default_factory=set)
    """Under which the ranges were committed: each snapshot of a plan has one of its own."""
    file_rows: int | None = None
    """Rows of the files of all ranges, where they are read by files."""
    on_lines: bool = False
    """Whether ranges follow one another by a key or a log, so that their bounds alone show a gap."""

    def count(self, record: RangeRecord, plan: Plan) -> None:
        """Take one range in."""
        self.ranges += 1
        self.planned += plan.ranges is not None and record.seq < plan.ranges
        self.committed += record.state is RangeState.COMMITTED
        self.skipped += record.skipped
        if isinstance(record.bounds, FileBounds):
            self.file_rows = (self.file_rows or 0) + record.bounds.rows
        self.on_lines = self.on_lines or isinstance(record.bounds, KeyBounds | OffsetBounds | LogBounds)


def exact_total(plan: Plan) -> int | None:
    """Return how many rows the plan's ranges have to bring; ``None`` where their bounds alone can decide.

    There is none where ranges are read at moments of their own, where rows leave a window as they rise, where a
    transform may filter, and where the source only gave an estimate. Under ``snapshot`` it has to have been counted in
    the snapshot in which the ranges were read.
    """
    if plan.total is None or not plan.total_exact or plan.transform is not None:
        return None
    if plan.mode is Mode.MIRROR and plan.consistency is Consistency.STATIC:
        return None
    match plan.consistency:
        case Consistency.SNAPSHOT:
            return plan.total if plan.counted else None
        case Consistency.STATIC:
            return plan.total if plan.read.window is None else None
    return None


def _batches(records: Iterable[RangeRecord], size: int) -> Iterator[list[RangeRecord]]:
    iterator = iter(records)
    while batch := list(islice(iterator, size)):
        yield batch
