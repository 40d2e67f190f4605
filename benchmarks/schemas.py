"""Whole schemas: many tables from one declaration, by one task group, from the run's begin to verified.

``python -m benchmarks.schemas --tables 1000 --rows 1000`` starts PostgreSQL and Spark Connect, and lets Airflow run the
DAG once, with ``airflow dags test``. It prints how long each task took, and how many there were.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
import requests
from rich.console import Console

from airflow_provider_backpressure.core.gate.queue import CONCURRENCY
from airflow_provider_backpressure.ledger.migration import migrate
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from dev.airflow import Airflow
from dev.services import Server, Services

HEADING = "Whole schemas"
DAG_ID = "schemas"
DATABASES = ("airflow", "ledger", "shop", "warehouse")
DAG = f"""
from airflow.sdk import DAG

from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

with DAG("{DAG_ID}", schedule=None):
    hydrate(
        source=PostgresSource(conn_id="shop_db", tables="public.t*"),
        sink=PostgresSink(conn_id="warehouse", table="raw.{{table}}"),
        spark_conn_id="spark_connect_default",
    )
"""
console = Console()


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; times of the machine as it was."""

    tables: int
    rows: int
    """Of each table."""
    tasks: dict[str, float]
    """Seconds of each task instance."""
    wall_seconds: float
    """From the first task's begin to the last one's end."""
    tokens: int
    """Tables that were drained at once."""
    cpu_seconds: dict[str, float]
    """Of each tree of processes, from the command's begin to its end."""
    jobs: int
    """Spark jobs."""


def database(server: Server, name: str, **more: str) -> dict[str, Any]:
    """Return a database as Airflow's file of connections has it."""
    return {
        "conn_type": "postgres",
        "host": server.host,
        "port": server.port,
        "login": server.user,
        "password": server.password,
        "schema": name,
        **more,
    }


def url(server: Server, name: str) -> str:
    """Return a database's URL for SQLAlchemy."""
    return f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/{name}"


def connect(server: Server, name: str) -> "psycopg.Connection[tuple[Any, ...]]":
    """Connect to a database."""
    return psycopg.connect(
        host=server.host, port=server.port, user=server.user, password=server.password, dbname=name, autocommit=True
    )


def fill(server: Server, tables: int, rows: int) -> None:
    """Make the databases, and the tables of the source."""
    with closing(connect(server, "postgres")) as link:
        for name in DATABASES:
            link.execute(f"CREATE DATABASE {name}")
    with closing(connect(server, "shop")) as link:
        for number in range(tables):
            link.execute(
                f"CREATE TABLE t{number:04} AS SELECT i AS id, i * 1.25::numeric(15,2) AS amount, "
                f"md5(i::text) AS comment, now() AS at FROM generate_series(1::bigint, {rows}) i"
            )
            link.execute(f"ALTER TABLE t{number:04} ADD PRIMARY KEY (id)")
        link.execute("ANALYZE")


def install(home: Path, postgres: Server, spark: Server) -> Airflow:
    """Return an Airflow whose tables, and the ledger's, exist; nothing of it runs."""
    dags = home / "dags"
    dags.mkdir(parents=True)
    (dags / "schemas.py").write_text(DAG)
    place = {"conn_type": "spark_connect", "host": spark.host, "port": spark.port}
    airflow = Airflow(
        home=home / "airflow",
        dags=dags,
        metadata_url=url(postgres, "airflow"),
        connections={
            "shop_db": database(postgres, "shop"),
            "warehouse": database(postgres, "warehouse"),
            "backpressure_default": database(postgres, "ledger", conn_type="backpressure"),
            "spark_connect_default": {**place, "extra": json.dumps({"ui_url": spark.ui_url})},
        },
    )
    airflow.command("db", "migrate")
    migrate(url(postgres, "ledger"))
    return airflow


def allow(airflow: Airflow, tokens: int) -> None:
    """Let the cluster drain so many tables at once."""
    wanted = ("--cluster", "spark_connect_default", "--concurrency", str(tokens), "--why", "many small tables")
    airflow.command("backpressure", "queue", *wanted)


