"""A plan of a million ranges: how long planning takes, and what a range costs at its end against one at the beginning.

``python -m benchmarks.million`` starts a PostgreSQL for the ledger and stores a plan of 1,000,000 ranges. One SQL
statement then marks all but the last of them as committed, as a lane would have within hours. What is left is drained
in turns with the first ranges of a fresh plan, some at a time: both see the same machine. Source, sink and runner are
in memory and keep nothing, so that the process's memory is the lane's own.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import greenlet
import sqlalchemy as sa
from rich.console import Console

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.plan_result import Planned
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.bounds import cover
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeState, number_ranges
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.models import hydration, range_
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.ledger.sql_types import utc_now
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from benchmarks import machine, page, report
from benchmarks.orchestration import url
from dev.services import temporary_services

HEADING = "A million ranges"
PLAN_SECONDS = 10.0
GROWTH = 1.2
MEMORY_MIB = 8.0
WARM = 500
"""Ranges of each side before anything is measured."""
TURN = 50
"""Ranges of one side's turn."""
console = Console()


class LeanSource(MemorySource):
    """Cuts ranges of one key each as they are asked for, as sources do that have the boundaries from a server."""

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """See ``Source.ranges``."""
        return number_ranges(cover(("id",), ((str(key),) for key in self.keys[1:])), rows=1, row_bytes=8.0)


class LeanSink(MemorySink):
    """Forgets rows and marker once the lane has seen the marker."""

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        """See ``Sink.markers``."""
        found = super().markers(plan_id, slice_ids)
        self.rows.clear()
        for slice_id in found:
            self._markers.pop((plan_id, slice_id))
        return found


class LeanRunner(MemoryRunner):
    """Remembers nothing of what it was given."""

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See ``Runner.run``."""
        future = super().run(spec)
        self.submitted.clear()
        return future


@dataclass(kw_only=True)
class Side:
    """One plan and its lane, which stops after each turn."""

    ledger: SqlLedger
    name: str
    ranges: int
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)
    plan_seconds: float = 0.0
    plan_cpu_seconds: float = 0.0
    _commits: int = 0

    def plan(self) -> Planned:
        """Store the plan."""
        self.source = LeanSource(keys=range(self.ranges), identity=f"memory://{self.name}")
        self.sink = LeanSink(identity=f"memory://into-{self.name}")
        self.runner, self.budget = LeanRunner(source=self.source, sink=self.sink), Budget(range_rows=1)
        began, cpu = time.perf_counter(), time.process_time()
        self.planned = Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="benchmark",
            cluster="memory",
        ).plan()
        self.plan_seconds, self.plan_cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        return self.planned

    def begin(self) -> None:
        """Make the lane, which waits for its first turn."""
        hydration_id = self.planned.hydration.id
        lane = Hydrator(
            hydration_id=hydration_id,
            plan=self.planned.plan,
            lane="lane",
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=Limiter(
                ledger=self.ledger, hydration_id=hydration_id, budget=self.budget, memory=self.runner.memory
            ),
            budget=self.budget,
            share=self.budget.credits,
            on_commit=self._committed,
        )
        self._lane = greenlet.greenlet(lane.run)

    def turn(self, *, measured: bool) -> None:
        """Let the lane commit as many ranges as a turn has."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._lane.switch()
        if measured:
            self.walls.append(time.perf_counter() - wall)
            self.cpus.append(time.process_time() - cpu)

    def _committed(self) -> None:
        self._commits += 1
        if self._commits % TURN == 0:
            parent = greenlet.getcurrent().parent
            assert parent is not None
            parent.switch()


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; times of the machine as it was."""

    ranges: int
    measured: int
    plan_seconds: float
    plan_cpu_seconds: float
    """Processor time of the planner's process, without PostgreSQL's."""
    first_ms: float
    last_ms: float
    first_cpu_ms: float
    last_cpu_ms: float
    wall_growth: float
    """Median over the pairs of turns: the time of the plan's end over that of the fresh plan's turn beside it."""
    cpu_growth: float
    plan_memory_mib: float
    """By how much planning has raised the peak of the process's memory."""
    lane_memory_mib: float
    """By how much the process's memory grew while both sides were measured."""


def resident_mib() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mib() -> float:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def mark_committed(engine: sa.Engine, plan_id: str, *, below: int) -> None:
    """Mark the ranges below a sequence number as committed, as if a lane had done them."""
    now = utc_now()
    with engine.begin() as connection:
        connection.execute(
            sa.update(range_)
            .where(range_.c.plan_id == plan_id, range_.c.seq < below)
            .values(
                state=RangeState.COMMITTED.value,
                attempt=1,
                lane="lane",
                session_id="memory-session",
                committed_rows=1,
                committed_bytes=8,
                checksum="memory:0000000000000000",
                admitted_at=now,
                committed_at=now,
            )
        )
        connection.execute(sa.update(hydration).where(hydration.c.plan_id == plan_id).values(next_seq=below))
    if engine.dialect.name == "postgresql":
        # What autovacuum would have done meanwhile; otherwise it would run while one of the sides is at work.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"VACUUM {range_.name}")


