"""The policy at the limit of the log that a source keeps, for triggers: it acts while no lane does."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from asgiref.sync import sync_to_async

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.hooks.endpoints import endpoint
from airflow_provider_backpressure.hooks.hydration_session import SourceDeclaration


@dataclass(kw_only=True)
class Guard:
    """One source's log, as a trigger looks after it. For one event loop; what hangs holds no other trigger up."""

    source: SourceDeclaration
    """With the policy, which no ledger knows."""
    _open: Callable[[], Source] | None = None

    async def look(self, hydration: Hydration, *, replaying: bool | None) -> None:
        """Let the policy act where a log is followed; raises what :meth:`..core.ports.ChangeLog.guard` raises."""
        if hydration.plan is None or hydration.plan.consistency is not Consistency.CATCH_UP:
            return
        if self._open is None:
            # Airflow's channel to the triggerer belongs to the event loop: a thread of asyncio's own cannot use it.
            self._open = await sync_to_async(self._make_open)()
        await asyncio.to_thread(_guard, self._open, hydration.id, replaying)

    def forget(self) -> None:
        """Read the connection again the next time: it may have changed."""
        self._open = None

    def _make_open(self) -> Callable[[], Source]:
        found = endpoint(self.source.conn_id, *self.source.conn_types)
        return lambda: self.source.open(found)


def _guard(opened: Callable[[], Source], hydration_id: str, replaying: bool | None) -> None:
    with closing(opened()) as source:
        source.log(hydration_id).guard(replaying=replaying)
