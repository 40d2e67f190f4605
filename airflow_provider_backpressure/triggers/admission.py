"""The triggers that wait at a closed gate, or at several at once, without a worker slot."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_backpressure.core.admission.gate_watcher import Watch, Watcher, Why
from airflow_provider_backpressure.core.admission.health_measurements import HealthWatch
from airflow_provider_backpressure.core.admission.permits_and_reservations import NONE_SEEN, Readings, read_gate
from airflow_provider_backpressure.core.config import Budget, Consistency
from airflow_provider_backpressure.core.default_limits import HEARTBEAT_SECONDS
from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.exceptions import SnapshotLost, SourceUnavailable, Terminal, Transient
from airflow_provider_backpressure.hooks.recorded_declaration import from_plain, open_recorded_health
from airflow_provider_backpressure.hooks.spark_and_yarn import memory_reader
from airflow_provider_backpressure.triggers.between_runs import Guard
from airflow_provider_backpressure.triggers.shared_ledger import TurnWaiter, open_ledger_and_push

CLASSPATH = "airflow_provider_backpressure.triggers.admission.AdmissionTrigger"
CLASSPATH_OF_SEVERAL = "airflow_provider_backpressure.triggers.admissions.AdmissionsTrigger"
"""As Airflow's database has it: :mod:`..triggers` keeps the names that its modules had."""
MOST_GATES = 50
"""Most gates that one deferred task waits at; there may be more hydrations behind them."""

FIRST_LOOK_SECONDS = 5.0
"""Airflow may take a task that is resumed at once for one that ended without saying so: its scheduler has yet to hear
then that the deferring process has ended. A gate that stayed closed for the inline wait may stay so a little longer."""
GUARD_SECONDS = 10.0
"""Seconds between two looks at what the source keeps of its log."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """What a task waits for, in plain values: it travels as JSON. See ``Watcher`` for their meaning."""

    hydration_id: str
    backpressure_conn_id: str
    budget: dict[str, Any]
    """The budget's fields."""
    watch: str
    memory_url: str | None = None
    """Where the executors' memory is read without a Spark session."""
    plan_id: str = ""
    seq: int | None = None
    lane: str | None = None
    poll_interval: float = 1.0
    """Most seconds between two looks."""
    first_look: float = FIRST_LOOK_SECONDS
    """Seconds before the first look."""
    remind_after: float | None = None
    """Seconds after which it fires though nothing has changed, so that the task can report it."""
    also: Sequence[str] = ()
    """Other hydrations of the waiting task, which are behind this one; it is heard of them too."""
    source: str = ""
    """The declaration whose log is looked after, as :func:`..hooks.recorded_declaration.text` has it; empty: none."""


