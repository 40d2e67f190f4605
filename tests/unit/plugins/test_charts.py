"""Columns over time, as the charts draw them."""

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.progress.rates_and_eta import Sample
from airflow_provider_backpressure.core.progress.summary import FlowAt
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from airflow_provider_backpressure.plugins.routes import chart_columns

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_nothing_is_nothing():
    found = chart_columns([], [], total=None)
    assert (found["at"], found["percent"], found["rate"], found["flow_at"]) == ([], [], [], [])


def test_rates_are_taken_over_ten_seconds_or_more():
    """Commits come in steps: a moment between two of them is no standstill."""
    points = [
        Sample(at=at(second), committed=rows) for second, rows in ((0, 0), (5, 0), (10, 1000), (12, 1000), (30, 3000))
    ]
    assert chart_columns(points, [], total=4000)["rate"] == [
        None,
        0.0,
        100.0,
        pytest.approx(83.3333),
        pytest.approx(111.1111),
    ]


def test_a_rate_is_never_below_nothing():
    """A range that is read once more takes rows back."""
    points = [Sample(at=at(0), committed=1000), Sample(at=at(20), committed=500)]
    assert chart_columns(points, [], total=1000)["rate"] == [None, 0.0]


@pytest.mark.statement("M6")
def test_progress_and_memory_share_the_axis_of_time():
    """M6: one column of times; what was not seen is null, never 0."""
    points = [
        Sample(at=at(0), committed=250, memory_used=10, memory_limit=40),
        Sample(at=at(1), committed=1000),
    ]
    found = chart_columns(points, [], total=1000)
    assert found["at"] == [at(0), at(1)]
    assert found["percent"] == [25.0, 100.0]
    assert (found["memory_used"], found["memory_limit"]) == ([10, None], [40, None])
    assert chart_columns(points, [], total=None)["percent"] == [None, None]
    assert chart_columns(points[:1], [], total=0)["percent"] == [100.0]


def test_large_counts_stay_exact():
    points = [Sample(at=at(0), committed=2**63 + 1)]
    assert chart_columns(points, [], total=2**64 - 1)["committed"] == [2**63 + 1]


def test_stages_are_shares_of_their_time():
    flows = [FlowAt(at=at(0), flow={Stage.ADMIT: StageTime(busy=1, idle=1, backpressured=2)})]
    found = chart_columns([], flows, total=None)["flow"]
    assert found["admit"] == {"busy": [0.25], "idle": [0.25], "backpressured": [0.5]}
    assert found["sink"] == {"busy": [None], "idle": [None], "backpressured": [None]}
