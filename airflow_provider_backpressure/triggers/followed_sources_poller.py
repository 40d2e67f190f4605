"""The light poller: looks at every source that is followed, for all triggers of a triggerer at once."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from asgiref.sync import sync_to_async

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.airflow_compat import initialize_metrics
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.monitoring.committed_frontier import follows, read_committed_frontier
from airflow_provider_backpressure.core.monitoring.source_observer import PRUNE_SECONDS, Observer, prune
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.hooks import metrics
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.triggers.shared_ledger import open_shared_ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Unread:
    """What is there to be brought."""

    hydration: Hydration | None
    """``None`` where nothing was ever planned."""
    course: Course | None

    @property
    def any(self) -> bool:
        """Whether a run would have something to do: also where the snapshot is not in yet.

        Before the first look at a followed source has ended, nothing is known of it, and nothing is said.
        """
        if self.course is None:
            return self.hydration is None or not follows(self.hydration.plan)
        return self.course.unread is None or self.course.unread > 0

    @property
    def known(self) -> Mapping[Any, int] | None:
        """How far the source is."""
        return self.course.latest.known if self.course else None

    @property
    def done(self) -> tuple[Any, ...]:
        """What changes when a run has brought something: plan and committed frontier."""
        plan = self.hydration.plan if self.hydration else None
        return plan.plan_id if plan else None, self.course.latest.committed if self.course else None

    def to_json(self) -> dict[str, Any]:
        """Return what the event of it carries."""
        hydration, course = self.hydration, self.course
        return {
            "hydration_id": hydration.id if hydration else None,
            "lag": course.lag if course else None,
            "unit": course.latest.unit.value if course else None,
            "upstream": dict(course.latest.known) if course else None,
        }


News = Mapping[tuple[str, str], Unread]
"""What is there to be brought, by the identities of source and sink."""


@dataclass(kw_only=True)
class Poller:
    """Polls sources in threads; one that hangs does not delay the others, and is not polled again meanwhile."""

    backpressure_conn_id: str
    interval: float
    _looks: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _open: dict[str, Callable[[], Source]] = field(default_factory=dict)
    _next_prune: float = 0.0

    async def rounds(self) -> AsyncIterator[News]:
        """Yield the news of each round, for ever. What fails is logged, and tried again in the next."""
        initialize_metrics()
        try:
            while True:
                began = time.monotonic()
                try:
                    news = await self._round()
                except (BackpressureError, AirflowRuntimeError) as error:
                    log.warning("Sources are not looked at now: %s", error)
                else:
                    yield news
                await asyncio.sleep(max(0.0, began + self.interval - time.monotonic()))
        finally:
            for look in self._looks.values():
                look.cancel()

    async def _round(self) -> News:
        ledger = await open_shared_ledger(self.backpressure_conn_id)
        every = await asyncio.to_thread(ledger.hydrations)
        mine = [one for one in every if one.environment == settings.environment()]
        for one in mine:
            if follows(one.plan) and one.id not in self._looks:
                self._looks[one.id] = asyncio.create_task(self._look(ledger, one))
        if self._looks:
            done, _ = await asyncio.wait(self._looks.values(), timeout=self.interval)
            self._looks = {key: look for key, look in self._looks.items() if look not in done}
        await self._prune(ledger, mine)
        return await asyncio.to_thread(lambda: {_names(one): _unread(ledger, one) for one in mine})

    async def _look(self, ledger: Ledger, hydration: Hydration) -> None:
        try:
            opened = self._open.get(hydration.id)
            if opened is None:
                # Airflow's channel to the triggerer belongs to the event loop: a thread of asyncio's own cannot use it.
                opened = self._open[hydration.id] = await sync_to_async(_make_open)(hydration)
            observer = Observer(
                ledger=ledger,
                hydration_id=hydration.id,
                open=opened,
                interval=self.interval,
                tell=lambda found, course: metrics.send(ledger, found, course),
            )
            await asyncio.to_thread(observer.look)
        except (BackpressureError, AirflowRuntimeError) as error:
            # The connection may have changed: it is read again.
            self._open.pop(hydration.id, None)
            log.warning("%s is not looked at now: %s", hydration.source_identity, error)
        except Exception:
            log.exception("A look at %s failed.", hydration.source_identity)

    async def _prune(self, ledger: Ledger, hydrations: list[Hydration]) -> None:
        now, kept = time.monotonic(), settings.samples_kept()
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_SECONDS
            for one in hydrations:
                await asyncio.to_thread(prune, ledger, one.id, kept)


def _make_open(hydration: Hydration) -> Callable[[], Source]:
    declared = declaration_of(hydration).source
    found = endpoint(declared.conn_id, *declared.conn_types)
    return lambda: declared.open(found)


def _names(hydration: Hydration) -> tuple[str, str]:
    return hydration.source_identity, hydration.sink_identity


def _unread(ledger: Ledger, hydration: Hydration) -> Unread:
    """Return what is unread as of now: a lane may have looked before its last commits, and looks are seconds apart."""
    found, course = ledger.hydration(hydration.id), ledger.course(hydration.id)
    if course is not None:
        done = read_committed_frontier(found, ledger, before=course.latest.committed)
        course = replace(course, latest=replace(course.latest, committed=done))
    return Unread(hydration=found, course=course)
