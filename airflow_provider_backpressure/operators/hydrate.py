"""The task that drains many ranges: a lane."""

import math
from typing import Any

from airflow.sdk import Context

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.hydrator import LaneResult, Outcome
from airflow_provider_backpressure.core.watch import Watch
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SnapshotLost
from airflow_provider_backpressure.hooks.hydration import Opened
from airflow_provider_backpressure.operators.lane import ENDED, LaneClock, ProgressLog
from airflow_provider_backpressure.task import TransformTask, lane_name

SNAPSHOTS = 3
"""How many snapshots one try of the task may take, one after the other."""
ONE_TASK = "A snapshot lives in the one task that keeps it, so {} need consistency='static'."


class HydrateOperator(TransformTask):
    """Drains the planned ranges through the gate, several at once, until none is left.

    At a closed gate with nothing in flight it waits for a moment and then gives its worker slot back until the gate
    opens. Retried or cleared, it first settles what its earlier life left in flight, and goes on from the ledger.

    Under ``snapshot`` consistency it keeps the source's snapshot open and so stays in its slot; a retry cannot go on in
    a snapshot that is gone, so it closes the plan, clears what that wrote, and reads from the beginning.

    :param lanes: how many such tasks share the hydration's credits
    :param lane_index: which of them this is, from 0; for ``expand``
    """

    def __init__(self, *, lanes: int = 1, lane_index: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= lane_index < lanes:
            raise InvalidDeclaration(f"A lane's index must be between 0 and {lanes - 1}, not {lane_index}.")
        self.lanes = lanes
        self.lane_index = lane_index
        self._clock: LaneClock | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Drain, or defer at a gate that stays closed. Returns how many ranges this task committed."""
        self._clock = LaneClock()
        with self.opened(context) as opened:
            hydration, plan = opened.hydration()
            if self.lanes > 1 and plan.consistency is Consistency.SNAPSHOT:
                raise InvalidDeclaration(ONE_TASK.format("several lanes"))
            self.take_turn(context, opened, hydration.id)
            opened.take_target()
            progress = ProgressLog(ledger=opened.ledger, hydration_id=hydration.id, log=self.log, unit=plan.unit)
            result = self._drained(context, opened, progress)
            progress.write()
        if result.outcome is Outcome.CLOSED:
            self.wait_deferred(
                hydration_id=hydration.id,
                budget=opened.budget,
                watch=Watch.GATE,
                reasons=result.decision.reasons if result.decision else (),
            )
        return {"hydration_id": hydration.id, "committed": result.committed}

    def _drained(self, context: Context, opened: Opened, progress: ProgressLog) -> LaneResult:
        """Return what the lane did; a plan whose snapshot is lost is closed and made anew, a few times."""
        for left in reversed(range(SNAPSHOTS)):
            hydrator = opened.hydrator(
                lane=lane_name(context),
                share=math.ceil(self.budget.credits / self.lanes),
                inline_wait=settings.inline_wait(),
                clock=self._clock,
                on_commit=progress.committed,
            )
            try:
                return hydrator.run()
            except ENDED:
                hydrator.cancel()
                raise
            except SnapshotLost as error:
                if not left:
                    raise
                self.log.warning("%s The plan is closed and the source is read again from its beginning.", error)
                opened.close_plan()
        raise AssertionError("the last one returns or raises")

    def on_kill(self) -> None:
        """Let the lane end its jobs and give their credits back; called within a signal handler."""
        if self._clock is not None:
            self._clock.end()
