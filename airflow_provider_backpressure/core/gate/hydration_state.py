"""The state of a hydration as people are shown it: one function for the page, the API and the command line."""

from enum import StrEnum

from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.gate.queue import QueuePlace, may_start
from airflow_provider_backpressure.core.phases import Phase


class State(StrEnum):
    """What a hydration does, or why it does nothing."""

    NOT_BEGUN = "not begun"
    """Nothing was planned yet."""
    FAILED = "failed"
    """Its latest task has failed, or a range has used up its attempts; nothing is in flight."""
    PAUSED = "paused"
    """A person has closed its gate."""
    QUEUED = "queued"
    """It waits for its turn on its Spark cluster."""
    HYDRATING = "hydrating"
    REHYDRATING = "rehydrating"
    STEADY_STATE = "steady state"


def state_of(hydration: Hydration, *, failed: int, in_flight: int, place: QueuePlace) -> State:
    """Return the state that is shown; the first that applies, of what a person has to act on before all others.

    ``failed``: ranges of its plan that have used up their attempts. ``in_flight``: ranges that hold a credit. While
    any is in flight the hydration still works, whatever has failed.
    """
    if (hydration.failure is not None or failed) and not in_flight:
        return State.FAILED
    if hydration.phase is Phase.STEADY_STATE:
        return State.STEADY_STATE
    if hydration.paused_by is not None:
        return State.PAUSED
    if hydration.plan is None:
        return State.NOT_BEGUN
    if not in_flight and not place.granted and not may_start(place):
        return State.QUEUED
    return State.REHYDRATING if hydration.phase is Phase.REHYDRATION else State.HYDRATING
