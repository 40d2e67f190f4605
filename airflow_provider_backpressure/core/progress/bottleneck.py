"""How much each stage of a range's way is held back, and which one holds the others up."""

from enum import StrEnum

from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, StageTime, State, unify_stages


class Level(StrEnum):
    """How much a stage is held back."""

    OK = "OK"
    LOW = "LOW"
    HIGH = "HIGH"


LOW_ABOVE, HIGH_ABOVE = 0.1, 0.5
"""Shares of time above which a stage counts as held back a little, and much."""


def find_level(spent: StageTime) -> Level:
    """Return how much a stage is held back."""
    share = spent.share(State.BACKPRESSURED)
    return Level.OK if share <= LOW_ABOVE else Level.LOW if share <= HIGH_ABOVE else Level.HIGH


def find_bottleneck(flow: Flow) -> Stage | None:
    """Return the stage that holds the others up: busy most of its time, not held back, one before it held back.

    ``None`` where nothing is held up.
    """
    found, held_back = [], False
    flow = unify_stages(flow)
    for stage in Stage:
        own = flow.get(stage, StageTime())
        if held_back and find_level(own) is Level.OK and own.share(State.BUSY) > own.share(State.IDLE):
            found.append(stage)
        held_back = held_back or find_level(own) is not Level.OK
    return max(found, key=lambda stage: flow[stage].share(State.BUSY), default=None)
