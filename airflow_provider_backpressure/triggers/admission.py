"""The trigger that waits at a closed gate without a worker slot."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.polling import PollPolicy
from airflow_provider_backpressure.core.watch import Watch, Watcher, Why
from airflow_provider_backpressure.exceptions import Terminal, Transient
from airflow_provider_backpressure.hooks.spark import memory_reader
from airflow_provider_backpressure.triggers.ledger import opened_ledger

CLASSPATH = "airflow_provider_backpressure.triggers.admission.AdmissionTrigger"

FIRST_LOOK_SECONDS = 5.0
"""Airflow may take a task that is resumed at once for one that ended without saying so: its scheduler has yet to hear
then that the deferring process has ended. A gate that stayed closed for the inline wait may stay so a little longer."""


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


class AdmissionTrigger(BaseTrigger):
    """Fires when the gate opens, when nothing is left to wait for, or when a silent lane's credit must be settled.

    The event is ``{"why": …, "sentence": …}``, with ``why`` from ``core.watch.Why`` or ``"refused"`` for an error that
    waiting does not cure; the resumed task meets that error itself. Errors that may pass are waited out, and the gate
    counts as closed meanwhile. Without ``memory_url`` the executors' memory is not watched here: the resumed task looks
    at it again before it submits anything, so a gate closed by memory then costs a short worker slot per look.
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
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return CLASSPATH, asdict(self.wait)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the gate until there is something to tell. Every look runs in a thread of its own."""
        policy = PollPolicy(initial=min(0.2, self.wait.poll_interval), maximum=self.wait.poll_interval)
        watcher: Watcher | None = None
        await asyncio.sleep(self.wait.first_look)
        for pause in policy.waits():
            try:
                watcher = watcher or await self._watcher()
                why = await asyncio.to_thread(watcher.look)
            except Transient as error:
                self.log.warning("The gate cannot be seen and counts as closed: %s", error)
            except Terminal as error:
                yield _event("refused", str(error))
                return
            else:
                if why is not None:
                    yield _event(why, SENTENCES[why])
                    return
            await asyncio.sleep(pause)

    async def _watcher(self) -> Watcher:
        wait = self.wait
        return Watcher(
            ledger=await opened_ledger(wait.backpressure_conn_id),
            hydration_id=wait.hydration_id,
            budget=Budget(**wait.budget),
            watch=Watch(wait.watch),
            memory=memory_reader(wait.memory_url) if wait.memory_url else None,
            plan_id=wait.plan_id,
            seq=wait.seq,
            lane=wait.lane,
        )


SENTENCES = {
    Why.OPEN: "the gate is open",
    Why.SETTLED: "there is nothing left to wait for",
    Why.ABANDONED: "the lease of a range in flight has run out",
}


def _event(why: str, sentence: str) -> TriggerEvent:
    return TriggerEvent({"why": str(why), "sentence": sentence})  # type: ignore[no-untyped-call]
