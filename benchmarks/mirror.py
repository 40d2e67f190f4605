"""A table of which one row in a hundred has changed, in a tenth of its ranges: mirrored, copied again, and only read.

``python -m benchmarks.mirror`` fills one table, mirrors and replaces a target once, and then lets nights follow: rows
change, and each side brings its target up to date; pgcopydb, which has no other way, copies all rows into an empty
table. The floor reads all rows by COPY and drops them.
"""

import argparse
import statistics
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from benchmarks.runs import Runs
from benchmarks.sides.peers import make_order, read_child_seconds
from benchmarks.sides.pgcopydb import Pgcopydb
from benchmarks.stage import LIGHT, SETTINGS, WORKERS
from dev.databases import open_database
from dev.services import Server, Services, temporary_services
from dev.tpch import fingerprint

HEADING = "A mirror of which one row in a hundred has changed"
SIDES = {
    "mirror": "ours, `mirror`",
    "replace": "ours, `replace`: a full copy",
    "pgcopydb": "pgcopydb: a full copy",
    "floor": "COPY of all rows to nowhere",
}
COPIED = "copied"
"""Database of pgcopydb's target, which has the source's name."""
RANGES = 20
console = Console()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one side took in one night."""

    side: str
    seconds: float
    cpu_seconds: float
    """Of Spark, PostgreSQL, this process and the tool."""


TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, body text, cents numeric(12, 2), at timestamp)"


def fill(server: Server, rows: int) -> None:
    """Make the source."""
    with open_database(server, "postgres") as connection:
        connection.execute("CREATE SCHEMA raw")
        connection.execute(TABLE)
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


def read_to_nowhere(server: Server) -> None:
    """Read every row of the source by one COPY, and drop it."""
    with (
        open_database(server, "postgres") as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY t TO STDOUT (FORMAT binary)") as copy,
    ):
        for _ in copy:
            pass


def copy_by_pgcopydb(server: Server, folder: Path, rows: int) -> None:
    """Empty the target, and let pgcopydb copy all rows again."""
    with open_database(server, COPIED) as connection:
        connection.execute("TRUNCATE t")
    Pgcopydb(make_order(server, source="postgres", sink=COPIED, table="t", rows=rows, folder=folder)).run()


def check(server: Server, modes: list[Mode]) -> None:
    """Raise where a target is not its source: figures of half a job say nothing."""
    with open_database(server, "postgres") as connection:
        wanted = fingerprint(connection, "public", "t")
        found = {f"raw.{mode.value}": fingerprint(connection, "raw", mode.value) for mode in modes}
    with open_database(server, COPIED) as connection:
        found["pgcopydb's table"] = fingerprint(connection, "public", "t")
    for name, seen in found.items():
        if seen != wanted:
            raise RuntimeError(f"{name} is not equal to its source: {seen} instead of {wanted}")


def measure(services: Services, rows: int, nights: int) -> list[Turn]:
    """Let the nights follow, with the sides in another order each time."""
    server = services.up("postgres", fsync=True, settings=SETTINGS)["postgres"]
    conf = WORKERS | {"spark.driver.extraJavaOptions": LIGHT}
    spark = services.up("connect:mirror", jars=(), spark_conf=conf)["connect:mirror"]
    fill(server, rows)
    with open_database(server, "postgres") as connection:
        connection.execute("CREATE DATABASE ledger")
        connection.execute(f"CREATE DATABASE {COPIED}")
    with open_database(server, COPIED) as connection:
        connection.execute(TABLE)
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
    with ExitStack() as stack:
        runner = stack.enter_context(closing(ConnectRunner(spark.url, {"db": replace(at)}, ui_url=spark.ui_url)))
        home = Path(stack.enter_context(TemporaryDirectory(prefix="mirror-")))
        each = Runs(url=url, at=at, runner=runner, budget=Budget(credits=2, range_rows=max(rows // RANGES, 1)))
        modes = [Mode.MIRROR, Mode.REPLACE]
        for mode in modes:
            each.copy(mode, "first", mode.value)
        # In the night before the first that counts, a tenth of the ranges changes for the first time.
        for night in range(nights + 1):
            change(server, rows)
            begin = night % len(SIDES)
            order = list(SIDES)[begin:] + list(SIDES)[:begin]
            for side in order:
                # The servers are children of this process, so its own time is not that of its tree.
                began = time.process_time() + read_child_seconds()
                with Accounts({"spark": spark.pid or 0, "postgres": server.pid or 0}, own=("spark",)) as accounts:
                    if side == "floor":
                        read_to_nowhere(server)
                    elif side == "pgcopydb":
                        copy_by_pgcopydb(server, home / str(night), rows)
                    else:
                        each.copy(Mode(side), f"night {night}", side)
                parts = {name: tree.cpu_seconds for name, tree in accounts.trees.items()}
                parts["client"] = time.process_time() + read_child_seconds() - began
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
            "CPU is that of Spark, PostgreSQL and the lane or the tool, planning included, `verify` not. In the end "
            "each target is compared with the source.\n",
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
