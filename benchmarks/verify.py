"""What verification takes beside the copy that it verifies, and beside reading both sides once.

``python -m benchmarks.verify`` copies one table into new tables, with a key (``upsert``) and without one (``append``).
With ``--followed`` it copies tables that share a log, and writes changes that no window has brought yet. Each copy is
verified against its markers (``target``) and against the source too (``full``).
"""

import argparse
import random
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console

from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from benchmarks.mirror import RANGES, fill
from benchmarks.runs import Runs
from benchmarks.stage import LIGHT, SETTINGS, WORKERS
from benchmarks.stream import Follower, Stage, endpoint
from dev.databases import open_database
from dev.services import Server, Services, temporary_services

COPIED, FOLLOWED = "Verification beside the copy", "Verification of followed tables"
KINDS = {"upsert": "with a key", "append": "without a key", "followed": "followed"}
SIDES = {
    "copy": "the copy, planning included",
    "reading": "both sides read once, by binary COPY",
    "target": '`verify="target"`',
    "full": '`verify="full"`',
}
MOST = 0.4
"""Of the copy's CPU that ``verify="target"`` may take."""
READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
FROM pg_stat_user_tables WHERE schemaname = %s AND relname = ANY (%s)
"""
SETTLED = 1.5
CONF = WORKERS | {"spark.driver.extraJavaOptions": LIGHT}
console = Console()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one side took."""

    kind: str
    side: str
    seconds: float
    cpu_seconds: float
    """Of Spark, the databases and this process."""
    reads: float
    """How often each row of the target was read."""


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Tables of one copy."""

    kind: str
    source: Server
    names: Sequence[str]
    sink: Server
    schema: str
    copies: Sequence[str]
    """Names of the targets."""
    rows: int
    """Of all of them."""

    def read_both(self) -> None:
        """Read every row of both sides, and do nothing with it."""
        for server, schema, names in ((self.source, "public", self.names), (self.sink, self.schema, self.copies)):
            with open_database(server, "postgres") as connection:
                for name in names:
                    statement = f"COPY {schema}.{name} TO STDOUT (FORMAT binary)"
                    with connection.cursor() as cursor, cursor.copy(statement) as rows:
                        for _ in rows:
                            pass

    def count_reads(self) -> int:
        """Return how many rows of the targets were ever read, by the server's own count."""
        # Servers' processes report what they have read when they end, or a second later.
        time.sleep(SETTLED)
        with open_database(self.sink, "postgres") as connection:
            row = connection.execute(READ, (self.schema, list(self.copies))).fetchone()
        return int(row[0]) if row else 0


@dataclass(kw_only=True)
class Meter:
    """Takes the time of sides, one after the other."""

    roots: Mapping[str, int]
    """Processes of the servers, by name."""
    turns: list[Turn] = field(default_factory=list)

    def measure(
        self,
        tables: Tables,
        works: Mapping[str, Callable[[], object]],
        *,
        number: int,
        change: Callable[[], object] = lambda: None,
    ) -> None:
        """Copy, and then let the other sides follow, in another order in each round. Round 0 does not count.

        ``change``: what happens behind the copy, which no figure counts.
        """
        rest = [side for side in SIDES if side != "copy"]
        for side in ["copy", *rest[number % 3 :], *rest[: number % 3]]:
            before = tables.count_reads()
            # The servers are children of this process, so its own time is not that of its tree.
            began = time.process_time()
            with Accounts(self.roots, own=("spark",)) as accounts:
                works[side]()
            cpu = sum(tree.cpu_seconds for tree in accounts.trees.values()) + time.process_time() - began
            reads = (tables.count_reads() - before) / tables.rows
            taken = Turn(kind=tables.kind, side=side, seconds=accounts.seconds, cpu_seconds=cpu, reads=reads)
            console.print(f"{tables.kind} {side}: {taken.seconds:.1f} s, {cpu:.1f} CPU s, read {reads:.2f} times")
            self.turns += [taken] if number else []
            if side == "copy":
                change()


def check(rows: int, found: int) -> None:
    """Raise where not all rows were verified: figures of half a job say nothing."""
    if found != rows:
        raise RuntimeError(f"{found} of {rows} rows were verified.")


def make_ledger(server: Server) -> str:
    """Make a ledger, and return its URL."""
    with open_database(server, "postgres") as connection:
        connection.execute("CREATE DATABASE ledger")
    url = f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/ledger"
    migrate(url)
    return url