class AdmissionTrigger(BaseTrigger):
    """Fires when the gate opens, when nothing is left to wait for, or when a silent lane's credit must be settled.

    The event is ``{"why": …, "sentence": …, "waited": seconds}``, with ``why`` from
    ``core.admission.gate_watcher.Why``, ``"closed"`` after ``remind_after``, or ``"refused"`` for an error that waiting
    does not cure; the resumed task meets that error itself. Errors that may pass are waited out, and the gate counts as
    closed meanwhile. Without ``memory_url`` the executors' memory is not watched here: the resumed task looks at it
    again before it submits anything, so a gate closed by memory then costs a short worker slot per look.

    Under ``catch_up`` the policy at the limit of the source's log acts from here too; the resumed task meets what it
    finds. Where the budget declares signals, source and sink are opened as the plan has them, and looked at in a thread
    that all triggers of this process share.
    """

    def __init__(
        self,
        *,
        hydration_id: str,
        backpressure_conn_id: str,
        budget: dict[str, Any],
        watch: str,
        memory_url: str | None = None,
        plan_id: str = "",
        seq: int | None = None,
        lane: str | None = None,
        poll_interval: float = 1.0,
        first_look: float = FIRST_LOOK_SECONDS,
        remind_after: float | None = None,
        also: Sequence[str] = (),
        source: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wait = Wait(
            hydration_id=hydration_id,
            backpressure_conn_id=backpressure_conn_id,
            budget=budget,
            watch=watch,
            memory_url=memory_url,
            plan_id=plan_id,
            seq=seq,
            lane=lane,
            poll_interval=poll_interval,
            first_look=first_look,
            remind_after=remind_after,
            also=[*also],
            source=source,
        )
        self._guard = Guard(source=from_plain(json.loads(source))) if source else None
        self._health: HealthWatch | None = None
        self._waiter: TurnWaiter | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return CLASSPATH, asdict(self.wait)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the gate until there is an event. Every read runs in a thread of its own."""
        began = time.monotonic()
        try:
            await asyncio.sleep(self.wait.first_look)
            event = await self._event()
            event.payload["waited"] = round(time.monotonic() - began, 3)
            yield event
        finally:
            if self._waiter is not None:
                self._waiter.done()
            if self._health is not None:
                self._health.close()

    async def _event(self) -> TriggerEvent:
        policy = PollPolicy(initial=min(0.2, self.wait.poll_interval), maximum=self.wait.poll_interval)
        watcher: Watcher | None = None
        began = guarded = beaten = time.monotonic()
        for pause in policy.waits():
            seen: Decision | None = None
            try:
                watcher = watcher or await self._watcher()
                why = await asyncio.to_thread(watcher.look)
                seen = watcher.last
                if why is None and time.monotonic() >= beaten + HEARTBEAT_SECONDS:
                    # The task that waits has no process, so its trigger is heard in its place.
                    await asyncio.to_thread(watcher.ledger.hear, [self.wait.hydration_id, *self.wait.also])
                    beaten = time.monotonic()
                if why is None and time.monotonic() >= guarded + GUARD_SECONDS:
                    await self._guard_log(watcher.ledger)
                    guarded = time.monotonic()
            except (Terminal, SnapshotLost) as error:
                return _event("refused", str(error))
            except (Transient, AirflowRuntimeError) as error:
                self.log.warning("The gate cannot be seen and counts as closed: %s", error)
            else:
                if why is not None:
                    return _event(why, SENTENCES[why])
            left = math.inf if self.wait.remind_after is None else began + self.wait.remind_after - time.monotonic()
            if left <= 0:
                return _event("closed", "the gate is still closed, which is to be reported")
            # The source's log is checked although no change of the gate has arrived.
            await self._wait(seen, pause, min(left, HEARTBEAT_SECONDS if self._guard is None else GUARD_SECONDS))
        raise AssertionError("a policy's waits have no end")

    async def _guard_log(self, ledger: Ledger) -> None:
        """Let the policy act at the limit of the log that is kept meanwhile: no lane does, where none has a job."""
        if self._guard is None:
            return
        plan = (hydration := await asyncio.to_thread(ledger.hydration, self.wait.hydration_id)).plan
        if plan is None or plan.consistency is not Consistency.CATCH_UP:
            # No log is kept for what this task waits for, so the ledger is not asked again.
            self._guard = None
            return
        try:
            await self._guard.look(hydration, replaying=plan.replays)
        except SourceUnavailable as error:
            self._guard.forget()
            self.log.warning("What the source keeps of its log is not known: %s", error)

    async def _wait(self, seen: Decision | None, pause: float, most: float) -> None:
        if self._waiter is None:
            await asyncio.sleep(pause)
        else:
            await self._waiter.wait(seen, pause, most=most)

    async def _watcher(self) -> Watcher:
        wait, budget = self.wait, Budget(**self.wait.budget)
        ledger, push = await open_ledger_and_push(wait.backpressure_conn_id)
        self._waiter = self._waiter or TurnWaiter(push, ledger, wait.hydration_id, wait.seq)
        return Watcher(
            ledger=ledger,
            read_gate=push.read_gate if push else read_gate,
            hydration_id=wait.hydration_id,
            budget=budget,
            health=await self._readings(ledger, budget),
            watch=Watch(wait.watch),
            memory=memory_reader(wait.memory_url) if wait.memory_url else None,
            plan_id=wait.plan_id,
            seq=wait.seq,
            lane=wait.lane,
        )

    async def _readings(self, ledger: Ledger, budget: Budget) -> Callable[[], Readings]:
        """Begin to look at what the budget declares, and return what asks for the latest readings."""
        if not budget.signals or Watch(self.wait.watch) is Watch.MEMORY:
            return lambda: NONE_SEEN
        if self._health is None:
            hydration = await asyncio.to_thread(ledger.hydration, self.wait.hydration_id)
            self._health = open_recorded_health(hydration, ledger, budget)
        # Airflow's channel to the triggerer belongs to the event loop, so a thread of asyncio's own could not use it
        # for the connections.
        await sync_to_async(self._health.start)()
        return self._health.readings


SENTENCES = {
    Why.OPEN: "the gate is open",
    Why.SETTLED: "there is nothing left to wait for",
    Why.ABANDONED: "the lease of a range in flight has run out",
}


def _event(why: str, sentence: str) -> TriggerEvent:
    return TriggerEvent({"why": str(why), "sentence": sentence})  # type: ignore[no-untyped-call]


class AdmissionsTrigger(BaseTrigger):
    """Fires when the first of several gates has an event, as :class:`AdmissionTrigger` gives it.

    The event names the ``hydration_ids`` that were waited for.

    :param waits: arguments of an :class:`AdmissionTrigger` for each gate
    """

    def __init__(self, *, waits: Sequence[dict[str, Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits = [*waits]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return CLASSPATH_OF_SEVERAL, {"waits": self.waits}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the gates until there is an event."""
        looks = [asyncio.create_task(_first(AdmissionTrigger(**wait))) for wait in self.waits]
        try:
            done, _ = await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
            event = done.pop().result()
        finally:
            for look in looks:
                look.cancel()
            await asyncio.gather(*looks, return_exceptions=True)
        event.payload["hydration_ids"] = [wait["hydration_id"] for wait in self.waits]
        yield event


async def _first(trigger: AdmissionTrigger) -> TriggerEvent:
    events = trigger.run()
    try:
        return await anext(events)
    finally:
        await events.aclose()  # type: ignore[attr-defined]
