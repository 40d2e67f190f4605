"""Reports the events of a hydration to Airflow's notifiers, and to any other callable."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context

from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.alerts import KEY, Event, Kind, conditions, event
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.exceptions import InvalidDeclaration

Listener = Callable[[Any], Any]
"""A notifier of Airflow's, or what else takes a task's context."""
LOOKED = frozenset({Kind.GATE_CLOSED, Kind.NOT_KEEPING_UP, Kind.DATA_AT_RISK, Kind.SOURCE_TROUBLE})


def as_listeners(on_event: Listener | Sequence[Listener] | None) -> tuple[Listener, ...]:
    """Return the listeners; :class:`InvalidDeclaration` for what cannot be called."""
    if on_event is None:
        return ()
    found = tuple(on_event) if isinstance(on_event, list | tuple) else (on_event,)
    strange = next((each for each in found if not callable(each)), None)
    if strange is not None:
        raise InvalidDeclaration(f"on_event takes notifiers and callables, not {type(strange).__name__}.")
    return found


@dataclass(kw_only=True)
class Teller:
    """Reports each occurrence once, over all tasks and tries. A report that fails is logged, and fails nothing."""

    listeners: tuple[Listener, ...]
    context: Context
    ledger: Ledger
    closed_seconds: float
    """For how long a gate may be closed before that is reported."""
    log: Any
    """The task's logger."""
    later: float | None = None
    """Seconds until an event that lasts is due."""

    def begin(self, hydration_id: str) -> None:
        """Forget for how long the gate was closed to an earlier task: it was not read since."""
        if self.listeners:
            self.ledger.note(hydration_id, {}, looked={Kind.GATE_CLOSED})

    def look(self, hydration: Hydration, course: Course | None) -> None:
        """Report what is due."""
        if not self.listeners:
            return
        gate = self.ledger.gate(hydration.id)
        found = conditions(hydration, gate, course, closed_seconds=self.closed_seconds)
        patience = {kind.value: self.closed_seconds if kind is Kind.GATE_CLOSED else 0.0 for kind in found}
        notice = self.ledger.note(hydration.id, patience, looked=LOOKED)
        self.later = notice.later
        for kind in notice.due:
            self.tell(event(Kind(kind), found[Kind(kind)], hydration))

    def tell(self, told: Event) -> None:
        """Pass an event to every listener."""
        self.log.warning("%s: %s", told.kind, told.sentence)
        for listener in self.listeners:
            try:
                # A notifier renders its templates in itself, so each event gets a notifier of its own.
                copy.copy(listener)({**self.context, KEY: told.to_json()})
            except Exception:
                self.log.exception("%s failed to handle %s.", type(listener).__name__, told.kind)