def measure_copied(services: Services, rows: int, rounds: int) -> list[Turn]:
    """Copy one table into new ones, and verify each."""
    server = services.up("postgres", fsync=True, settings=SETTINGS)["postgres"]
    spark = services.up("connect:verify", jars=(), spark_conf=CONF)["connect:verify"]
    fill(server, rows)
    at, meter = endpoint(server, "db"), Meter(roots={"spark": spark.pid or 0, "postgres": server.pid or 0})
    with closing(ConnectRunner(spark.url, {"db": at}, ui_url=spark.ui_url)) as runner:
        budget = Budget(credits=2, range_rows=max(rows // RANGES, 1))
        runs = Runs(url=make_ledger(server), at=at, runner=runner, budget=budget)

        def verify(mode: Mode, table: str, how: Verify) -> None:
            found = runs.verify(mode, table, table, how)
            if not found.equal:
                raise RuntimeError(f"raw.{table} differs: {found.mismatches}")
            check(rows, found.rows)

        for number in range(rounds + 1):
            for mode in (Mode.UPSERT, Mode.APPEND):
                name = f"{mode.value}_{number}"
                tables = Tables(
                    kind=mode.value,
                    source=server,
                    names=["t"],
                    sink=server,
                    schema="raw",
                    copies=[name],
                    rows=rows,
                )
                works: dict[str, Callable[[], object]] = {
                    "copy": partial(runs.copy, mode, name, name),
                    "reading": tables.read_both,
                    "target": partial(verify, mode, name, Verify.TARGET),
                    "full": partial(verify, mode, name, Verify.FULL),
                }
                meter.measure(tables, works, number=number)
                with open_database(server, "postgres") as connection:
                    connection.execute(f"DROP TABLE raw.{name}")
                    connection.execute("CHECKPOINT")
    return meter.turns


def measure_followed(services: Services, rows: int, rounds: int, number: int, changes: int) -> list[Turn]:
    """Copy tables that share a log, each round into another schema, write changes, and compare."""
    logical = {"postgres": SETTINGS["postgres"] | {"wal_level": "logical", "max_replication_slots": str(rounds + 8)}}
    up = services.up("postgres:source", "postgres:sink", settings=logical)
    names = [f"t{each}" for each in range(number)]
    stage = Stage(source=up["postgres:source"], sink=up["postgres:sink"], names=names, rows=rows // number)
    spark = services.up("connect:verify", jars=(), spark_conf=CONF)["connect:verify"]
    stage.fill()
    logins = {"source": endpoint(stage.source, "source"), "sink": endpoint(stage.sink, "sink")}
    pids = {"spark": spark.pid or 0, "source": stage.source.pid or 0, "sink": stage.sink.pid or 0}
    meter, draw = Meter(roots=pids), random.Random(1)
    with ExitStack() as stack:
        ledger = stack.enter_context(closing(SqlLedger(make_ledger(stage.sink))))
        runner = stack.enter_context(closing(ConnectRunner(spark.url, logins, ui_url=spark.ui_url)))
        for each in range(rounds + 1):
            side = f"round{each}"
            ours = Follower(side=side, names=names, stream=uuid.uuid4().hex, ledger=ledger, runner=runner, **logins)
            tables = Tables(
                kind="followed",
                source=stage.source,
                names=names,
                sink=stage.sink,
                schema=side,
                copies=names,
                rows=rows,
            )
            works: dict[str, Callable[[], object]] = {
                "copy": ours.copy,
                "reading": tables.read_both,
                "target": partial(ours.verify, Verify.TARGET),
                "full": partial(ours.verify, Verify.FULL),
            }
            meter.measure(tables, works, number=each, change=partial(stage.write, changes, draw))
    return meter.turns


def section(command: str, turns: Sequence[Turn], about: dict[str, str]) -> str:
    """Return the figures as Markdown: the median of each side."""
    lines, verdicts = [], []
    for kind, words in KINDS.items():
        if not any(turn.kind == kind for turn in turns):
            continue
        figures = {
            side: [
                statistics.median(getattr(turn, name) for turn in turns if (turn.kind, turn.side) == (kind, side))
                for name in ("seconds", "cpu_seconds", "reads")
            ]
            for side in SIDES
        }
        copied, read = figures["copy"][1], figures["reading"][1]
        lines += [
            f"| {words}, {SIDES[side]} | {seconds:.1f} | {cpu:.1f} | {cpu / copied:.2f} | {cpu / read:.2f} | "
            f"{reads:.2f} |"
            for side, (seconds, cpu, reads) in figures.items()
        ]
        share = figures["target"][1] / copied
        verdict = "held" if share <= MOST else "missed"
        verdicts.append(f'- `verify="target"` at most {MOST} of the copy\'s CPU, {words}: {share:.2f}, {verdict}')
    return "\n".join(
        [
            "From PostgreSQL into new tables of PostgreSQL:",
            f"\n```sh\n{command}\n```\n",
            "| target and side | wall s | CPU s | CPU over the copy | over reading both | reads of each target's row |",
            "|---|---|---|---|---|---|",
            *lines,
            "",
            *verdicts,
            "",
            "CPU is that of Spark, the servers and the task. Where the target has no index on the key of the ranges, "
            "`target` reads it once, as a whole, and `full` once for each range. Of a table that is followed, `target` "
            "looks at the markers alone: rows have taken each other's place since; in the log are changes that no "
            "window has brought yet. Reads are the server's own count of rows.\n",
            report.machine(about),
        ]
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of all tables together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--followed", action="store_true", help="verify tables that share a log")
    parser.add_argument("--tables", type=int, default=2, help="that share a log")
    parser.add_argument("--changes", type=int, default=20_000, help="in the log, which no window has brought yet")
    parser.add_argument("--write-docs", action="store_true", help="write the section of benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(jars=())
    command = f"python -m benchmarks.verify --rows {wanted.rows} --rounds {wanted.rounds}"
    with temporary_services() as services:
        if wanted.followed:
            command += f" --followed --tables {wanted.tables} --changes {wanted.changes}"
            turns = measure_followed(services, wanted.rows, wanted.rounds, wanted.tables, wanted.changes)
        else:
            turns = measure_copied(services, wanted.rows, wanted.rounds)
    text = section(command, turns, about)
    console.print(text, markup=False)
    if wanted.write_docs:
        page.write(FOLLOWED if wanted.followed else COPIED, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
