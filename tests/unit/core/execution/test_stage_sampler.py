"""Times of stages while their range is in flight, and what becomes of them when it ends."""

import pytest

from airflow_provider_backpressure.core.execution.stage_sampler import SAMPLED_AFTER, StageSampler
from airflow_provider_backpressure.core.ports.sink import Activity
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, total


def sampler() -> StageSampler:
    return StageSampler(before=Stage.READ)


def test_each_activity_is_time_of_both_stages():
    stages = sampler()
    for now, activity in enumerate((Activity.WAITING, Activity.WAITING, Activity.LOADING, Activity.ENDING)):
        stages.sample({"0.0": activity}, now=float(now))
    assert stages.take() == {
        Stage.READ: StageTime(busy=1.0, backpressured=1.0, idle=1.0),
        Stage.SINK: StageTime(idle=1.0, busy=2.0),
    }
    assert stages.take() == {}


def test_short_ranges_are_not_asked_for_and_long_ones_once_a_second():
    stages = sampler()
    assert not stages.is_due([], now=100.0)
    assert not stages.is_due([99.0], now=100.0)
    asked = [now / 2 for now in range(200, 220) if stages.is_due([99.0], now=now / 2)]
    assert asked == [99.0 + SAMPLED_AFTER + second for second in range(9)]


def test_what_a_range_measured_itself_takes_the_place_of_the_samples():
    """The sum is what it measured, as if nothing had been sampled."""
    stages, measured = sampler(), {Stage.READ: StageTime(busy=8.0, backpressured=2.0), Stage.SINK: StageTime(busy=10.0)}
    for now in range(6):
        stages.sample({"0.0": Activity.LOADING, "1.0": Activity.WAITING}, now=float(now))
    sampled = stages.take()
    stages.settle("0.0", measured)
    stages.settle("1.0", None)
    flow = total(sampled, stages.take())
    others = 5.0
    for stage, spent in measured.items():
        assert flow[stage].seconds == pytest.approx(spent.seconds + others)
    assert flow[Stage.SINK].busy == pytest.approx(10.0)


def test_times_that_an_attempt_writes_down_are_counted_once():
    """What it wrote last is part of what it reports in the end. Another attempt begins at nothing."""
    stages = sampler()
    stages.follow({"0.0": {Stage.READ: StageTime(busy=2.0), Stage.SINK: StageTime(idle=2.0)}})
    stages.follow({"0.0": {Stage.READ: StageTime(busy=2.0), Stage.SINK: StageTime(idle=2.0)}})
    stages.follow(
        {"0.0": {Stage.READ: StageTime(busy=2.0, backpressured=3.0), Stage.SINK: StageTime(idle=2.0, busy=3.0)}}
    )
    assert stages.take() == {
        Stage.READ: StageTime(busy=2.0, backpressured=3.0),
        Stage.SINK: StageTime(idle=2.0, busy=3.0),
    }
    stages.follow({"0.0": {Stage.READ: StageTime(busy=1.0), Stage.SINK: StageTime(idle=1.0)}})
    stages.settle("0.0", {Stage.READ: StageTime(busy=4.0), Stage.SINK: StageTime(idle=4.0)})
    assert stages.take() == {Stage.READ: StageTime(busy=4.0), Stage.SINK: StageTime(idle=4.0)}


def test_no_state_gets_less_than_nothing():
    stages = sampler()
    for now in range(4):
        stages.sample({"0.0": Activity.LOADING}, now=float(now))
    stages.take()
    stages.settle("0.0", {Stage.READ: StageTime(busy=4.0), Stage.SINK: StageTime(busy=1.0)})
    assert stages.take() == {Stage.READ: StageTime(busy=1.0), Stage.SINK: StageTime()}
