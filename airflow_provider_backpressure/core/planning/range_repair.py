"""Repair: a range whose rows are wrong in the target is read once more, alone; one that nobody wants is skipped."""

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.exceptions import LedgerRefused

REMEDY = 'trigger the DAG with {"backpressure": "restart"} to read the whole again.'


def repair(
    ledger: Ledger, source: Source, sink: Sink, plan: Plan, record: RangeRecord, *, who: str, why: str | None = None
) -> int:
    """Plan a committed or failed range again and return how many rows were removed for it; the next run reads it.

    The source is asked first, and nothing is removed that it no longer has. Then the ledger has the plan verified again
    before another one follows it, the sink removes the rows, and the ledger takes the range back: killed in between,
    verification names the range again. Raises ``LedgerRefused`` where a range cannot be read again by itself, and what
    ``Source.check_range`` and ``Sink.discard`` do.
    """
    removed = 0
    if record.state is RangeState.COMMITTED:
        check_alone(plan)
        source.check_range(plan, record.bounds)
        if not ledger.mark_unverified(plan.plan_id):
            raise _not_current(record)
        removed = sink.discard(plan, record.slice_id, record.bounds)
    replan(ledger, plan, record, who=who, why=why)
    return removed


def replan(ledger: Ledger, plan: Plan, record: RangeRecord, *, who: str, why: str | None = None) -> None:
    """Plan a failed range again, or one whose rows were removed; ``LedgerRefused`` for every other one."""
    if not ledger.reopen(plan.plan_id, record.seq, who=who, why=why):
        raise _not_current(record)


def _not_current(record: RangeRecord) -> LedgerRefused:
    return LedgerRefused(f"Range {record.seq} is {record.state} and of the plan before, or in flight: leave it be.")


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
