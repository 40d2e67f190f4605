"""What a range costs without Spark: planning, gate, ledger and loop, over an in-memory source, sink and runner.

`python -m benchmarks.orchestration [RANGES]` starts a PostgreSQL for the ledger, drains the ranges as one lane and
prints the time of each. The bound is 10 ms a range over 10,000 ranges.
"""

import json
import os
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.hydrator import Hydrator, Outcome
from airflow_provider_backpressure.core.limiter import Limiter
from airflow_provider_backpressure.core.planner import Planner
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.store import SqlLedger
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from dev.services import Server, Services

BOUND_MS = 10.0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; times of the machine as it was."""

    ranges: int
    plan_seconds: float
    drain_seconds: float
    lane_cpu_seconds: float
    """Processor time of the lane's own process while it drained, without PostgreSQL's."""
    first_thousand_ms: float
    last_thousand_ms: float
    """Mean time of a range in the first and in the last thousand: work per range must not grow."""

    @property
    def ms_per_range(self) -> float:
        """Wall time of one range, in milliseconds."""
        return 1000 * self.drain_seconds / self.ranges


def measure(ledger_url: str, ranges: int) -> Figures:
    """Plan and drain so many ranges of one row each."""
    source, sink = MemorySource(keys=range(ranges)), MemorySink()
    runner, budget = MemoryRunner(source=source, sink=sink), Budget(range_rows=1)
    with closing(SqlLedger(ledger_url)) as ledger:
        began = time.perf_counter()
        planned = Planner(
            source=source,
            sink=sink,
            runner=runner,
            ledger=ledger,
            budget=budget,
            mode=Mode.APPEND,
            owner="benchmark",
            cluster="memory",
        ).plan()
        plan_seconds = time.perf_counter() - began
        commits: list[float] = []
        lane = Hydrator(
            hydration_id=planned.hydration.id,
            plan=planned.plan,
            lane="lane",
            ledger=ledger,
            source=source,
            sink=sink,
            runner=runner,
            limiter=Limiter(ledger=ledger, hydration_id=planned.hydration.id, budget=budget, memory=runner.memory),
            budget=budget,
            share=budget.credits,
            on_commit=lambda: commits.append(time.perf_counter()),
        )
        began, cpu = time.perf_counter(), time.process_time()
        result = lane.run()
        ended, cpu = time.perf_counter(), time.process_time() - cpu
        ledger.finish(planned.hydration.id)
    if result.outcome is not Outcome.DONE or sorted(sink.rows) != list(range(ranges)):
        raise SystemExit("The rows did not arrive exactly once.")
    window = min(1_000, ranges)
    return Figures(
        ranges=ranges,
        plan_seconds=round(plan_seconds, 3),
        drain_seconds=round(ended - began, 3),
        lane_cpu_seconds=round(cpu, 3),
        first_thousand_ms=round(1000 * (commits[window - 1] - began) / window, 3),
        last_thousand_ms=round(1000 * (ended - commits[-window]) / window, 3),
    )


def url(server: Server) -> str:
    """Return the URL of the server's own database."""
    return f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/postgres"


def main(ranges: int) -> int:
    """Measure and print; 1 where the bound is broken."""
    with tempfile.TemporaryDirectory(prefix="orchestration-") as home:
        services = Services(Path(home), owner_pid=os.getpid())
        try:
            address = url(services.up("postgres")["postgres"])
            migrate(address)
            figures = measure(address, ranges)
        finally:
            services.down(remove=True)
    print(json.dumps({**asdict(figures), "ms_per_range": round(figures.ms_per_range, 3), "bound_ms": BOUND_MS}))
    return 0 if figures.ms_per_range <= BOUND_MS else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
