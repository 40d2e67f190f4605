"""The trigger that waits until another run has done with a hydration."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.exceptions import Terminal, Transient
from airflow_provider_backpressure.hooks.backpressure import is_running
from airflow_provider_backpressure.triggers.admission import FIRST_LOOK_SECONDS
from airflow_provider_backpressure.triggers.shared_ledger import open_shared_ledger

CLASSPATH = "airflow_provider_backpressure.triggers.turn.TurnTrigger"
"""As Airflow's database has it: :mod:`..triggers` keeps the names that its modules had."""
LOOK_SECONDS = 3.0
"""Seconds between two looks; each asks the ledger, and Airflow for the state of the run."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Whom a run waits for, in plain values: it travels as JSON."""

    hydration_id: str
    backpressure_conn_id: str
    dag_id: str
    run_id: str
    """The run that has the hydration."""
    look_interval: float = LOOK_SECONDS
    first_look: float = FIRST_LOOK_SECONDS
    """Seconds before the first look."""


class TurnTrigger(BaseTrigger):
    """Fires when the run that has the hydration has released it, or no longer runs for Airflow: ended, deleted,
    or cleared and queued again.

    The event is ``{"why": …, "sentence": …}``. It is only logged: the resumed task asks the ledger for its
    turn again, and may find that a third run was quicker.
    """

    def __init__(
        self,
        *,
        hydration_id: str,
        backpressure_conn_id: str,
        dag_id: str,
        run_id: str,
        look_interval: float = LOOK_SECONDS,
        first_look: float = FIRST_LOOK_SECONDS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.turn = Turn(
            hydration_id=hydration_id,
            backpressure_conn_id=backpressure_conn_id,
            dag_id=dag_id,
            run_id=run_id,
            look_interval=look_interval,
            first_look=first_look,
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return CLASSPATH, asdict(self.turn)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the turn may be due. Nothing here blocks the event loop."""
        ledger: Ledger | None = None
        await asyncio.sleep(self.turn.first_look)
        while True:
            try:
                ledger = ledger or await open_shared_ledger(self.turn.backpressure_conn_id)
                over = await self._look(ledger)
            except (Transient, AirflowRuntimeError) as error:
                self.log.warning("The next turn cannot be read now: %s", error)
            except Terminal as error:
                yield _event("refused", str(error))
                return
            else:
                if over is not None:
                    yield _event("turn", over)
                    return
            await asyncio.sleep(self.turn.look_interval)

    async def _look(self, ledger: Ledger) -> str | None:
        turn = self.turn
        found = await asyncio.to_thread(ledger.hydration, turn.hydration_id)
        if found.holder != turn.run_id:
            return f"run {turn.run_id} has done with the hydration"
        # Airflow's channel to the triggerer belongs to the event loop, so a thread of asyncio's own could not use it.
        if not await sync_to_async(is_running)(turn.dag_id, turn.run_id):
            return f"run {turn.run_id} does not run any more"
        return None


def _event(why: str, sentence: str) -> TriggerEvent:
    return TriggerEvent({"why": why, "sentence": sentence})  # type: ignore[no-untyped-call]
