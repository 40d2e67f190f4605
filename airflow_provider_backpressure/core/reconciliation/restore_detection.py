"""Whether ledger and sink are of each other, or one of them is from an older backup."""

from dataclasses import dataclass, replace
from enum import Enum

from airflow_provider_backpressure.core.gate.hydration_record import RangeCounts
from airflow_provider_backpressure.core.ports.sink import PlanRow
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.exceptions import RESTART


class Standing(Enum):
    """The relation of the ledger to the sink."""

    AGREED = "agreed"
    """They are of each other; or neither knows a plan that the other would have to."""
    LEDGER_BEHIND = "ledger_behind"
    """The sink knows more of this very hydration: the ledger was lost or restored, and follows."""
    SINK_BEHIND = "sink_behind"
    """The ledger knows more: the target was restored, emptied or taken. A person decides how to continue."""


def describe_unpublished(target: str, plan_id: str) -> tuple[str, str]:
    """Return what is said of a target that has the rows of a plan beside the old ones, although they were published."""
    what = f"{target} does not hold the new rows of plan {plan_id}, which the ledger has as published"
    return what, "it was restored from an older backup"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A relation, and one sentence about it, which says what to do where nothing is done by itself."""

    standing: Standing
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared. The ledger has to be read first: the sink commits before it, never after."""

    target: str
    plan: Plan | None
    """The ledger's."""
    counts: RangeCounts
    """The ledger's, of that plan."""
    row: PlanRow | None
    """The sink's."""
    unsettled: int = 0
    """Slices of the sink's plan that are committed there, by attempts that the ledger has not settled yet."""
    confirmed: int = 0
    """Ranges of the ledger that did not change under ``mirror``: an earlier plan's markers prove them."""
    finished: bool = False
    """Whether the ledger has the plan as verified, with its rows before the readers' eyes."""
    unknown: bool = False
    """Whether the sink has a marker of the plan that is of no range in the ledger: none of that number and bounds."""
    source_identity: str
    environment: str

    def find(self) -> Finding:
        """Return how they compare."""
        if self.plan is None:
            return self._lost()
        if not self.plan.epoch:
            return self._of_new_plan(self.plan, self.row)
        if self.row is None:
            return self._stop(f"{self.target} holds no plan any more", "it was restored, emptied or created again")
        if self.row.plan_id == self.plan.plan_id:
            return self._of_one_plan(self.plan, self.row)
        return self._of_two_plans(self.plan, self.row)

    def _lost(self) -> Finding:
        if self.row is not None and self._ours(self.row):
            return self._follow(self.row, "which the ledger has lost")
        return Finding(standing=Standing.AGREED)

    def _of_new_plan(self, plan: Plan, row: PlanRow | None) -> Finding:
        """Compare where the planner was killed before the sink knew of the plan, which takes the target next.

        The ledger may also be a copy of that moment: then the sink knows of later plans, or of this one's ranges.
        """
        if row is None and plan.held_by and plan.increment:
            return self._stop(f"{self.target} holds no plan any more", "it was restored, emptied or created again")
        if row is None or plan.held_by is None or (row.plan_id, row.epoch) == (plan.held_by, plan.held_epoch):
            return Finding(standing=Standing.AGREED)
        if row.plan_id != plan.plan_id:
            return self._of_two_plans(replace(plan, epoch=plan.held_epoch), row)
        if row.committed:
            return self._follow(row, "and the ledger none: the ledger was restored")
        return Finding(standing=Standing.AGREED)

    def _of_one_plan(self, plan: Plan, row: PlanRow) -> Finding:
        committed = self.counts.committed - self.confirmed
        ahead = row.committed - committed
        # What a late attempt has brought in since does not stand for what was lost.
        settled = row.committed - self.unsettled
        if row.epoch < plan.epoch or settled < committed:
            return self._stop(
                f"{self.target} has {settled} of the {committed} ranges that the ledger has as "
                f"committed, under epoch {row.epoch} of {plan.epoch}",
                "it was restored from an older backup",
            )
        if self.finished and not row.published:
            return self._stop(*describe_unpublished(self.target, plan.plan_id))
        behind = settled > committed and ahead > self.counts.admitted + self.counts.failed
        # Where a later snapshot may follow, a lane that was killed between both leaves only the epoch apart.
        newer = row.epoch > plan.epoch and not (plan.survives and self.counts.open)
        if newer or behind or self.unknown:
            return self._follow(row, f"and the ledger {committed}: the ledger was restored")
        return Finding(standing=Standing.AGREED)

    def _of_two_plans(self, plan: Plan, row: PlanRow) -> Finding:
        if row.epoch <= plan.epoch:
            return self._stop(
                f"{self.target} has plan {row.plan_id} of epoch {row.epoch}, and the ledger the later plan "
                f"{plan.plan_id} of epoch {plan.epoch}",
                "the target was restored from an older backup",
            )
        if self._ours(row):
            return self._follow(row, f"and the ledger is at the earlier plan {plan.plan_id}: it was restored")
        whose = (
            row.source_identity
            if row.plan is None or not row.plan.environment
            else (f"{row.source_identity} in environment {row.plan.environment}")
        )
        return Finding(
            standing=Standing.SINK_BEHIND,
            sentence=f"{self.target} was taken by plan {row.plan_id} of {whose} since plan {plan.plan_id}: one target "
            f"has one source; {RESTART}, if it is to be this one.",
        )

    def _ours(self, row: PlanRow) -> bool:
        """Whether the row is of this very source and environment, and holds all that a plan is made of."""
        return (
            row.plan is not None
            and row.source_identity == self.source_identity
            and row.plan.environment == self.environment
        )

    def _follow(self, row: PlanRow, how: str) -> Finding:
        sentence = f"{self.target} has {row.committed} committed ranges of plan {row.plan_id}, {how}"
        return Finding(standing=Standing.LEDGER_BEHIND, sentence=sentence)

    def _stop(self, what: str, why: str) -> Finding:
        sentence = (
            f"{what}: {why}. `airflow backpressure reindex` with --accept takes the target's word and reads again what "
            f"it lacks; or {RESTART}."
        )
        return Finding(standing=Standing.SINK_BEHIND, sentence=sentence)
