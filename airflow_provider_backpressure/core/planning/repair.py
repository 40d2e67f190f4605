"""Repair: a range whose rows are wrong in the target is read once more, alone; one that nobody wants is skipped."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, check_marked
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState, slice_id
from airflow_provider_backpressure.exceptions import LedgerRefused, SinkRefused, SourceRefused, SourceUnavailable

REMEDY = 'trigger the DAG with {"backpressure": "restart"} to read the whole again.'


def repair(
    ledger: Ledger, source: Source, sink: Sink, plan: Plan, record: RangeRecord, *, who: str, why: str | None = None
) -> int:
    """Plan a committed or failed range again and return how many rows were removed for it; the next run reads it.

    The source is asked first, and nothing is removed that it no longer has. First the sink, then the ledger: killed in
    between, verification names the range again. Raises ``LedgerRefused`` where a range cannot be read again by itself,
    and what ``Source.check_range`` and ``Sink.discard`` do.
    """
    removed = 0
    if record.state is RangeState.COMMITTED:
        check_alone(plan)
        source.check_range(plan, record.bounds)
        removed = sink.discard(plan, record.slice_id, record.bounds)
    replan(ledger, plan, record, who=who, why=why)
    return removed


def replan(ledger: Ledger, plan: Plan, record: RangeRecord, *, who: str, why: str | None = None) -> None:
    """Plan a failed range again, or one whose rows were removed; ``LedgerRefused`` for every other one."""
    if not ledger.reopen(plan.plan_id, record.seq, who=who, why=why):
        raise LedgerRefused(f"Range {record.seq} is {record.state} and of the plan before, or in flight: leave it be.")


def skip(ledger: Ledger, sink: Sink, plan: Plan, record: RangeRecord, *, who: str, why: str) -> None:
    """Leave a planned or failed range out for good: the sink refuses it, then the ledger says so.

    Raises ``LedgerRefused`` for a range in flight or committed, and what ``Sink.revoke`` does.
    """
    if record.state not in (RangeState.PLANNED, RangeState.FAILED):
        raise LedgerRefused(f"Range {record.seq} is {record.state}: only a planned or failed one can be skipped.")
    if plan.write.ordered:
        raise LedgerRefused(f"Rows of plan {plan.plan_id} go in by the order of a log, which must have no gap.")
    if record.attempt and not sink.revoke(plan, record.slice_id, record.bounds):
        raise LedgerRefused(f"Range {record.seq} is committed in the sink: the next run writes that down.")
    if not ledger.skip(plan.plan_id, record.seq, who=who, why=why):
        raise LedgerRefused(f"Range {record.seq} has just been admitted: pause the hydration first.")


def check_alone(plan: Plan) -> None:
    """Raise ``LedgerRefused`` unless a committed range of the plan may be read again.

    Of a plan that survives its snapshot the next run reads it in a new one, and brings the others to that moment too.
    """
    if plan.consistency is Consistency.SNAPSHOT and not plan.increment and not plan.survives:
        raise LedgerRefused(
            f"Plan {plan.plan_id} was read in a snapshot that is gone, and a range cannot be of another moment: "
            f"{REMEDY}"
        )
    if plan.mode is Mode.REPLACE:
        raise LedgerRefused(f"Plan {plan.plan_id} has taken the target's place as a whole: {REMEDY}")
    if plan.write.ordered:
        raise LedgerRefused(f"Rows of plan {plan.plan_id} took each other's place in the order of a log: {REMEDY}")
    if plan.transform is not None:
        raise LedgerRefused(f"A transform may have moved rows between the ranges of plan {plan.plan_id}: {REMEDY}")


log = logging.getLogger(__name__)

WORTH = 1.5
"""A range is cut where it is expected to hold more than so many times what is wanted."""


def parts_for(record: RangeRecord, rows: int | None) -> int:
    """Return into how many pieces a range is to be cut so that each holds about ``rows``; 1: it stays as it is."""
    return math.ceil(record.planned_rows / rows) if rows and record.planned_rows > WORTH * rows else 1


@dataclass(frozen=True, kw_only=True)
class RangeSplitter:
    """Cuts ranges of one plan."""

    plan: Plan
    ledger: Ledger
    source: Source
    sink: Sink

    def cut(self, record: RangeRecord, parts: int, *, tried: bool) -> bool:
        """Put smaller ranges in the place of one that this lane holds, and give its credit back; whether it was done.

        ``tried``: whether an attempt at it was ever submitted. The sink refuses the range before others take its place,
        so that nothing of it can come in beside them, even if the ledger is restored to a time before the cut. A lane
        that was killed in between has left the rest undone, which is made up for here, also with one piece. Rows of a
        log that go in by its order are not cut: their pieces would come too late. A source that does not answer now
        leaves the range as it is. ``LedgerRefused`` where the sink has seen the new numbers before.
        """
        if record.ordered:
            return False
        marker = self._marker(record) if parts > 1 or record.attempt > 1 else None
        begun = marker is not None and marker.revoked
        if (marker is not None and not begun) or (parts < 2 and not begun):
            return False
        try:
            pieces = self.source.cut(self.plan.read, record.bounds, parts=max(2, parts))
        except (SourceUnavailable, SourceRefused) as error:
            if begun:
                raise
            log.info("Range %s stays whole: %s", record.seq, error)
            return False
        if not begun and (len(pieces) < 2 or not self._is_closed(record, tried=tried)):
            return False
        made = self.ledger.recut(record.plan_id, record.seq, attempt=record.attempt, pieces=pieces)
        if made:
            log.info("Range %s was cut into the ranges %s to %s.", record.seq, made[0], made[-1])
            self._check_numbers(dict(zip(made, pieces, strict=True)))
        return bool(made)

    def _marker(self, record: RangeRecord) -> Marker | None:
        return self.sink.markers(record.plan_id, [record.slice_id]).get(record.slice_id)

    def _is_closed(self, record: RangeRecord, *, tried: bool) -> bool:
        """Whether nothing of the range can come into the sink any more: it refuses it, or was never sent any of it."""
        try:
            return self.sink.revoke(self.plan, record.slice_id, record.bounds)
        except SinkRefused as error:
            log.info("The target keeps no mark of the cut of range %s: %s", record.seq, error)
            return not tried

    def _check_numbers(self, made: Mapping[int, Bounds]) -> None:
        """Raise ``LedgerRefused`` where the sink has seen these numbers with other bounds: the ledger is older."""
        marked = self.sink.markers(self.plan.plan_id, [slice_id(seq) for seq in made])
        for seq, bounds in made.items():
            marker = marked.get(slice_id(seq))
            if marker is not None:
                check_marked(marker.bounds, bounds.to_json(), slice_id=marker.slice_id, plan_id=self.plan.plan_id)