def run(airflow: Airflow, log: Path, servers: dict[str, Server]) -> dict[str, float]:
    """Run the DAG once, with what Airflow prints in a file; return the CPU seconds of the servers.

    An error where a task has failed.
    """
    with log.open("w") as output:
        task = subprocess.Popen(
            [sys.executable, "-m", "airflow", "dags", "test", DAG_ID],
            env=airflow.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        # Not the command's own: a process that has ended when it is looked at last counts as none.
        roots = {name: server.pid or 0 for name, server in servers.items()}
        with Accounts(roots, own=list(roots)) as accounts:
            task.wait()
    if task.returncode:
        raise SystemExit(f"The run has failed:\n{log.read_text()[-8000:]}")
    return {name: round(tree.cpu_seconds, 1) for name, tree in accounts.trees.items()}


def count_jobs(ui_url: str | None) -> int:
    """Return how many jobs Spark has begun: the number of the latest one."""
    pages = f"{ui_url}/api/v1/applications"
    application = requests.get(pages, timeout=10).json()[0]["id"]
    jobs = requests.get(f"{pages}/{application}/jobs", timeout=10).json()
    return max((int(job["jobId"]) for job in jobs), default=-1) + 1


def measure(server: Server, tables: int, rows: int, **more: Any) -> Figures:
    """Return the figures of the run that has ended, as Airflow's own tables have them; see that all rows arrived."""
    with closing(connect(server, "airflow")) as link:
        found = link.execute(
            "SELECT task_id, map_index, start_date, end_date, state FROM task_instance ORDER BY start_date"
        ).fetchall()
    with closing(connect(server, "warehouse")) as link:
        for number in range(tables):
            (count,) = link.execute(f"SELECT count(*) FROM raw.t{number:04}").fetchone() or (0,)
            if count != rows:
                raise SystemExit(f"raw.t{number:04} holds {count} of {rows} rows.")
    if {state for *_, state in found} != {"success"}:
        raise SystemExit(f"Tasks have failed: {found}")
    names = {f"{task_id}[{index}]" if index >= 0 else task_id: (start, end) for task_id, index, start, end, _ in found}
    first, last = min(start for start, _ in names.values()), max(end for _, end in names.values())
    return Figures(
        tables=tables,
        rows=rows,
        tasks={name: round((end - start).total_seconds(), 1) for name, (start, end) in names.items()},
        wall_seconds=round((last - first).total_seconds(), 1),
        **more,
    )


def section(every: list[Figures], about: dict[str, str]) -> str:
    """Return the figures as Markdown."""
    head = (
        *("tables", "rows of each", "tokens", "task instances", "Spark jobs"),
        *("planned in s", "drained in s", "verified in s", "all in s"),
        *("CPU s of PostgreSQL", "of Spark"),
    )
    lines = [
        (
            f"{found.tables:,}",
            f"{found.rows:,}",
            str(found.tokens),
            str(len(found.tasks)),
            f"{found.jobs:,}",
            *(f"{seconds:,.1f}" for seconds in found.tasks.values()),
            f"{found.wall_seconds:,.1f}",
            *(f"{seconds:,.1f}" for seconds in found.cpu_seconds.values()),
        )
        for found in every
    ]
    commands = [
        f"python -m benchmarks.schemas --tables {found.tables} --rows {found.rows} --tokens {found.tokens}"
        for found in every
    ]
    return "\n".join(
        [
            "PostgreSQL to PostgreSQL, each table with a key and four columns, from one",
            "[declaration](../howto/several-tables.md) with a pattern and default budget; source, target, ledger,",
            "Airflow and Spark share the machine. Airflow's own time between tasks is in its CPU, not in the seconds.",
            "Task instances do not grow with the tables; seconds do, and with whatever else the machine does.",
            "\n```sh",
            *commands,
            "```\n",
            report.markdown(head, lines),
            "",
            report.machine(about),
        ]
    )


def main(words: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemas", description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=[1_000])
    parser.add_argument("--rows", type=int, default=1_000, help="of each table")
    parser.add_argument("--tokens", type=int, default=CONCURRENCY, help="tables that are drained at once")
    parser.add_argument("--log", type=Path, help="write here what Airflow prints")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args(words)
    about, every = machine.describe(jars=()), []
    for tables in wanted.tables:
        with tempfile.TemporaryDirectory(prefix="schemas-") as home:
            services = Services(Path(home), owner_pid=os.getpid())
            try:
                servers = services.up("postgres", "connect")
                fill(servers["postgres"], tables, wanted.rows)
                airflow = install(services.guest("airflow"), servers["postgres"], servers["connect"])
                allow(airflow, wanted.tokens)
                began = time.monotonic()
                log = wanted.log or Path(home) / "log"
                cpu = run(airflow, log, {"PostgreSQL": servers["postgres"], "Spark": servers["connect"]})
                console.print(f"airflow dags test: {time.monotonic() - began:.1f} s")
                jobs = count_jobs(servers["connect"].ui_url)
                more = {"tokens": wanted.tokens, "cpu_seconds": cpu, "jobs": jobs}
                every.append(measure(servers["postgres"], tables, wanted.rows, **more))
            finally:
                services.down(remove=True)
        console.print(json.dumps(asdict(every[-1])), highlight=False, soft_wrap=True)
    if wanted.write_docs:
        page.write(HEADING, section(every, about))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
