"""The trigger that waits at several closed gates at once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_backpressure.triggers.admission import AdmissionTrigger

CLASSPATH = "airflow_provider_backpressure.triggers.admissions.AdmissionsTrigger"
MOST_GATES = 50
"""Most gates that one deferred task waits at; there may be more hydrations behind them."""


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
        return CLASSPATH, {"waits": self.waits}

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
