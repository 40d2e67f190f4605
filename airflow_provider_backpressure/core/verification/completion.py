"""The completion check: nothing ends or is published before ranges, markers and totals agree.

It asks for no row: ranges come from the ledger, markers from the sink. Every mode and target passes it, whatever
``verify`` says.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.ports import Sink
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.ports.paging import every_range
from airflow_provider_backpressure.core.remedies import RESTART
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, LogBounds, OffsetBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.verification.coverage import Coverage
from airflow_provider_backpressure.exceptions import LedgerUnavailable, VerificationFailed

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

    def check(self) -> None:
        """Raise ``VerificationFailed`` with cause and remedy where anything is missing, doubled or of other bounds.

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
            if marker is None or marker.revoked:
                raise self._failure(
                    f"the target has no marker of range {record.seq}, which the ledger has as committed"
                )
            if not marker.has_bounds(record.bounds):
                raise self._failure(
                    f"range {record.seq} is {record.bounds} in the ledger, and the target has it with other bounds"
                )
            found.rows += marker.rows_read

    def _check_cover(self, coverage: Coverage, found: "_Found") -> None:
        for fault in coverage.faults(self.plan) if found.ranges or self.plan.ranges else ():
            raise self._failure(f"its ranges do not cover the plan once: {fault}")
        planned = self.plan.ranges
        if planned is None or found.planned == planned:
            return
        # A ledger that was rebuilt from the target has other numbers; then the bounds alone decide.
        if not found.on_lines or coverage.lacks_rows_without_key(self.plan):
            raise self._failure(f"the ledger has {found.planned} of the {planned} ranges that were planned")

    def _check_surplus(self, found: "_Found") -> None:
        self.sink.check_history()
        row = self.sink.held()
        if row is None or row.plan_id != self.plan.plan_id:
            raise self._failure("the target is no longer held by it")
        if row.committed != found.committed:
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
    rows: int = 0
    on_lines: bool = False
    """Whether ranges follow one another by a key or a log, so that their bounds alone show a gap."""

    def count(self, record: RangeRecord, plan: Plan) -> None:
        """Take one range in."""
        self.ranges += 1
        self.planned += plan.ranges is not None and record.seq < plan.ranges
        self.committed += record.state is RangeState.COMMITTED
        self.skipped += record.skipped
        self.on_lines = self.on_lines or isinstance(record.bounds, KeyBounds | OffsetBounds | LogBounds)


def exact_total(plan: Plan) -> int | None:
    """Return how many rows the plan's ranges have to bring; ``None`` where their bounds alone can decide.

    There is none where ranges are read at moments of their own, where rows leave a window as they rise, where a
    transform may filter, and where the source only gave an estimate. Under ``snapshot`` it has to have been counted in
    the snapshot in which the ranges were read.
    """
    if plan.total is None or not plan.total_exact or plan.transform is not None:
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
