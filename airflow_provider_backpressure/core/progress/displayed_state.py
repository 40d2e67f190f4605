"""The state of a hydration that page, API, command line and asset events show: derived here and nowhere else."""

from enum import StrEnum
from typing import Protocol

from airflow_provider_backpressure.core.default_limits import HEARTBEAT_SECONDS
from airflow_provider_backpressure.core.gate.cluster_queue import QueuePlace, may_start
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase
from airflow_provider_backpressure.core.gate.task_activity import Activity, Step
from airflow_provider_backpressure.core.progress.lag import Course, amount
from airflow_provider_backpressure.core.progress.rates_and_eta import duration

STALE_SECONDS = 3 * HEARTBEAT_SECONDS
"""After so many seconds without a heartbeat a hydration under way counts as stale."""


class State(StrEnum):
    """What a hydration does, or why it does nothing."""

    NOT_BEGUN = "not begun"
    """Nothing was planned yet, and no task works on that."""
    PLANNING = "planning"
    QUEUED = "queued"
    """It waits for its turn on its Spark cluster."""
    RUNNING = "running"
    """Ranges are moved, or are about to be."""
    THROTTLED = "throttled"
    """A measured signal, or the limit of connections into the target's server, keeps the next range back."""
    PAUSED = "paused"
    """A person has closed its gate."""
    VERIFYING = "verifying"
    FAILED = "failed"
    """Its latest task has failed, or a range has used up its attempts; nothing is in flight."""
    SUCCEEDED = "succeeded"
    """Everything is committed, and later runs bring nothing new."""
    FOLLOWING = "following"
    """The snapshot is in, and later runs bring what the source has got since."""
    STALE = "stale"
    """No task of the hydration was heard of for three heartbeats, though it is not complete."""


MOVING = frozenset({State.RUNNING, State.THROTTLED})
"""States whose rate, ETA and memory are of now."""
COMPLETE = frozenset({State.SUCCEEDED, State.FOLLOWING})
ACTIVE = frozenset({State.PLANNING, State.QUEUED, State.PAUSED, State.VERIFYING}) | MOVING


class Observed(Protocol):
    """What the state is derived from: one reading of the ledger."""

    @property
    def hydration(self) -> Hydration: ...
    @property
    def failed(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def percent(self) -> float | None: ...
    @property
    def place(self) -> QueuePlace: ...
    @property
    def silent_seconds(self) -> float: ...
    @property
    def throttles(self) -> list[str]: ...
    @property
    def course(self) -> Course | None: ...
    @property
    def starts_in_seconds(self) -> float | None: ...


def derive_state(now: Observed) -> State:
    """Return the state that is shown: the first that applies, with what a person has to act on before all others."""
    hydration, silent = now.hydration, now.silent_seconds > STALE_SECONDS
    if (hydration.failure is not None or now.failed) and not (now.in_flight and not silent):
        return State.FAILED
    step = None if silent or hydration.activity is None else hydration.activity.step
    if step is Step.VERIFYING and hydration.holder is not None:
        return State.VERIFYING
    if hydration.phase is Phase.STEADY_STATE:
        return _name_complete(now, silent=silent)
    if hydration.paused_by is not None:
        return State.PAUSED
    if step is Step.PLANNING:
        return State.PLANNING
    if hydration.plan is None and hydration.holder is None:
        return State.NOT_BEGUN
    if silent:
        return State.STALE
    return State.PLANNING if hydration.plan is None else _name_incomplete(now)


def _name_complete(now: Observed, *, silent: bool) -> State:
    """Return the state of a hydration whose snapshot is in; an increment is a part of following."""
    works = now.hydration.holder is not None
    if works and silent and now.in_flight:
        return State.STALE
    if now.hydration.paused_by is not None and (works or follows(now)):
        return State.PAUSED
    if silent and not now.hydration.verified:
        return State.STALE
    if follows(now):
        return State.FOLLOWING
    return State.RUNNING if now.in_flight and not silent else State.SUCCEEDED


def _name_incomplete(now: Observed) -> State:
    if not now.in_flight and not now.place.granted and not may_start(now.place):
        return State.QUEUED
    return State.THROTTLED if now.throttles else State.RUNNING


def follows(now: Observed) -> bool:
    """Whether later runs bring what comes to the source: only then it can be behind it."""
    if now.course is not None:
        return now.course.latest.follows
    return now.hydration.plan is not None and now.hydration.plan.follows


def describe_state(now: Observed, state: State, *, lag_age_seconds: float | None) -> str:
    """Return what the state's name leaves open, in a few words: by whom, by what, how far, since when."""
    hydration = now.hydration
    if state is State.FAILED:
        return hydration.failure or f"{_count(now.failed, 'range')} used up all attempts"
    if state is State.QUEUED:
        return _describe_place(now)
    if state is State.THROTTLED:
        return "by " + "; ".join(now.throttles)
    if state is State.PAUSED:
        why = f": {hydration.paused_why}" if hydration.paused_why else ""
        return f"by {hydration.paused_by}{why}" + (f"; {now.in_flight} in flight" if now.in_flight else "")
    if state is State.VERIFYING:
        return describe_verified(hydration.activity)
    if state is State.FOLLOWING:
        return _describe_lag(now.course, lag_age_seconds)
    if state is State.STALE:
        error = hydration.activity.error if hydration.activity else ""
        return f"nothing heard for {duration(now.silent_seconds)}" + (f"; the last error: {error}" if error else "")
    if state is State.RUNNING:
        again = "rehydration, " if hydration.phase is Phase.REHYDRATION else ""
        if not now.in_flight and now.percent == 100:
            return f"{again}everything is committed, the completion check follows"
        return f"{again}{_count(now.in_flight, 'range')} in flight"
    return ""


def describe_verified(activity: Activity | None) -> str:
    """Return how far a verification is."""
    if activity is None or activity.total is None:
        return "the target as a whole"
    return f"{activity.done or 0:,} of {_count(activity.total, 'range')}"


def _describe_place(now: Observed) -> str:
    starts = now.starts_in_seconds
    expected = "its start cannot be estimated" if starts is None else f"starts in about {duration(starts)}"
    if not now.place.concurrency:
        expected = "blocked: its limit is 0 at once"
    return f"number {now.place.position} on {now.place.cluster or now.hydration.cluster}, {expected}"


def _describe_lag(course: Course | None, age: float | None) -> str:
    if course is None or course.lag is None:
        return "lag not known yet"
    unit = course.latest.unit
    lag = f"lag {amount(course.lag, unit)}" if course.lag else "caught up"
    return f"{lag}, as of {duration(age)} ago" if age is not None and age > STALE_SECONDS else lag


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
