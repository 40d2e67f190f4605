"""When a snapshot is complete, with what recent rates say of how sure that is."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.progress.rates_and_eta import (
    PLAN_WORKER,
    Eta,
    Sample,
    WorkerStatistics,
    eta,
    line,
    recent_rates,
    total_progress,
)

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def samples(*committed: int, apart: float = 10.0) -> list[Sample]:
    return [
        Sample(at=NOON + timedelta(seconds=apart * number), committed=rows) for number, rows in enumerate(committed)
    ]


def progress(committed: int, total: int | None = 1000):
    plan = WorkerStatistics(hydration_id="h", worker_id=PLAN_WORKER, snapshot_total=total)
    return total_progress([plan, WorkerStatistics(hydration_id="h", worker_id="a", snapshot_progress=committed)])


def test_recent_rates_are_of_successive_steps():
    assert recent_rates(samples(0, 100, 300, 300)) == [10.0, 20.0, 0.0]
    assert recent_rates(samples(0, 1, 2, 3, 4, apart=5.0)) == [0.2, 0.2]
    assert recent_rates(samples(0)) == recent_rates([]) == []
    assert recent_rates(samples(100, 50)) == [0.0], "a range that is read once more is no negative rate"


def test_the_first_sample_of_each_step_is_enough():
    """A ledger that tells of many hydrations gives no others; the end of a step is the same for everybody."""
    dense = samples(*(number**2 for number in range(95)), apart=1.0)
    firsts = [sample for number, sample in enumerate(dense) if number % 10 == 0]
    assert recent_rates(dense) == recent_rates(firsts) == [10 + 20 * step for step in range(9)]
    ragged = dense[3:]
    assert recent_rates(ragged) == recent_rates([ragged[0], *firsts[1:]]), "from 3 to 10 s is no whole step"


def test_a_steady_rate_leaves_no_doubt():
    assert eta(progress(400), 10.0, [10.0, 10.0, 10.0]) == Eta(seconds=60.0, soonest=60.0, latest=60.0)


def test_the_interval_comes_from_the_spread():
    found = eta(progress(400), 10.0, [5.0, 10.0, 15.0])
    assert found is not None
    spread = math.sqrt(50 / 3)
    assert (found.soonest, found.latest) == (pytest.approx(600 / (10 + spread)), pytest.approx(600 / (10 - spread)))


def test_a_rate_that_may_be_a_standstill_may_never_end():
    found = eta(progress(400), 10.0, [0.0, 0.0, 30.0])
    assert found is not None
    assert found.latest == math.inf
    assert "ETA 1:00 (0:25 to never)" in line(progress(400), 10.0, recent=[0.0, 0.0, 30.0])


def test_what_nobody_can_say_is_not_said():
    assert eta(progress(400, total=None), 10.0, []) is None
    assert eta(progress(400), 0.0, []) is None
    assert eta(progress(400), None, []) is None
    assert eta(progress(400), 10.0, [10.0, 9.0]) == Eta(seconds=60.0)
    assert eta(progress(1000), 10.0, [0.0, 0.0, 30.0]) is None, "nothing is left"


@pytest.mark.statement("M10")
def test_an_empty_snapshot_is_complete():
    """M10: 100 %, no division by zero."""
    assert progress(0, total=0).percent == 100.0
    assert line(progress(0, total=0), None).startswith("[########################] 100.0 %")


@pytest.mark.statement("M11")
def test_what_earlier_plans_received_is_in_the_sum_and_not_in_the_plans_own_rows():
    """M11: the counters go on over plans; progress is the plan's own."""
    plan = WorkerStatistics(hydration_id="h", worker_id=PLAN_WORKER, messages_received=70, bytes_received=7)
    own = WorkerStatistics(hydration_id="h", worker_id="a", snapshot_progress=5, messages_received=5, bytes_received=1)
    found = total_progress([plan, own])
    assert (found.messages, found.bytes, found.committed) == (75, 8, 5)
