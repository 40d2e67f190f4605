"""Eight sources on one Spark cluster: two at a time, as the queue lets them, against all at once.

``python -m benchmarks.at_once`` hydrates eight tables into one PostgreSQL with a lane each, in turns of both kinds on
servers of their own, and prints total time, the peak of Spark's memory, and when half of the tables were complete.
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

from rich.console import Console

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from dev.databases import open_database
from dev.services import Server, Services, temporary_services
from dev.tpch import fingerprint

TABLES = 8
SIDES = (2, TABLES)
"""How many sources hydrate at once."""
HEADING = "Eight sources, two at a time or all at once"
MEBIBYTE = 1024 * 1024
CLUSTER = "spark"
console = Console()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one side took."""

    at_once: int
    seconds: float
    half_seconds: float
    """Until half of the tables were complete."""
    peak_bytes: int


def fill(server: Server, rows: int) -> None:
    """Make the sources."""
    with open_database(server, "postgres") as connection:
        connection.execute("CREATE SCHEMA raw")
        for number in range(TABLES):
            connection.execute(f"CREATE TABLE t{number} (id bigint PRIMARY KEY, body text, cents numeric(12, 2))")
            connection.execute(
                f"INSERT INTO t{number} SELECT i, repeat(md5(i::text), 3), i / 100.0 FROM generate_series(1, {rows}) i"
            )
            connection.execute(f"ANALYZE t{number}")


def turn(services: Services, server: Server, at_once: int, *, number: int, range_rows: int) -> Turn:
    """Hydrate all of them with a new Spark server and a new ledger."""
    name = f"connect:{number}"
    spark = services.up(name)[name]
    with open_database(server, "postgres") as connection:
        connection.execute(f"CREATE DATABASE ledger{number}")
        for table in range(TABLES):
            connection.execute(f"DROP TABLE IF EXISTS raw.t{table}")
        connection.execute("DROP TABLE IF EXISTS raw.backpressure_plan, raw.backpressure_commit")
    url = f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/ledger{number}"
    migrate(url)
    with closing(SqlLedger(url)) as ledger:
        ledger.share(Shared.HYDRATIONS, CLUSTER, at_once, who="benchmark")
    began = time.monotonic()
    with Accounts({"spark": spark.pid or 0}) as accounts, ThreadPoolExecutor(TABLES) as pool:
        lanes = [pool.submit(hydrate, url, server, spark, table, range_rows) for table in range(TABLES)]
        ends = sorted(lane.result() - began for lane in lanes)
    services.down(name)
    check(server)
    return Turn(
        at_once=at_once,
        seconds=ends[-1],
        half_seconds=ends[TABLES // 2 - 1],
        peak_bytes=accounts.trees["spark"].peak_bytes,
    )


def check(server: Server) -> None:
    """Raise where a target is not its source: figures of half a job say nothing."""
    with open_database(server, "postgres") as connection:
        for table in (f"t{number}" for number in range(TABLES)):
            here, there = (fingerprint(connection, schema, table) for schema in ("public", "raw"))
            if here != there:
                raise RuntimeError(f"raw.{table} is not equal to its source: {there} instead of {here}")


def hydrate(url: str, server: Server, spark: Server, table: int, range_rows: int) -> float:
    """Be one table's lane, and return when it was complete."""
    at = Endpoint(
        conn_id="db",
        host=server.host,
        port=server.port,
        database="postgres",
        user=server.user or "",
        password=server.password or "",
    )
    budget = Budget(credits=2, range_rows=range_rows)
    with ExitStack() as stack:
        ledger = stack.enter_context(closing(SqlLedger(url)))
        source = stack.enter_context(closing(PostgresSource(conn_id="db", table=f"public.t{table}").open(at)))
        sink = stack.enter_context(closing(PostgresSink(conn_id="db", table=f"raw.t{table}").open(at)))
        runner = stack.enter_context(closing(ConnectRunner(spark.url, {"db": at}, ui_url=spark.ui_url)))
        planned = Planner(
            source=source,
            sink=sink,
            runner=runner,
            ledger=ledger,
            budget=budget,
            mode=Mode.APPEND,
            consistency=Consistency.STATIC,
            owner="benchmark",
            cluster=CLUSTER,
        ).plan()
        Hydrator(
            hydration_id=planned.hydration.id,
            plan=planned.plan,
            lane=f"lane {table}",
            ledger=ledger,
            source=source,
            sink=sink,
            runner=runner,
            limiter=Limiter(ledger=ledger, hydration_id=planned.hydration.id, budget=budget, memory=runner.memory),
            budget=budget,
            share=budget.credits,
            inline_wait=3600,
        ).run()
        ledger.finish(planned.hydration.id)
    return time.monotonic()


def section(command: str, turns: list[Turn], about: dict[str, str]) -> str:
    """Return the figures as Markdown: the median of each side."""
    lines = []
    for at_once in SIDES:
        own = [each for each in turns if each.at_once == at_once]
        seconds, half, most = (
            statistics.median(getattr(each, name) for each in own) for name in ("seconds", "half_seconds", "peak_bytes")
        )
        lines.append(f"| {at_once} | {seconds:.1f} | {half:.1f} | {most / MEBIBYTE:,.0f} |")
    return "\n".join(
        [
            f"{TABLES} tables into one PostgreSQL through one Spark Connect server, with a lane and two credits each:",
            f"\n```sh\n{command}\n```\n",
            "| at once | total s | half of them complete after s | Spark's peak MiB |",
            "|---|---|---|---|",
            *lines,
            "",
            report.machine(about),
        ]
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.at_once", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="of each table")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--range-rows", type=int, default=100_000)
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(jars=())
    turns: list[Turn] = []
    with temporary_services() as services:
        server = services.up("postgres")["postgres"]
        fill(server, wanted.rows)
        for number in range(2 * wanted.rounds):
            # 2, 8, 8, 2: what drifts meets both.
            at_once = SIDES[(number + number // 2) % 2]
            found = turn(services, server, at_once, number=number, range_rows=wanted.range_rows)
            turns.append(found)
            console.print(
                f"{at_once} at once: {found.seconds:.1f} s, half after {found.half_seconds:.1f} s, "
                f"peak {found.peak_bytes / MEBIBYTE:,.0f} MiB"
            )
    command = f"python -m benchmarks.at_once --rows {wanted.rows} --rounds {wanted.rounds}"
    text = section(command, turns, about)
    console.print(text)
    if wanted.write_docs:
        page.write(HEADING, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