def measure(ledger_url: str, ranges: int, measured: int, *, say: Callable[[str], None] = lambda text: None) -> Figures:
    """Plan, mark, and drain the end of one plan in turns with the beginning of another."""
    todo = WARM + measured
    with closing(SqlLedger(ledger_url)) as one, closing(SqlLedger(ledger_url)) as other:
        # What planning needs beside its ranges is there already.
        first = Side(ledger=other, name="first", ranges=todo + TURN)
        first.plan()
        before = peak_mib()
        last = Side(ledger=one, name="last", ranges=ranges)
        planned = last.plan()
        plan_memory = peak_mib() - before
        say(f"{ranges:,} ranges planned in {last.plan_seconds:.1f} s, CPU {last.plan_cpu_seconds:.1f} s")
        engine = sa.create_engine(ledger_url)
        mark_committed(engine, planned.plan.plan_id, below=ranges - todo - TURN)
        engine.dispose()
        sides = [first, last]
        for side in sides:
            side.begin()
        resident = 0.0
        for number in range(todo // TURN):
            if number * TURN == WARM:
                resident = resident_mib()
            for side in sides:
                side.turn(measured=number * TURN >= WARM)
            sides.reverse()
        grown = resident_mib() - resident
    return Figures(
        ranges=ranges,
        measured=measured,
        plan_seconds=last.plan_seconds,
        plan_cpu_seconds=last.plan_cpu_seconds,
        first_ms=1000 * sum(first.walls) / measured,
        last_ms=1000 * sum(last.walls) / measured,
        first_cpu_ms=1000 * sum(first.cpus) / measured,
        last_cpu_ms=1000 * sum(last.cpus) / measured,
        wall_growth=median(late / early for early, late in zip(first.walls, last.walls, strict=True)),
        cpu_growth=median(late / early for early, late in zip(first.cpus, last.cpus, strict=True)),
        plan_memory_mib=plan_memory,
        lane_memory_mib=grown,
    )


def promises(found: Figures) -> list[tuple[str, str, bool]]:
    """Return each bound with its figure, and whether it holds."""
    return [
        (f"planned in at most {PLAN_SECONDS:g} s", f"{found.plan_seconds:.1f} s", found.plan_seconds <= PLAN_SECONDS),
        (f"wall time of a range at most {GROWTH:g} times", f"{found.wall_growth:.2f}", found.wall_growth <= GROWTH),
        (f"CPU time of a range at most {GROWTH:g} times", f"{found.cpu_growth:.2f}", found.cpu_growth <= GROWTH),
        (
            f"memory of the lane grows by at most {MEMORY_MIB:g} MiB",
            f"{found.lane_memory_mib:.1f} MiB",
            found.lane_memory_mib <= MEMORY_MIB,
        ),
    ]


def section(found: Figures, about: dict[str, str]) -> str:
    """Return the figures as Markdown."""
    held = [f"- {text}: {figure}, {'held' if ok else 'MISSED'}" for text, figure, ok in promises(found)]
    return "\n".join(
        [
            f"A plan of {found.ranges:,} ranges in a ledger on PostgreSQL, stored in {found.plan_seconds:.1f} s with "
            f"{found.plan_cpu_seconds:.1f} s of the planner's CPU. The last {found.measured:,} of them are drained in "
            f"turns with the first of a fresh plan, {TURN} at a time. Source, target and Spark are in memory, so this "
            "is what gate, ledger and lane cost:",
            "\n```sh\npython -m benchmarks.million\n```\n",
            "| ranges | ms per range | CPU ms of the lane |",
            "|---|---|---|",
            f"| the first of a plan | {found.first_ms:.1f} | {found.first_cpu_ms:.1f} |",
            f"| the last of a million | {found.last_ms:.1f} | {found.last_cpu_ms:.1f} |",
            "",
            *held,
            "",
            report.machine(about),
        ]
    )


def main() -> int:
    """Measure and print; 1 where a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__)
    parser.add_argument("--ranges", type=int, default=1_000_000)
    parser.add_argument("--measured", type=int, default=4_000)
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(jars=())
    with temporary_services() as services:
        address = url(services.up("postgres")["postgres"])
        migrate(address)
        found = measure(address, wanted.ranges, wanted.measured, say=console.print)
    console.print(section(found, about))
    if wanted.write_docs:
        page.write(HEADING, section(found, about))
    return 0 if all(ok for _, _, ok in promises(found)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
