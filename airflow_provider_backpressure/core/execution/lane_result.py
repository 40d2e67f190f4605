"""What a lane submits, and what it returns when it stops."""

from dataclasses import dataclass, replace
from enum import Enum

from airflow_provider_backpressure.core.gate.signals import CREDITS, Decision
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.snapshot.messages import RangeSpec
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord


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


def spec_for(plan: Plan, record: RangeRecord, source: Source, snapshot: str | None = None) -> RangeSpec:
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
    )
