"""A table of which one row in a hundred has changed, in a tenth of its ranges: mirrored, copied again, and only read.

``python -m benchmarks.mirror`` fills one table, mirrors and replaces a target once, and then lets nights follow: rows
change, and each side brings its target up to date. The floor reads all rows by COPY and drops them.
"""

import argparse
import statistics
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from rich.console import Console

from airflow_provider_backpressure.core.admission.gate_decision import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode, Refresh
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.verification.completion import Completion
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect import ConnectRunner
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from benchmarks.stage import LIGHT, SETTINGS, WORKERS
from dev.databases import open_database
from dev.services import Server, Services, temporary_services
from dev.tpch import fingerprint

HEADING = "A mirror of which one row in a hundred has changed"
SIDES = {"mirror": "ours, `mirror`", "replace": "ours, `replace`: a full copy", "floor": "COPY of all rows to nowhere"}
RANGES = 20
console = Console()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one side took in one night."""

    side: str
    seconds: float
    cpu_seconds: float
    """Of Spark, PostgreSQL and this process."""


def fill(server: Server, rows: int) -> None:
    """Make the source."""
    with open_database(server, "postgres") as connection:
        connection.execute("CREATE SCHEMA raw")
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, body text, cents numeric(12, 2), at timestamp)")
        connection.execute(
            "INSERT INTO t SELECT i, repeat(md5(i::text), 3), i / 100.0, timestamp '2024-01-01' + i * interval '1 s' "
            f"FROM generate_series(1, {rows}) i"
        )
        connection.execute("VACUUM ANALYZE t")


def change(server: Server, rows: int) -> None:
    """Change one row in ten of the first tenth."""
    with open_database(server, "postgres") as connection:
        connection.execute(f"UPDATE t SET cents = cents + 1 WHERE id <= {rows // 10} AND id % 10 = 0")
        connection.execute("VACUUM ANALYZE t")
        connection.execute("CHECKPOINT")


@dataclass(frozen=True, kw_only=True)
class Nights:
    """The open hydrations of both of our sides."""

    url: str
    at: Endpoint
    runner: Runner
    budget: Budget

    def copy(self, mode: Mode, night: str) -> None:
        """Let one run plan, drain, check and publish."""
        with ExitStack() as stack:
            ledger = stack.enter_context(closing(SqlLedger(self.url)))
            source = stack.enter_context(closing(PostgresSource(conn_id="db", table="public.t").open(self.at)))
            sink = stack.enter_context(closing(PostgresSink(conn_id="db", table=f"raw.{mode.value}").open(self.at)))
            planner = Planner(
                source=source,
                sink=sink,
                runner=self.runner,
                ledger=ledger,
                budget=self.budget,
                mode=mode,
                consistency=Consistency.STATIC,
                owner="benchmark",
                cluster="spark",
                run=night,
                refresh=Refresh.EACH_RUN,
            )
            planned = planner.plan()
            hydration_id = planned.hydration.id
            Hydrator(
                hydration_id=hydration_id,
                plan=planned.plan,
                lane="lane",
                ledger=ledger,
                source=source,
                sink=sink,
                runner=self.runner,
                limiter=Limiter(
                    ledger=ledger, hydration_id=hydration_id, budget=self.budget, memory=self.runner.memory
                ),
                budget=self.budget,
                share=self.budget.credits,
                inline_wait=3600,
            ).run()
            Completion(plan=planned.plan, ledger=ledger, sink=sink).check()
            sink.complete(planned.plan)
            sink.publish(planned.plan)
            ledger.finish(hydration_id)


def read_to_nowhere(server: Server) -> None:
    """Read every row of the source by one COPY, and drop it."""
    with (
        open_database(server, "postgres") as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY t TO STDOUT (FORMAT binary)") as copy,
    ):
        for _ in copy:
            pass


def check(server: Server, modes: list[Mode]) -> None:
    """Raise where a target is not its source: figures of half a job say nothing."""
    with open_database(server, "postgres") as connection:
        wanted = fingerprint(connection, "public", "t")
        for mode in modes:
            if (found := fingerprint(connection, "raw", mode.value)) != wanted:
                raise RuntimeError(f"raw.{mode.value} is not equal to its source: {found} instead of {wanted}")


def measure(services: Services, rows: int, nights: int) -> list[Turn]:
    """Let the nights follow, with the sides in another order each time."""
    server = services.up("postgres", fsync=True, settings=SETTINGS)["postgres"]
    conf = WORKERS | {"spark.driver.extraJavaOptions": LIGHT}
    spark = services.up("connect:mirror", jars=(), spark_conf=conf)["connect:mirror"]
    fill(server, rows)
    with open_database(server, "postgres") as connection:
        connection.execute("CREATE DATABASE ledger")
    url = f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/ledger"
    migrate(url)
    at = Endpoint(
        conn_id="db",
        host=server.host,
        port=server.port,
        database="postgres",
        user=server.user or "",
        password=server.password or "",
    )
    turns: list[Turn] = []
    with closing(ConnectRunner(spark.url, {"db": replace(at)}, ui_url=spark.ui_url)) as runner:
        each = Nights(url=url, at=at, runner=runner, budget=Budget(credits=2, range_rows=max(rows // RANGES, 1)))
        modes = [Mode.MIRROR, Mode.REPLACE]
        for mode in modes:
            each.copy(mode, "first")
        # In the night before the first that counts, a tenth of the ranges changes for the first time.
        for night in range(nights + 1):
            change(server, rows)
            order = list(SIDES)[night % 3 :] + list(SIDES)[: night % 3]
            for side in order:
                # The servers are children of this process, so its own time is not that of its tree.
                began = time.process_time()
                with Accounts({"spark": spark.pid or 0, "postgres": server.pid or 0}, own=("spark",)) as accounts:
                    if side == "floor":
                        read_to_nowhere(server)
                    else:
                        each.copy(Mode(side), f"night {night}")
                parts = {name: tree.cpu_seconds for name, tree in accounts.trees.items()}
                parts["client"] = time.process_time() - began
                cpu = sum(parts.values())
                if night:
                    turns.append(Turn(side=side, seconds=accounts.seconds, cpu_seconds=cpu))
                    shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
                    console.print(f"{side}: {accounts.seconds:.1f} s, {cpu:.1f} CPU s ({shown})")
        check(server, modes)
    return turns


def section(command: str, turns: list[Turn], rows: int, about: dict[str, str]) -> str:
    """Return the figures as Markdown: the median of each side."""
    figures = {}
    for side in SIDES:
        own = [each for each in turns if each.side == side]
        seconds, cpu = ([getattr(each, name) for each in own] for name in ("seconds", "cpu_seconds"))
        figures[side] = (statistics.median(seconds), statistics.median(cpu))
    lines = [
        f"| {SIDES[side]} | {seconds:.1f} | {cpu:.1f} | {cpu / figures['replace'][1]:.2f} | "
        f"{cpu / figures['floor'][1]:.2f} |"
        for side, (seconds, cpu) in figures.items()
    ]
    return "\n".join(
        [
            f"{rows:,} rows in {RANGES} ranges. Each night one row in ten of the first tenth changes:",
            f"\n```sh\n{command}\n```\n",
            "| side | wall s | CPU s | CPU over a full copy | CPU over the floor |",
            "|---|---|---|---|---|",
            *lines,
            "",
            "CPU is that of Spark, PostgreSQL and the lane, planning included, `verify` not. In the end each "
            "target is compared with the source.\n",
            report.machine(about),
        ]
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mirror", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--nights", type=int, default=3)
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(jars=())
    with temporary_services() as services:
        turns = measure(services, wanted.rows, wanted.nights)
    command = f"python -m benchmarks.mirror --rows {wanted.rows} --nights {wanted.nights}"
    text = section(command, turns, wanted.rows, about)
    console.print(text, markup=False)
    if wanted.write_docs:
        page.write(HEADING, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
