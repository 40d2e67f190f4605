"""Whole schemas: many tables from one declaration, by one task group, from the run's begin to verified.

``python -m benchmarks.schemas --tables 1000 --rows 1000`` starts PostgreSQL and Spark Connect, and lets Airflow run the
DAG once, with ``airflow dags test``. It prints how long each task took, and how many there were. With ``--sides`` other
tools copy the same tables, each into a database of its own. With ``--standalone`` the run is triggered in an ``airflow
standalone``, see :mod:`benchmarks.standalone`.
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
from pyspark.sql.connect.session import SparkSession
from rich.console import Console

from airflow_provider_backpressure.core.default_limits import HYDRATIONS_AT_ONCE
from airflow_provider_backpressure.ledger.migration import migrate
from benchmarks import machine, page, report, standalone
from benchmarks.accounting import Accounts
from benchmarks.sides.peers import Peer, make_order, read_child_seconds
from benchmarks.sides.pgcopydb import Pgcopydb
from benchmarks.sides.side import SCHEMA, Side
from dev.airflow import Airflow
from dev.services import Server, Services

HEADING = "Whole schemas"
OURS = "ours"
PEERS = {"dlt": "dlt", "pgcopydb": "pgcopydb, into empty tables"}
TABLE = "CREATE TABLE {} (id bigint PRIMARY KEY, amount numeric, comment text, at timestamptz)"
"""What the tables of the source are."""
DAG_ID = "schemas"
LARGE_ROWS = 1_000_000
ALL = "all"
"""The tree of the benchmark itself, of which every server is a part."""
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
    large: int = 0
    """Tables of :data:`LARGE_ROWS` beside them."""
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
    peak_bytes: int
    """Most memory of Airflow, Spark and the benchmark's own process together."""


@dataclass(frozen=True, kw_only=True)
class PeerFigures:
    """What another tool took for the same tables."""

    side: str
    tables: int
    rows: int
    """Of each table."""
    large: int = 0
    """Tables of :data:`LARGE_ROWS` beside them."""
    wall_seconds: float
    cpu_seconds: dict[str, float]
    """Of PostgreSQL, and of the tool."""
    peak_bytes: int
    """Most memory of the tool and the benchmark's own process together."""


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


def size_tables(tables: int, rows: int, large: int = 0) -> dict[str, int]:
    """Return the rows of each table of the source, the large ones last, by its name."""
    sizes = [rows] * tables + [LARGE_ROWS] * large
    return {f"t{number:04}": size for number, size in enumerate(sizes)}


def fill(server: Server, sizes: dict[str, int]) -> None:
    """Make the databases, and the tables of the source."""
    with closing(connect(server, "postgres")) as link:
        for name in DATABASES:
            link.execute(f"CREATE DATABASE {name}")
    with closing(connect(server, "shop")) as link:
        for name, rows in sizes.items():
            link.execute(
                f"CREATE TABLE {name} AS SELECT i AS id, i * 1.25::numeric(15,2) AS amount, "
                f"md5(i::text) AS comment, now() AS at FROM generate_series(1::bigint, {rows}) i"
            )
            link.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
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


