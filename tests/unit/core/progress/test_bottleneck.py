"""Levels of stages, and the one stage that holds the others up."""

import pytest

from airflow_provider_backpressure.core.progress.bottleneck import Level, find_bottleneck, find_level
from airflow_provider_backpressure.core.stage_metrics import (
    Stage,
    StageTime,
    State,
    flow_of,
    times_of,
    total,
    unify_stages,
)


@pytest.mark.statement("F5")
@pytest.mark.parametrize(
    ("share", "level"), [(0.0, Level.OK), (0.1, Level.OK), (0.11, Level.LOW), (0.5, Level.LOW), (0.51, Level.HIGH)]
)
def test_levels(share, level):
    """F5: OK to a tenth, LOW to a half, HIGH above."""
    assert find_level(StageTime(backpressured=share, busy=1 - share)) is level


def test_nothing_known_is_no_pressure():
    assert (find_level(StageTime()), StageTime().share(State.BUSY)) == (Level.OK, 0.0)
    assert find_bottleneck({}) is None


HELD, BUSY, IDLE = StageTime(backpressured=9, busy=1), StageTime(busy=9, idle=1), StageTime(idle=9, busy=1)


@pytest.mark.statement("F6")
@pytest.mark.parametrize(
    ("admit", "read", "sink", "expected"),
    [
        (HELD, HELD, BUSY, Stage.SINK),
        (HELD, BUSY, IDLE, Stage.READ),
        (IDLE, BUSY, IDLE, None),
        (HELD, IDLE, IDLE, None),
        (IDLE, IDLE, IDLE, None),
    ],
)
def test_one_stage_is_the_bottleneck(admit, read, sink, expected):
    """F6: not held back itself, hardly idle, and what is before it is held back."""
    assert find_bottleneck({Stage.ADMIT: admit, Stage.READ: read, Stage.SINK: sink}) is expected


@pytest.mark.statement("F6")
@pytest.mark.parametrize(
    ("read", "transform", "sink", "expected"),
    [
        (HELD, BUSY, IDLE, Stage.TRANSFORM),
        (HELD, HELD, BUSY, Stage.SINK),
        (BUSY, IDLE, IDLE, Stage.READ),
    ],
)
def test_a_transform_may_be_the_bottleneck(read, transform, sink, expected):
    flow = {Stage.ADMIT: HELD, Stage.READ: read, Stage.TRANSFORM: transform, Stage.SINK: sink}
    assert find_bottleneck(flow) is expected


def test_reader_and_transform_are_told_in_one_way():
    """Of some ranges they are told apart, of others not: the shares shown are of the more of them."""
    apart = {Stage.READ: HELD, Stage.TRANSFORM: BUSY, Stage.SINK: IDLE}
    together = {Stage.READ_AND_TRANSFORM: BUSY, Stage.SINK: IDLE}
    assert unify_stages(apart) == apart
    assert unify_stages(together) == together
    assert set(unify_stages(total(apart, together))) == set(apart)
    assert set(unify_stages(total(apart, together, together))) == set(together)
    assert find_bottleneck({Stage.ADMIT: HELD, **total(apart, together, together)}) is Stage.READ_AND_TRANSFORM
    assert flow_of(times_of(total(apart, together))) == total(apart, together)
