"""The trigger that fires an asset's event when a source has what its sink does not have."""

import json
import time
from collections.abc import AsyncIterator, Hashable
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.health_signal_declarations import parse_signal
from airflow_provider_backpressure.core.monitoring.source_observer import LOOK_SECONDS
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.hooks.backpressure import under_way
from airflow_provider_backpressure.hooks.recorded_declaration import from_plain
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.triggers.between_runs import IdleMaintenance
from airflow_provider_backpressure.triggers.followed_sources_poller import News, Poller, Unread
from airflow_provider_backpressure.triggers.shared_ledger import open_shared_ledger

CLASSPATH = "airflow_provider_backpressure.triggers.unread.UnreadTrigger"
"""As Airflow's database has it: :mod:`..triggers` keeps the names that its modules had."""

AGAIN_SECONDS = 900.0
"""After what was said has led to nothing, for so long nothing is said again."""


@dataclass(kw_only=True)
class Debounce:
    """Reports new data once, and not again before a run has brought it."""

    again: float = AGAIN_SECONDS
    _told: Unread | None = None
    _at: float = 0.0

    def due(self, unread: Unread, *, now: float) -> bool:
        """Whether it is to be said now, seconds by a monotonic clock. No run is under way, as the caller knows."""
        if not unread.any:
            return False
        if self._told is not None and self._told.done == unread.done:
            nothing_new = unread.known is not None and unread.known == self._told.known
            if nothing_new or now - self._at < self.again:
                return False
        self._told, self._at = unread, now
        return True


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is watched, in plain values."""

    source: dict[str, Any]
    sink: dict[str, Any]
    """The declarations' fields."""
    again: float = AGAIN_SECONDS
    """Seconds after which an event that has led to nothing is repeated, if more has arrived."""
    signals: list[dict[str, Any]] = field(default_factory=list)
    """Those that warn, looked at between runs: their fields."""
    on_event: list[dict[str, Any]] = field(default_factory=list)
    """Callbacks for events: ``{"path", "kwargs"}``."""

    def to_json(self) -> str:
        """Return the fields as text: on its way to the triggerer Airflow encodes what lies in a list once too often."""
        return json.dumps(asdict(self))


class UnreadTrigger(BaseEventTrigger):
    """Fires when a source has something unread and no run of its hydration is under way.

    The event is ``{"hydration_id", "lag", "unit", "upstream"}``. It fires again when a run has brought rows and more
    have arrived. All of them in a triggerer share one poller, which asks each source once per interval.

    Beside that it looks after the hydration while no run is under way, see ``between``.
    """

    def __init__(self, *, subject: str, backpressure_conn_id: str, interval: float = LOOK_SECONDS) -> None:
        """``subject``: as :meth:`Subject.to_json` has it; ``interval``: seconds between two looks."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.subject = Subject(**json.loads(subject))
        self.backpressure_conn_id, self.interval = backpressure_conn_id, interval
        self._debounce = Debounce(again=self.subject.again)
        self._names: tuple[str, str] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return CLASSPATH, {
            "subject": self.subject.to_json(),
            "backpressure_conn_id": self.backpressure_conn_id,
            "interval": self.interval,
        }

    def shared_stream_key(self) -> Hashable:
        """Return what those have in common that share a poller: ledger and interval."""
        return "backpressure", self.backpressure_conn_id, self.interval

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[News]:
        """Poll every source that is followed."""
        poller = Poller(
            backpressure_conn_id=kwargs["backpressure_conn_id"], interval=kwargs.get("interval", LOOK_SECONDS)
        )
        async for news in poller.rounds():
            yield news

    async def filter_shared_stream(self, shared_stream: AsyncIterator[News]) -> AsyncIterator[TriggerEvent]:
        """Yield the events of this source and sink. What cannot be seen now is tried again with the next news."""
        between = IdleMaintenance(
            source=from_plain(self.subject.source),
            budget=Budget(signals=tuple(map(parse_signal, self.subject.signals))),
            callbacks=self.subject.on_event,
        )
        try:
            async for news in shared_stream:
                try:
                    unread = await self._due(news, between)
                except (BackpressureError, AirflowRuntimeError) as error:
                    self.log.warning("Whether something is unread cannot be seen now: %s", error)
                else:
                    if unread is not None:
                        yield TriggerEvent(unread.to_json())  # type: ignore[no-untyped-call]
        finally:
            between.end()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll for this trigger alone, where streams are not shared."""
        async for event in self.filter_shared_stream(self.open_shared_stream(self.serialize()[1])):
            yield event

    async def _due(self, news: News, between: IdleMaintenance) -> Unread | None:
        if self._names is None:
            self._names = await sync_to_async(self._identities)()
        unread = news.get(self._names, Unread(hydration=None, course=None))
        hydration = unread.hydration
        if hydration is not None:
            working = await self._has_run(hydration)
            between.look(await open_shared_ledger(self.backpressure_conn_id), unread, working=working)
            if working or hydration.paused_by is not None:
                return None
        return unread if self._debounce.due(unread, now=time.monotonic()) else None

    async def _has_run(self, hydration: Hydration) -> bool:
        """Whether a run is under way. One that failed still has the hydration, so Airflow is asked."""
        if hydration.holder is None:
            return False
        return await sync_to_async(under_way)(hydration.owner, hydration.holder)

    def _identities(self) -> tuple[str, str]:
        source, sink = from_plain(self.subject.source), from_plain(self.subject.sink)
        there = endpoint(sink.conn_id, *sink.conn_types) if sink.conn_id else NOWHERE
        opened = source.open(endpoint(source.conn_id, *source.conn_types)), sink.open(there)
        return opened[0].identity, opened[1].identity