def run(airflow: Airflow, log: Path, servers: dict[str, Server]) -> tuple[dict[str, float], int]:
    """Run the DAG once, with what Airflow prints in a file; return the CPU seconds of the servers and of Airflow.

    With it most memory of all but PostgreSQL. An error where a task has failed.
    """
    spent = read_child_seconds()
    with log.open("w") as output:
        task = subprocess.Popen(
            [sys.executable, "-m", "airflow", "dags", "test", DAG_ID],
            env=airflow.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        # Not the command's own: a process that has ended when it is looked at last counts as none.
        roots = {name: server.pid or 0 for name, server in servers.items()}
        with Accounts({**roots, ALL: os.getpid()}, own=[ALL], apart=["PostgreSQL"]) as accounts:
            task.wait()
    if task.returncode:
        raise SystemExit(f"The run has failed:\n{log.read_text()[-8000:]}")
    found = {name: accounts.trees[name].cpu_seconds for name in roots}
    found["Airflow"] = read_child_seconds() - spent
    return {name: round(seconds, 1) for name, seconds in found.items()}, accounts.peak_bytes


def run_peer(servers: dict[str, Server], side: str, tables: int, rows: int, large: int, home: Path) -> PeerFigures:
    """Let another tool copy all tables of the source, and see that all rows arrived."""
    server = servers["postgres"]
    sizes = size_tables(tables, rows, large)
    with closing(connect(server, "postgres")) as link:
        link.execute(f"CREATE DATABASE {side}")
    order = make_order(server, source="shop", sink=side, table="", rows=sum(sizes.values()), folder=home / side)
    if side == "pgcopydb":
        with closing(connect(server, side)) as link:
            for name in sizes:
                link.execute(TABLE.format(name))
    one: Side = Pgcopydb(order) if side == "pgcopydb" else Peer(side, order)
    spent = read_child_seconds()
    roots = {"PostgreSQL": server.pid or 0, "Spark": servers["connect"].pid or 0}
    with Accounts({**roots, ALL: os.getpid()}, own=[ALL], apart=list(roots)) as accounts:
        one.run()
    cpu = {"PostgreSQL": accounts.trees["PostgreSQL"].cpu_seconds, "tool": read_child_seconds() - spent}
    check_rows(server, side, "public" if side == "pgcopydb" else SCHEMA, sizes)
    return PeerFigures(
        side=side,
        tables=tables,
        rows=rows,
        large=large,
        wall_seconds=round(accounts.seconds, 1),
        cpu_seconds={name: round(seconds, 1) for name, seconds in cpu.items()},
        peak_bytes=accounts.peak_bytes,
    )


def check_rows(server: Server, database_name: str, schema: str, sizes: dict[str, int]) -> None:
    """Raise where a target does not hold as many rows as its source."""
    with closing(connect(server, database_name)) as link:
        for name, rows in sizes.items():
            (count,) = link.execute(f"SELECT count(*) FROM {schema}.{name}").fetchone() or (0,)
            if count != rows:
                raise SystemExit(f"{schema}.{name} holds {count} of {rows} rows.")


def count_jobs(ui_url: str | None) -> int:
    """Return how many jobs Spark has begun: the number of the latest one."""
    pages = f"{ui_url}/api/v1/applications"
    application = requests.get(pages, timeout=10).json()[0]["id"]
    jobs = requests.get(f"{pages}/{application}/jobs", timeout=10).json()
    return max((int(job["jobId"]) for job in jobs), default=-1) + 1


def measure(server: Server, tables: int, rows: int, large: int, **more: Any) -> Figures:
    """Return the figures of the run that has ended, as Airflow's own tables have them; see that all rows arrived."""
    with closing(connect(server, "airflow")) as link:
        found = link.execute(
            "SELECT task_id, map_index, start_date, end_date, state FROM task_instance ORDER BY start_date"
        ).fetchall()
    check_rows(server, "warehouse", SCHEMA, size_tables(tables, rows, large))
    if {state for *_, state in found} != {"success"}:
        raise SystemExit(f"Tasks have failed: {found}")
    names = {f"{task_id}[{index}]" if index >= 0 else task_id: (start, end) for task_id, index, start, end, _ in found}
    first, last = min(start for start, _ in names.values()), max(end for _, end in names.values())
    return Figures(
        tables=tables,
        rows=rows,
        large=large,
        tasks={name: round((end - start).total_seconds(), 1) for name, (start, end) in names.items()},
        wall_seconds=round((last - first).total_seconds(), 1),
        **more,
    )


def compare(every: list[Figures], peers: list[PeerFigures]) -> list[str]:
    """Return the sides beside one another, as lines of Markdown; none where there is only ours."""
    if not peers:
        return []
    named: list[tuple[str, Figures | PeerFigures]] = [("ours, verified", found) for found in every]
    named += [(PEERS[found.side], found) for found in peers]
    lines = [
        (
            *(words, f"{found.tables + found.large:,}", f"{found.wall_seconds:,.1f}", *_share(found.cpu_seconds)),
            f"{found.peak_bytes / report.MEBIBYTE:,.0f}",
        )
        for words, found in named
    ]
    head = ("side", "tables", "all in s", "CPU s of PostgreSQL", "of all others", "peak MiB")
    about = (
        "Other tools from their begin to their end, without a comparison of rows. The peak is the most memory of all\n"
        "but PostgreSQL together: ours has Spark and Airflow in it, and each the benchmark's own process.\n"
    )
    return ["", about, report.markdown(head, lines)]


def _share(cpu_seconds: dict[str, float]) -> tuple[str, str]:
    database = cpu_seconds["PostgreSQL"]
    return f"{database:,.1f}", f"{sum(cpu_seconds.values()) - database:,.1f}"


def section(every: list[Figures], peers: list[PeerFigures], about: dict[str, str]) -> str:
    """Return the figures as Markdown."""
    sides = f" --sides {' '.join([OURS, *dict.fromkeys(found.side for found in peers)])}" if peers else ""
    head = (
        *("tables", "rows of each", "large ones", "tokens", "task instances", "Spark jobs"),
        *("planned in s", "drained in s", "verified in s", "all in s"),
        *("CPU s of PostgreSQL", "of Spark", "of Airflow"),
    )
    lines = [
        (
            f"{found.tables:,}",
            f"{found.rows:,}",
            str(found.large),
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
        f"python -m benchmarks.schemas --tables {found.tables} --rows {found.rows} --large {found.large} "
        f"--tokens {found.tokens}{sides}"
        for found in every
    ]
    return "\n".join(
        [
            "PostgreSQL to PostgreSQL, each table with a key and four columns, from one",
            "[declaration](../howto/several-tables.md) with a pattern and default budget; source, target, ledger,",
            "Airflow and Spark share the machine. Airflow's own time between tasks is in its CPU, not in the seconds.",
            f"Large tables have {LARGE_ROWS:,} rows. Spark is up, and has run a small job before. Task instances do",
            "not grow with the tables; seconds do, and with whatever else the machine does.",
            "\n```sh",
            *commands,
            "```\n",
            report.markdown(head, lines),
            *compare(every, peers),
            "",
            report.machine(about),
        ]
    )


def warm(spark: Server) -> None:
    """Let Spark run a job, as a cluster in use has: the first one loads and compiles for ten seconds."""
    session = SparkSession.builder.remote(spark.url).create()
    try:
        session.range(2).mapInArrow(lambda batches: batches, "id long").count()
    finally:
        session.stop()


def run_ours(
    services: Services, servers: dict[str, Server], log: Path, tables: int, rows: int, large: int, tokens: int
) -> Figures:
    """Let Airflow copy and verify all tables of the source."""
    postgres, spark = servers["postgres"], servers["connect"]
    before = count_jobs(spark.ui_url)
    airflow = install(services.guest("airflow"), postgres, spark)
    allow(airflow, tokens)
    began = time.monotonic()
    cpu, peak = run(airflow, log, {"PostgreSQL": postgres, "Spark": spark})
    console.print(f"airflow dags test: {time.monotonic() - began:.1f} s")
    jobs = count_jobs(spark.ui_url) - before
    return measure(postgres, tables, rows, large, tokens=tokens, cpu_seconds=cpu, jobs=jobs, peak_bytes=peak)


def run_standalone(
    services: Services, servers: dict[str, Server], tables: int, rows: int, large: int, **more: int
) -> standalone.Turnaround:
    """Let a whole Airflow copy and verify all tables of the source, and see that all rows arrived."""
    postgres = servers["postgres"]
    airflow = install(services.guest("airflow"), postgres, servers["connect"])
    allow(airflow, more["tokens"])
    try:
        with closing(connect(postgres, "airflow")) as link:
            found = standalone.run(airflow, link, DAG_ID, tables=tables, rows=rows, large=large, **more)
    finally:
        airflow.stop()
    check_rows(postgres, "warehouse", SCHEMA, size_tables(tables, rows, large))
    return found


def main(words: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemas", description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=[1_000])
    parser.add_argument("--rows", type=int, default=1_000, help="of each table")
    parser.add_argument("--large", type=int, default=0, help=f"tables of {LARGE_ROWS:,} rows beside them")
    parser.add_argument("--tokens", type=int, default=HYDRATIONS_AT_ONCE, help="tables that are drained at once")
    parser.add_argument("--sides", nargs="+", choices=[OURS, *PEERS], default=[OURS], help="who copies the tables")
    parser.add_argument("--standalone", action="store_true", help="from trigger to verified in airflow standalone")
    parser.add_argument("--cold", action="store_true", help="Spark has not run a job before")
    parser.add_argument("--log", type=Path, help="write here what Airflow prints")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args(words)
    about, every, peers, turns = machine.describe(jars=()), [], [], []
    for tables in wanted.tables:
        with tempfile.TemporaryDirectory(prefix="schemas-") as home:
            services = Services(Path(home), owner_pid=os.getpid())
            try:
                servers = services.up("postgres", "connect")
                fill(servers["postgres"], size_tables(tables, wanted.rows, wanted.large))
                log = wanted.log or Path(home) / "log"
                if not wanted.cold:
                    warm(servers["connect"])
                if wanted.standalone:
                    more = {"tokens": wanted.tokens, "cold": wanted.cold}
                    turns.append(run_standalone(services, servers, tables, wanted.rows, wanted.large, **more))
                    _print(turns[-1])
                    continue
                if OURS in wanted.sides:
                    every.append(run_ours(services, servers, log, tables, wanted.rows, wanted.large, wanted.tokens))
                    _print(every[-1])
                for side in (side for side in PEERS if side in wanted.sides):
                    peers.append(run_peer(servers, side, tables, wanted.rows, wanted.large, Path(home)))
                    _print(peers[-1])
            finally:
                services.down(remove=True)
    if wanted.write_docs and turns:
        page.write(standalone.HEADING, standalone.section(turns, about))
    elif wanted.write_docs:
        page.write(HEADING, section(every, peers, about))
    return 0


def _print(found: Figures | PeerFigures | standalone.Turnaround) -> None:
    console.print(json.dumps(asdict(found)), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
