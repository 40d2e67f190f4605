"""What a range costs without Spark: planning, gate, ledger and loop, over an in-memory source, sink and runner.

``python -m benchmarks.orchestration [RANGES]`` starts a PostgreSQL for the ledger, drains the ranges as one lane and
prints the time of each. The bound is 10 ms a range over 10,000 ranges. A second, smaller drain, of which no time is
taken, counts what goes between lane and ledger.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from rich.console import Console

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from benchmarks import machine, page, report
from dev.services import Server, temporary_services

HEADING = "A range without Spark"
BOUND_MS = 10.0
COUNTED = 1_000
"""Ranges of the drain that is counted."""
console = Console()


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

    statements_per_range: float
    trips_per_range: float
    """Exchanges with the server, those that begin, end and test connections and transactions included."""

    @property
    def ms_per_range(self) -> float:
        """Wall time of one range, in milliseconds."""
        return 1000 * self.drain_seconds / self.ranges


@dataclass(kw_only=True)
class Drain:
    """One plan of ranges of one row each, and the one lane that drains it."""

    name: str
    ranges: int
    plan_seconds: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    commits: list[float] = field(default_factory=list)
    """When each range was done, in seconds since the lane began."""

    def __post_init__(self) -> None:
        """Make what the rows go through."""
        self.budget = Budget(range_rows=1)
        self.source = MemorySource(keys=range(self.ranges), identity=f"memory://{self.name}")
        self.sink = MemorySink()
        self.runner = MemoryRunner(source=self.source, sink=self.sink)

    def plan(self, ledger: SqlLedger) -> None:
        """Store the plan."""
        began = time.perf_counter()
        self.planned = Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="benchmark",
            cluster="memory",
        ).plan()
        self.plan_seconds = time.perf_counter() - began

    def run(self, ledger: SqlLedger) -> None:
        """Drain it, and see that everything arrived."""
        hydration_id = self.planned.hydration.id
        limiter = Limiter(ledger=ledger, hydration_id=hydration_id, budget=self.budget, memory=self.runner.memory)
        lane = Hydrator(
            hydration_id=hydration_id,
            plan=self.planned.plan,
            lane="lane",
            ledger=ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=limiter,
            budget=self.budget,
            share=self.budget.credits,
            on_commit=lambda: self.commits.append(time.perf_counter() - began),
        )
        began, cpu = time.perf_counter(), time.process_time()
        result = lane.run()
        self.seconds, self.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        ledger.finish(hydration_id)
        if result.outcome is not Outcome.DONE or sorted(self.sink.rows) != list(range(self.ranges)):
            raise SystemExit("The rows did not arrive exactly once.")


@dataclass(kw_only=True)
class Traffic:
    """What went to the ledger's server."""

    statements: int = 0
    trips: int = 0


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count what goes through connections that are opened within the block, to the end of it.

    The server ends each exchange by saying that it is ready, which libpq writes down in its trace. That takes time.
    """
    found = Traffic()

    def count(*_: Any) -> None:
        found.statements += 1

    with tempfile.NamedTemporaryFile() as trace:

        def follow(connection: Any, _: Any) -> None:
            connection.pgconn.trace(os.dup(trace.fileno()))

        sa.event.listen(sa.Engine, "after_cursor_execute", count)
        sa.event.listen(sa.Engine, "connect", follow)
        try:
            yield found
        finally:
            sa.event.remove(sa.Engine, "after_cursor_execute", count)
            sa.event.remove(sa.Engine, "connect", follow)
        found.trips = Path(trace.name).read_bytes().count(b"ReadyForQuery")


def traffic(ledger_url: str, ranges: int) -> Traffic:
    """Return what a drain of so many ranges sends, its end included and its plan not."""
    drain = Drain(name="counted", ranges=ranges)
    with closing(SqlLedger(ledger_url)) as ledger:
        drain.plan(ledger)
    with counted() as found, closing(SqlLedger(ledger_url)) as ledger:
        drain.run(ledger)
    return found


def measure(ledger_url: str, ranges: int) -> Figures:
    """Plan and drain so many ranges of one row each, and count what goes to the ledger meanwhile."""
    drain = Drain(name="timed", ranges=ranges)
    with closing(SqlLedger(ledger_url)) as ledger:
        drain.plan(ledger)
        drain.run(ledger)
    window, number = min(1_000, ranges), min(COUNTED, ranges)
    sent = traffic(ledger_url, number)
    return Figures(
        ranges=ranges,
        plan_seconds=round(drain.plan_seconds, 3),
        drain_seconds=round(drain.seconds, 3),
        lane_cpu_seconds=round(drain.cpu_seconds, 3),
        first_thousand_ms=round(1000 * drain.commits[window - 1] / window, 3),
        last_thousand_ms=round(1000 * (drain.seconds - drain.commits[-window]) / window, 3),
        statements_per_range=round(sent.statements / number, 2),
        trips_per_range=round(sent.trips / number, 2),
    )


def url(server: Server) -> str:
    """Return the URL of the server's own database."""
    return f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/postgres"


def section(found: Figures, about: dict[str, str]) -> str:
    """Return the figures as Markdown."""
    held = found.ms_per_range <= BOUND_MS
    cpu = 1000 * found.lane_cpu_seconds / found.ranges
    figures = [
        ("ranges planned a second", f"{found.ranges / found.plan_seconds:,.0f}"),
        ("ms per range", f"{found.ms_per_range:.2f}"),
        ("of it CPU of the lane", f"{cpu:.2f}"),
        ("ms per range, first thousand", f"{found.first_thousand_ms:.2f}"),
        ("ms per range, last thousand", f"{found.last_thousand_ms:.2f}"),
        ("statements to the ledger per range", f"{found.statements_per_range:.1f}"),
        ("round trips to the ledger per range", f"{found.trips_per_range:.1f}"),
    ]
    return "\n".join(
        [
            f"One lane drains {found.ranges:,} ranges of one row. Source, target and Spark are in memory and the",
            "ledger is on PostgreSQL, so this is what gate, ledger and loop cost:",
            f"\n```sh\npython -m benchmarks.orchestration {found.ranges}\n```\n",
            report.markdown(("what", "figure"), figures),
            "",
            "A round trip is an exchange with the server: a statement, or what begins, ends or tests a transaction's",
            "connection. So a ledger further away adds its distance so many times to each range of a lane. They were",
            "counted in a drain of their own, of which no time was taken.",
            "",
            f"- At most {BOUND_MS:g} ms per range: {found.ms_per_range:.2f} ms, {'held' if held else 'MISSED'}",
            "",
            report.machine(about),
        ]
    )


def main(words: list[str] | None = None) -> int:
    """Measure and print; 1 where the bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration", description=__doc__)
    parser.add_argument("ranges", type=int, nargs="?", default=10_000)
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args(words)
    about = machine.describe(jars=())
    with temporary_services() as services:
        address = url(services.up("postgres")["postgres"])
        migrate(address)
        found = measure(address, wanted.ranges)
    told = {**asdict(found), "ms_per_range": round(found.ms_per_range, 3), "bound_ms": BOUND_MS}
    console.print(json.dumps(told), highlight=False, soft_wrap=True)
    if wanted.write_docs:
        page.write(HEADING, section(found, about))
    return 0 if found.ms_per_range <= BOUND_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
