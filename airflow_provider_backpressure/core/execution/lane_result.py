"""What a lane submits, counts and returns."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.signals import CREDITS, Decision
from airflow_provider_backpressure.core.planning.change_windows import find_released_position
from airflow_provider_backpressure.core.ports import Keeper, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.snapshot.messages import LastWrite, RangeSpec
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    OutOfMemory,
    PlanSuperseded,
    SnapshotLost,
    WorkerLost,
)

log = logging.getLogger(__name__)


class Outcome(Enum):
    """Why a lane stopped."""

    DONE = "done"
    """Nothing is left for this lane: every range is committed, or in flight with another lane."""
    CLOSED = "closed"
    """The gate stayed closed for the inline wait, with nothing of this lane in flight."""


@dataclass(frozen=True, kw_only=True)
class LaneResult:
    """What a lane did until it stopped."""

    outcome: Outcome
    committed: int
    """Ranges committed by this lane in this life."""
    decision: Decision | None = None
    """The refusal's decision where the gate was closed."""

    @property
    def crowded_out(self) -> bool:
        """Whether it stopped for nothing but the credits that other lanes of the hydration have."""
        return self.decision is not None and self.decision.closing <= {CREDITS}


class Job(NamedTuple):
    """An attempt of a range in flight."""

    record: RangeRecord
    began: float
    """When it was submitted, by the lane's clock."""


def spec_for(
    plan: Plan,
    record: RangeRecord,
    source: Source,
    snapshot: str | None = None,
    last_write: LastWrite | None = None,
    task_cpus: int = 1,
) -> RangeSpec:
    """Return the message for the latest attempt of a range, which is read in ``snapshot``."""
    return RangeSpec(
        hydration_id=record.hydration_id,
        plan_id=plan.plan_id,
        epoch=plan.epoch,
        seq=record.seq,
        attempt=record.attempt,
        tag=record.tag or "",
        path=plan.path,
        read=replace(plan.read, snapshot=snapshot, marks_tombstones=plan.write.ordered and not plan.replays),
        write=plan.write,
        slices=(source.slice(plan.read, record.bounds, record.slice_id),),
        transform=plan.transform,
        last_write=last_write,
        task_cpus=task_cpus,
    )


def is_too_large(record: RangeRecord, error: Exception, lost: set[int]) -> bool:
    """Whether an attempt failed for its memory: it said so, or its process ended without a word for the second time.

    ``lost``: ranges whose process has ended so before; this one is added.
    """
    again = isinstance(error, WorkerLost) and record.seq in lost
    if isinstance(error, WorkerLost):
        lost.add(record.seq)
    return again or isinstance(error, OutOfMemory)


class SnapshotCount:
    """Counts the rows of a snapshot in a thread, while ranges are read."""

    def __init__(self, keeper: Keeper) -> None:
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="count")
        self._counting: Future[int | None] | None = pool.submit(keeper.count)
        pool.shutdown(wait=False)

    def apply(self, plan: Plan, *, wait: bool = False) -> Plan | None:
        """Return the plan with the count, once; ``None`` while it is not known, and where it cannot be."""
        total = self._result(wait=wait)
        if total is None:
            return None
        frontier = dict.fromkeys(plan.frontier, total) if len(plan.frontier) == 1 else plan.frontier
        return replace(plan, total=total, frontier=frontier, counted=True)

    def _result(self, *, wait: bool) -> int | None:
        if self._counting is None or not (wait or self._counting.done()):
            return None
        counting, self._counting = self._counting, None
        try:
            return counting.result()
        except BackpressureError as error:
            log.warning("How many rows the snapshot holds is not known: %s", error)
            return None


def check_snapshot(plan: Plan, ledger: Ledger) -> None:
    """Raise ``SnapshotLost`` where an earlier life has committed ranges in its snapshot, and others are left."""
    if plan.consistency is not Consistency.SNAPSHOT:
        return
    counts = ledger.counts(plan.plan_id)
    if counts.committed and counts.open:
        raise SnapshotLost(
            f"{counts.committed} of {counts.total} ranges of plan {plan.plan_id} were read in a snapshot that ended "
            "with the lane that kept it."
        )


def fence_earlier_snapshots(plan: Plan, *, hydration_id: str, ledger: Ledger, sink: Sink) -> Plan:
    """Refuse what an earlier life has submitted and what is not committed yet: it reads in another snapshot.

    Returns the plan with the epoch that holds the target now.
    """
    if plan.consistency is not Consistency.SNAPSHOT or not ledger.counts(plan.plan_id).open:
        return plan
    epoch = sink.renew(plan.plan_id)
    if epoch is None:
        raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {plan.write.target}.")
    plan = replace(plan, epoch=epoch)
    ledger.take_over(hydration_id, plan)
    return plan


def release_log(source: Source, hydration_id: str, marker: Marker) -> None:
    """Let the source forget the log that the sink has committed; what goes wrong now goes with a later one."""
    upto = find_released_position([marker])
    if upto is None:
        return
    try:
        source.log(hydration_id).release(upto)
    except BackpressureError as error:
        log.warning("The source still keeps its log before %s: %s", upto.label, error)
