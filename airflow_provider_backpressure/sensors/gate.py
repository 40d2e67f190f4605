"""Sensors that hold a task back until a part of the gate is open."""

from collections.abc import Callable, Collection
from typing import Any

from airflow.sdk import BaseSensorOperator, Context

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.base_operator import HydrationTask, airflow_errors, lane_name, range_lane
from airflow_provider_backpressure.core.admission.gate_watcher import Watch, Watcher, Why
from airflow_provider_backpressure.core.admission.permits_and_reservations import read_gate
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.poll_policy import SystemClock
from airflow_provider_backpressure.core.push.gate_wait import Parked
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.hooks.spark_and_yarn import memory_reader, memory_url


class GateSensor(HydrationTask, BaseSensorOperator):
    """Base of both sensors. They look by the same functions as lanes do.

    :param deferrable: wait in the triggerer (default); otherwise in a worker slot, or by ``mode="reschedule"``
    """

    watch: Watch
    begins_work = False

    def __init__(self, *, deferrable: bool = True, poke_interval: float = 1.0, **kwargs: Any) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.deferrable = deferrable
        self._watcher: Watcher | None = None
        self._opened: HydrationSession | None = None
        self._parked: Parked | None = None

    def execute(self, context: Context) -> Any:
        """Wait."""
        with self.open_ports(context) as opened:
            self.take_turn(context, opened, opened.hydration()[0].id)
            self._opened, self._watcher = opened, self._make_watcher(context, opened)
            if not self.deferrable:
                return self._wait_in_slot(context, opened)
            if self.poke(context):
                return None
            watcher = self._watcher
        self.wait_deferred(
            hydration_id=watcher.hydration_id,
            budget=watcher.budget,
            watch=self.watch,
            reasons=watcher.last.reasons if watcher.last else (),
            plan_id=watcher.plan_id,
            seq=watcher.seq,
            lane=watcher.lane,
            timeout=self.timeout,
        )

    def poke(self, context: Context) -> bool:
        """Look once; settle what a silent lane left, so that its credit comes back."""
        assert self._watcher is not None
        assert self._opened is not None
        with airflow_errors():
            why = self._look()
            if why is Why.ABANDONED:
                lane = self._watcher.lane or "sensor"
                self._opened.hydrator(lane=lane, inline_wait=settings.inline_wait()).reap_expired()
                why = self._watcher.look()
        if why is None:
            self.log.info("Closed: %s.", "; ".join(self._watcher.last.reasons) if self._watcher.last else "in flight")
        return why in (Why.OPEN, Why.SETTLED)

    def _look(self) -> Why | None:
        """Look, and once more where the wait until the next poke has brought a turn."""
        assert self._watcher is not None
        why = self._watcher.look()
        if why is None and self._parked is not None:
            self._parked.wait(self._watcher.last, pause=0.0, most=self.poke_interval)
            why = self._watcher.look()
        return why

    def _wait_in_slot(self, context: Context, opened: HydrationSession) -> Any:
        """Wait in the worker slot, or by Airflow's rescheduling."""
        if opened.push is None or self.reschedule:
            return super().execute(context)
        assert self._watcher is not None
        watcher = self._watcher
        self._parked = Parked(
            push=opened.push,
            hydration_id=watcher.hydration_id,
            ledger=opened.ledger,
            clock=SystemClock(),
            seq=watcher.seq,
        )
        try:
            return super().execute(context)
        finally:
            self._parked.done()

    def _make_watcher(self, context: Context, opened: HydrationSession) -> Watcher:
        hydration, plan = opened.hydration()
        return Watcher(
            ledger=opened.ledger,
            hydration_id=hydration.id,
            budget=opened.budget,
            watch=self.watch,
            memory=self._memory(opened) if self.watch is Watch.MEMORY else None,
            health=opened.readings() if self.watch is Watch.COMMIT else dict,
            read_gate=opened.push.read_gate if opened.push else read_gate,
            plan_id=plan.plan_id,
        )

    def _memory(self, opened: HydrationSession) -> Callable[[], MemoryReading | None]:
        """Return the live reading, without a Spark session where the connection says where to look."""
        address = memory_url(self.spark_conn_id)
        return memory_reader(address) if address else opened.runner.memory


class ExecutorMemorySensor(GateSensor):
    """Waits until the executors have the memory for one more range: by prediction and by the live reading."""

    watch = Watch.MEMORY


class HydrationQueueSensor(GateSensor):
    """Waits until it is the hydration's turn on its Spark cluster: so many sources hydrate there at once.

    Increments, and what is hydrated already, pass at once. The token lasts while ranges run; it is released at the
    end, and by its lease when its holder stops renewing it.
    """

    watch = Watch.QUEUE

    def _make_watcher(self, context: Context, opened: HydrationSession) -> Watcher:
        watcher = super()._make_watcher(context, opened)
        watcher.lane = lane_name(context)
        return watcher


class SinkCommitSensor(GateSensor):
    """Waits until the sink's commits leave a credit, and reserves it for one range.

    It watches the signals that the budget declares too: the health of source and sink, and queries.

    The reservation is in the ledger, so that no more ranges are submitted than there are credits, in whatever order
    Airflow starts mapped tasks. It lasts five minutes; ``SubmitRangeOperator`` of the same run and range takes it up.

    :param seq: number of the range in its plan (templated)
    """

    watch = Watch.COMMIT
    template_fields: Collection[str] = (*HydrationTask.template_fields, "seq")

    def __init__(self, *, seq: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seq = seq

    def _make_watcher(self, context: Context, opened: HydrationSession) -> Watcher:
        watcher = super()._make_watcher(context, opened)
        watcher.seq = int(self.seq)
        watcher.lane = range_lane(context, watcher.seq)
        return watcher
