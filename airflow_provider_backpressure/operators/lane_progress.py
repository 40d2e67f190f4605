"""What a lane needs of its task: a clock that stops with it, and the line that says how far the hydration is."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import Context

from airflow_provider_backpressure.airflow_compat import AirflowTaskTimeout
from airflow_provider_backpressure.core.execution.lane_submission import LaneResult, Outcome
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.poll_policy import SystemClock
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.core.progress.notified_events import KEY, Event, Kind, conditions, event
from airflow_provider_backpressure.core.progress.rates_and_eta import line
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.exceptions import InvalidDeclaration, Transient
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession, Taken

PROGRESS_SECONDS = 2.0
"""Least seconds between two progress lines."""


class LaneEnded(Transient):
    """Airflow ended the task; its ranges in flight were released."""


ENDED = (LaneEnded, AirflowTaskTimeout)
"""How Airflow ends a task. Its ``execution_timeout`` is raised anywhere in its work, by a signal handler too."""


class LaneClock(SystemClock):
    """Time for a lane; over when Airflow ends its task.

    Airflow calls ``on_kill`` within a signal handler, anywhere in the lane's work, where neither connection nor lock
    may be used. So the handler only ends the time, and the lane unwinds at its next look at the clock, within a second.
    Implements ``Clock``.
    """

    def __init__(self) -> None:
        self._over = False

    def end(self) -> None:
        """Let the next look raise :class:`LaneEnded`."""
        self._over = True

    def monotonic(self) -> float:
        self._look()
        return super().monotonic()

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._look()

    def _look(self) -> None:
        if self._over:
            # Once: settling what is in flight takes time too.
            self._over = False
            raise LaneEnded("Airflow ended the task; its ranges in flight were released.")


@dataclass(kw_only=True)
class ProgressLog:
    """Writes the hydration's progress to the task's log after commits, not more often than every two seconds."""

    ledger: Ledger
    hydration_id: str
    log: Any
    """The task's logger."""
    label: str = ""
    """What begins the line: the table, where the task has several."""
    _next: float = field(default=0.0)

    def log_if_due(self) -> None:
        """Write a line if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self.write()

    def postpone(self) -> None:
        """Write no line for the first commits: most of many tables end with them."""
        self._next = time.monotonic() + PROGRESS_SECONDS

    def end(self, result: LaneResult) -> None:
        """Write the last line: of many tables what was done, where nothing is left to be said of the rest."""
        if self.label and result.outcome is Outcome.DONE:
            self.log.info("%s%s", self.label, end_line(result))
        else:
            self.write()

    def write(self) -> None:
        """Write a line."""
        self._next = time.monotonic() + PROGRESS_SECONDS
        for now in self.ledger.glances(ids=[self.hydration_id], limit=1):
            self.log.info("%s%s", self.label, progress_line(now))


def end_line(result: LaneResult) -> str:
    """Return what a lane has done of a table of many, without a question to the ledger."""
    return f"{result.committed:,} ranges committed by this task, and none is left."


def start_line(opened: HydrationSession, hydration: Hydration, spark: str | None, taken: Taken | None = None) -> str:
    """Return what a lane is about to do: from where, to where, how much, how, and where Spark shows it."""
    plan = hydration.plan
    assert plan is not None, "a lane drains a plan"
    counts = taken.counts if taken is not None else opened.ledger.counts(plan.plan_id)
    return (
        f"{hydration.source_identity} -> {hydration.sink_identity}: {counts.committed:,} of {counts.total:,} ranges "
        f"committed; path {plan.path}, mode {plan.mode}, consistency {plan.consistency}; "
        f"at most {hydration.credits_max} ranges in flight on {hydration.cluster}"
        + (f"; Spark UI {without_login(spark)}" if spark else "")
    )


def without_login(url: str) -> str:
    """Return an address without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def progress_line(now: HydrationSummary) -> str:
    """Return what is committed, what is in flight, how fast, and what keeps the next range back."""
    held = now.throttles or ([f"paused by {now.paused_by}"] if now.paused_by else [])
    parts = [
        line(now.progress, now.speed, now.unit, recent=now.recent),
        f"{now.in_flight} of {now.credits} credits in flight",
        f"throttled: {'; '.join(held)}" if held else "",
    ]
    return "; ".join(part for part in parts if part)


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
