"""What is done for a hydration between its runs: the policy at the limit of its log acts, and events are reported."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from asgiref.sync import sync_to_async

from airflow_provider_backpressure.core.admission.health_measurements import HealthWatch
from airflow_provider_backpressure.core.admission.permits_and_reservations import health_signals
from airflow_provider_backpressure.core.config import Budget, Consistency
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.catch_up_windows import open_log
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.notified_events import Kind, event, of_course
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LogLost,
    SnapshotLost,
    SourceRefused,
)
from airflow_provider_backpressure.hooks.hydration_session import SourceDeclaration
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of, open_recorded_health
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.triggers.event_callbacks import report_event
from airflow_provider_backpressure.triggers.followed_sources_poller import Unread


@dataclass(kw_only=True)
class Guard:
    """One source's log, as a trigger looks after it. For one event loop; what hangs holds no other trigger up."""

    source: SourceDeclaration
    """With the policy at the limit of its log."""
    _open: Callable[[], Source] | None = None
    _declaration: str | None = None

    async def look(self, hydration: Hydration, *, replaying: bool | None) -> None:
        """Let the policy act where a log is followed; raises what :meth:`..core.ports.ChangeLog.guard` raises."""
        if hydration.plan is None or hydration.plan.consistency is not Consistency.CATCH_UP:
            return
        if self._open is None or self._declaration != hydration.declaration:
            # Airflow's channel to the triggerer belongs to the event loop: a thread of asyncio's own cannot use it.
            self._open = await sync_to_async(self._make_open)(hydration)
            self._declaration = hydration.declaration
        await asyncio.to_thread(_guard, self._open, hydration, replaying)

    def forget(self) -> None:
        """Read the connection again the next time: it may have changed."""
        self._open = None

    def _make_open(self, hydration: Hydration) -> Callable[[], Source]:
        found, source = endpoint(self.source.conn_id, *self.source.conn_types), self.agree(hydration)
        return lambda: source.open(found)

    def agree(self, hydration: Hydration) -> SourceDeclaration:
        """Return the source with what it and the hydration's own declaration say of its log; both are written apart."""
        agree = getattr(self.source, "agree_on_limit", None)
        kept = declaration_of(hydration).source if agree and hydration.declaration is not None else None
        return agree(kept) if agree and type(kept) is type(self.source) else self.source


def _guard(opened: Callable[[], Source], hydration: Hydration, replaying: bool | None) -> None:
    with closing(opened()) as source:
        open_log(source, hydration.id, hydration.plan).guard(replaying=replaying)


log = logging.getLogger(__name__)

ALWAYS = frozenset({Kind.NOT_KEEPING_UP, Kind.SOURCE_TROUBLE})
"""Known by the statistics, which the poller keeps while a lane works and while none does."""
BETWEEN = frozenset({Kind.DATA_AT_RISK, Kind.LOG_LOST})
"""A lane that works looks at them itself, by its own budget."""


@dataclass(kw_only=True)
class IdleMaintenance:
    """One hydration, as a trigger looks after it. For one event loop; what hangs holds no other trigger up.

    To give a log up is as safe from here as from a lane: its next reader finds that it is gone, and no run continues
    after what was lost. So nothing has to be excluded meanwhile, not even a run that begins at this very moment.
    """

    source: SourceDeclaration
    budget: Budget
    """Its signals are those that warn."""
    callbacks: Sequence[Mapping[str, Any]]
    """Callbacks for events, see ``event_callbacks.as_callbacks``."""
    _guard: Guard = field(init=False)
    _looking: "asyncio.Task[None] | None" = None
    _health: HealthWatch | None = None
    _plan_id: str = ""
    """Of which the health is looked at: what is unread changes with it."""
    _said: frozenset[Kind] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Look after the source's log."""
        self._guard = Guard(source=self.source)

    def look(self, ledger: Ledger, unread: Unread, *, working: bool) -> None:
        """Begin to look, unless the look before is still under way. ``working``: whether a run is."""
        if unread.hydration is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(ledger, unread.hydration, unread, working))

    async def settle(self) -> None:
        """Wait for the look that is under way."""
        if self._looking is not None:
            await self._looking

    def end(self) -> None:
        """Look no longer. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
        self._rest()

    async def _look(self, ledger: Ledger, hydration: Hydration, unread: Unread, working: bool) -> None:
        try:
            found, looked = of_course(unread.course), ALWAYS
            if working:
                self._rest()
            else:
                found |= _join_alerts(await self._policy(hydration), await self._warnings(ledger, hydration))
                looked |= BETWEEN
            await self._tell(ledger, hydration, found, looked)
        except (BackpressureError, AirflowRuntimeError) as error:
            self._guard.forget()
            log.warning("%s is not maintained now: %s", hydration.source_identity, error)
        except Exception:
            log.exception("A look after %s failed.", hydration.source_identity)

    async def _policy(self, hydration: Hydration) -> dict[Kind, str]:
        """Let the policy act, and return what it finds of the log."""
        try:
            await self._guard.look(hydration, replaying=None)
        except SourceRefused as error:
            return {Kind.DATA_AT_RISK: str(error)}
        except (LogLost, SnapshotLost) as error:
            return {Kind.LOG_LOST: str(error)}
        return {}

    async def _warnings(self, ledger: Ledger, hydration: Hydration) -> dict[Kind, str]:
        if not self.budget.signals or hydration.plan is None:
            return {}
        if self._health is None or self._plan_id != hydration.plan.plan_id:
            self._rest()
            self._health = open_recorded_health(hydration, ledger, self.budget)
            self._plan_id = hydration.plan.plan_id
            await sync_to_async(self._health.start)()
            await asyncio.to_thread(self._health.settle)
        signals = health_signals(self._health.readings(), self.budget)
        sentences = [signal.sentence for signal in signals if signal.warning]
        return {Kind.DATA_AT_RISK: "; ".join(sentences)} if sentences else {}

    def _rest(self) -> None:
        """Ask nothing of the source, whose lane does."""
        if self._health is not None:
            self._health.close()
            self._health = None

    async def _tell(
        self, ledger: Ledger, hydration: Hydration, found: Mapping[Kind, str], looked: frozenset[Kind]
    ) -> None:
        if not self.callbacks:
            # Without callbacks it is written to the triggerer's log, once.
            for kind in found.keys() - self._said:
                log.warning("%s of %s: %s", kind, hydration.source_identity, found[kind])
            self._said = frozenset(found) | (self._said - looked)
            return
        present = {kind.value: 0.0 for kind in found}
        notice = await asyncio.to_thread(ledger.note, hydration.id, present, looked={kind.value for kind in looked})
        for due in notice.due:
            await report_event(self.callbacks, event(Kind(due), found[Kind(due)], hydration))


def _join_alerts(*each: Mapping[Kind, str]) -> dict[Kind, str]:
    """Return everything that was found, of one kind in one sentence."""
    found: dict[Kind, str] = {}
    for some in each:
        for kind, sentence in some.items():
            found[kind] = f"{found[kind]}; {sentence}" if kind in found else sentence
    return found
