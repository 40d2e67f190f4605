"""Range size follows what finished ranges took, within the budget."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution.lane_submission import spec_for
from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.range_size import (
    FLOOR_ROWS,
    Measures,
    next_rows,
    pace_of,
    rows_per_range,
)
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource

BUDGET = Budget()
START = datetime(2024, 1, 1, tzinfo=UTC)
GIB = 2**30


def took(rows_per_second: float | None = None, *, rows: int = 1_000_000, memory: int | None = None) -> Measures:
    """Return measures on an executor of 8 GiB, one of it taken."""
    reading = MemoryReading(used_bytes=GIB, limit_bytes=8 * GIB, age_seconds=0.0)
    return Measures(rows=rows, rows_per_second=rows_per_second, memory_bytes=memory, memory=reading)


def record(*, rows: int, seconds: float, attempt: int = 1) -> RangeRecord:
    """Return a committed range."""
    return RangeRecord(
        hydration_id="h",
        plan_id="p",
        seq=0,
        bounds=KeyBounds(columns=("id",), start=None, end=None),
        state=RangeState.COMMITTED,
        planned_rows=rows,
        planned_bytes=rows,
        attempt=attempt,
        rows=rows,
        admitted_at=START,
        committed_at=START + timedelta(seconds=seconds),
    )


@pytest.mark.parametrize(
    ("rows_per_second", "before", "after"),
    [
        (20_000.0, 1_000_000, 200_000),
        (90_000.0, 1_000_000, 1_000_000),
        (76_000.0, 1_000_000, 1_000_000),
        (74_000.0, 1_000_000, 740_000),
        (24_000.0, 200_000, 200_000),
        (26_000.0, 200_000, 260_000),
        (10.0, 1_000_000, FLOOR_ROWS),
        (900_000.0, 200_000, 1_000_000),
        (None, 200_000, 1_000_000),
    ],
)
def test_seconds_at_the_learned_pace_bound_a_range(rows_per_second, before, after):
    """Ten seconds of what a range has shown; changes below a quarter are not made."""
    assert next_rows(BUDGET, 1.0, took(rows_per_second, rows=before)) == after


def test_the_first_plan_keeps_to_the_assumption():
    """Nothing was learned."""
    assert next_rows(BUDGET, 100.0, None) == rows_per_range(BUDGET, 100.0) == 1_000_000


@pytest.mark.parametrize(
    ("slots", "slots_each", "after"), [(400, 2, 1_000_000), (400, 8, 675_000), (8, 8, 675_000), (None, None, 675_000)]
)
def test_ranges_on_several_executors_fit_where_those_on_one_do(slots, slots_each, after):
    """5.4 GiB are left on each executor for two ranges of 2 GiB, however many run elsewhere; on one for four."""
    measures = took(memory=2 * GIB)
    reading = replace(measures.memory, slots=slots, slots_each=slots_each)
    assert next_rows(BUDGET, 1.0, replace(measures, memory=reading)) == after


@pytest.mark.parametrize(("memory", "after"), [(GIB, 1_000_000), (2 * GIB, 675_000), (64 * GIB, 500_000)])
def test_ranges_of_all_credits_fit_beside_each_other(memory, after):
    """5.4 GiB are left for four ranges; a plan makes them half as large at most."""
    assert next_rows(BUDGET, 1.0, took(100_000.0, memory=memory)) == after


def test_a_range_with_an_executor_of_its_own_may_fill_it():
    """What other ranges take is not taken from it."""
    measures = took(100_000.0, memory=4 * GIB)
    assert measures.memory is not None
    alone = replace(measures, memory=replace(measures.memory, isolated=True))
    assert next_rows(BUDGET, 1.0, alone) == 1_000_000


@given(
    st.floats(0.1, 1e9),
    st.integers(1, 10**9),
    st.one_of(st.none(), st.integers(1, 2**40)),
    st.integers(1, 10**7),
    st.floats(0.5, 1e6),
)
def test_no_measure_leads_out_of_the_budget(pace, before, memory, range_rows, row_bytes):
    """Never above the bounds in rows and bytes, never below the floor, and at rest where nothing changes."""
    budget = Budget(range_rows=range_rows)
    most = rows_per_range(replace(budget, range_seconds=1e9), row_bytes)
    rows = next_rows(budget, row_bytes, took(pace, rows=before, memory=memory))
    assert min(FLOOR_ROWS, most, before) <= rows <= most
    again = took(pace, rows=rows)
    assert next_rows(budget, row_bytes, again) == next_rows(
        budget, row_bytes, replace(again, rows=next_rows(budget, row_bytes, again))
    )


def test_a_pace_is_learned_from_ranges_that_took_long_enough():
    """Short ones tell of the runner's overhead; one that was tried again, of its failure."""
    long = [
        record(rows=200_000, seconds=10.15),
        record(rows=300_000, seconds=10.15),
        record(rows=100_000, seconds=5.15),
    ]
    assert pace_of(long, overhead_seconds=0.15) == pytest.approx(20_000)
    assert pace_of([record(rows=100, seconds=0.2)], overhead_seconds=0.0) is None
    assert pace_of([record(rows=100_000, seconds=100.0)], overhead_seconds=15.0) is None
    assert pace_of([record(rows=100_000, seconds=10.0, attempt=2)], overhead_seconds=0.0) is None


def test_the_next_plan_is_cut_by_what_the_one_before_has_shown():
    """The first by the assumption; an increment by the ranges of the snapshot, at the end of a slow run."""
    now = [START]
    ledger, sink = MemoryLedger(now=lambda: now[0]), MemorySink()
    source = MemorySource(keys=range(100_000), increments=True)
    planner = Planner(
        source=source,
        sink=sink,
        runner=MemoryRunner(source=source, sink=sink),
        ledger=ledger,
        budget=Budget(range_rows=50_000),
        mode=Mode.APPEND,
        owner="dag",
        cluster="spark",
    )
    planned = planner.plan()
    assert "2 ranges of at most 50,000 rows" in planned.note
    for seq in range(2):
        permit = ledger.admit(planned.hydration.id, lane="lane", session_id="s", lease_seconds=60)
        now[0] += timedelta(seconds=25)
        assert permit is not None
        spec = spec_for(planned.plan, permit.range, source)
        sink.commit(spec, spec.slices[0], ())
        ledger.commit(
            planned.plan.plan_id,
            seq,
            worker="lane",
            attempt=1,
            rows=50_000,
            bytes=1,
            checksum="c",
            limit=GradedLimit(),
            pressure=0.0,
        )
    ledger.finish(planned.hydration.id)
    source.keys = range(140_000)
    assert "2 ranges of at most 20,000 rows" in planner.plan().note
