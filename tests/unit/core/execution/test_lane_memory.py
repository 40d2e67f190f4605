"""What a lane keeps does not grow with what it has done."""

import gc
import tracemalloc

import pytest

from airflow_provider_backpressure.core.admission import permits_and_reservations
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution import lane_runner
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.gate import credit_limits as limits
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.testing import MemoryLedger, MemorySink, MemorySource
from benchmarks.million import LeanRunner

EARLY, LATE = 400, 1_200
LANE = [tracemalloc.Filter(True, module.__file__) for module in (lane_runner, permits_and_reservations, limits)]


def held() -> int:
    """Return the bytes that the lane's own modules have allocated and not freed."""
    gc.collect()
    kept = tracemalloc.take_snapshot().filter_traces(LANE)
    return sum(one.size for one in kept.statistics("filename"))


@pytest.mark.statement("X8")
@pytest.mark.long
def test_eight_hundred_more_ranges_take_no_more_memory() -> None:
    """X8: between range 400 and range 1,200 the lane's own memory grows by less than 8 bytes a range."""
    source, sink, ledger = MemorySource(keys=range(LATE)), MemorySink(), MemoryLedger()
    runner, budget = LeanRunner(source=source, sink=sink), Budget(range_rows=1)
    planned = Planner(
        source=source,
        sink=sink,
        runner=runner,
        ledger=ledger,
        budget=budget,
        mode=Mode.APPEND,
        owner="dag",
        cluster="spark",
    ).plan()
    hydration_id = planned.hydration.id
    sizes: list[int] = []
    commits = iter(range(1, LATE + 1))

    def measure() -> None:
        if next(commits) in (EARLY, LATE):
            sizes.append(held())

    lane = Hydrator(
        hydration_id=hydration_id,
        plan=planned.plan,
        lane="lane",
        ledger=ledger,
        source=source,
        sink=sink,
        runner=runner,
        limiter=Limiter(ledger=ledger, hydration_id=hydration_id, budget=budget, memory=runner.memory),
        budget=budget,
        share=budget.credits,
        on_commit=measure,
    )
    tracemalloc.start()
    try:
        assert lane.run().committed == LATE
    finally:
        tracemalloc.stop()
    early, late = sizes
    assert early > 0, "the filter holds modules that are there"
    assert late - early < 8 * (LATE - EARLY)
