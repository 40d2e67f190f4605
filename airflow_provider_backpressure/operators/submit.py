"""The task that runs one range, for DAGs with a task per range."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from airflow.sdk import Context

from airflow_provider_backpressure import openlineage, settings
from airflow_provider_backpressure.base_operator import TransformTask, range_lane
from airflow_provider_backpressure.core.admission.gate_watcher import Watch, part
from airflow_provider_backpressure.core.admission.permits_and_reservations import gate_decision
from airflow_provider_backpressure.core.default_limits import LEASE_SECONDS
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.gate.hydration_record import Permit
from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.core.gate.task_activity import Step
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.links import RangeLink
from airflow_provider_backpressure.openlineage import Lineage
from airflow_provider_backpressure.operators.hydrate import check_one_task
from airflow_provider_backpressure.operators.lane_progress import ENDED, LaneClock, ProgressLog


class SubmitRangeOperator(TransformTask):
    """Submits one range and awaits its commit.

    It takes the credit that ``SinkCommitSensor`` reserved for the range; where there is none (any more), it waits for
    one at the gate itself: for a moment in its worker slot, then deferred. A committed range is left alone.

    :param seq: number of the range in its plan (templated)
    """

    template_fields: Collection[str] = (*TransformTask.template_fields, "seq")
    operator_extra_links = (*TransformTask.operator_extra_links, RangeLink())

    def __init__(self, *, seq: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seq = seq
        self._clock: LaneClock | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the range. Returns its numbers as the sink's marker has them."""
        self._clock = LaneClock()
        seq = int(self.seq)
        lane = range_lane(context, seq)
        with self.open_ports(context) as opened:
            hydration, plan = opened.hydration()
            check_one_task(plan.consistency, what="tasks of one range each")
            self.take_turn(context, opened, hydration.id)
            hydrator = opened.hydrator(lane=lane, inline_wait=settings.inline_wait(), clock=self._clock)
            one = OneRange(opened=opened, hydrator=hydrator, seq=seq)
            progress = ProgressLog(ledger=opened.ledger, hydration_id=hydration.id, log=self.log)
            try:
                with self.report(context, opened, hydration.id, Step.RANGES, write=progress.write):
                    record = one.commit()
            except ENDED:
                hydrator.cancel()
                raise
        if record is None:
            self.wait_deferred(
                hydration_id=hydrator.hydration_id,
                budget=hydrator.budget,
                watch=Watch.GATE,
                reasons=one.reasons,
                plan_id=hydrator.plan.plan_id,
                seq=seq,
                lane=lane,
            )
        if openlineage.is_installed():
            self.lineages[hydration.id] = Lineage(plan=plan, rows=record.rows, bytes=record.bytes)
        self.log.info("Range %s is %s: %s rows.", seq, record.state, record.rows)
        return {"seq": seq, "attempt": record.attempt, "rows": record.rows, "checksum": record.checksum}

    def on_kill(self) -> None:
        """Let the job be ended and its credit released; called within a signal handler."""
        if self._clock is not None:
            self._clock.end()


@dataclass(kw_only=True)
class OneRange:
    """One range on its way from wherever it is to committed."""

    opened: HydrationSession
    hydrator: Hydrator
    seq: int
    refused: Decision | None = None
    """What closed the gate at the last look."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the gate was closed at the last look."""
        return self.refused.reasons if self.refused else ()

    def commit(self) -> RangeRecord | None:
        """Return the range once it is committed (or revoked), or ``None`` where it got no permit for a while."""
        hydrator, clock = self.hydrator, self.hydrator.clock
        until = clock.monotonic() + hydrator.inline_wait
        waits = hydrator.poll.waits()
        try:
            while (found := self._look()) is None and (left := until - clock.monotonic()) > 0:
                hydrator.waiting.wait(self.refused, pause=next(waits), most=left)
        finally:
            hydrator.waiting.done()
        return found

    def _look(self) -> RangeRecord | None:
        while True:
            record = self._record()
            if record.state in (RangeState.COMMITTED, RangeState.REVOKED):
                return record
            permit = self._permit(record)
            if permit is None:
                return None
            self.hydrator.run_one(permit.range)

    def _record(self) -> RangeRecord:
        return self.opened.ledger.range(self.hydrator.plan.plan_id, self.seq)

    def _permit(self, record: RangeRecord) -> Permit | None:
        """Use the reservation, or settle what an earlier try left and ask the gate."""
        lane, runner = self.hydrator.lane, self.opened.runner
        if record.state is RangeState.FAILED:
            self.opened.ledger.retry_failed(record.plan_id)
        elif record.state is RangeState.ADMITTED and record.lane == lane and record.session_id:
            self.hydrator.recover()
        elif record.state is RangeState.ADMITTED and record.lane == lane:
            claimed = self._claim(record)
            if claimed is not None:
                return claimed
            self.opened.ledger.release(
                record.plan_id, self.seq, attempt=record.attempt, error="the gate closed before it was submitted"
            )
        self.hydrator.reap_expired()
        answer = self.hydrator.limiter.acquire(lane=lane, session_id=runner.session_id, seq=self.seq)
        if isinstance(answer, Permit):
            return answer
        self.refused = answer.decision
        return None

    def _claim(self, record: RangeRecord) -> Permit | None:
        """Turn the reservation into the permit, unless memory has risen since it was made."""
        state = self.opened.ledger.gate(record.hydration_id)
        others = replace(
            state, in_flight=state.in_flight - 1, reserved_bytes=max(0, state.reserved_bytes - record.memory_bytes)
        )
        reading = self.hydrator.limiter.read_memory(others)
        decision = gate_decision(others, reading, self.hydrator.budget)
        if not part(decision, Watch.MEMORY, in_flight=others.in_flight).open:
            return None
        return self.opened.ledger.admit(
            record.hydration_id,
            lane=self.hydrator.lane,
            session_id=self.opened.runner.session_id,
            lease_seconds=LEASE_SECONDS,
            memory_bytes=record.memory_bytes,
            seq=self.seq,
        )
