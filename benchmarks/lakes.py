"""Tables of PostgreSQL into Iceberg and Delta by Spark: appended once, then followed in windows of changes.

``python -m benchmarks.lakes`` fills one table and appends it to a new table of each format: ours by Spark's connector,
ours by the task, and Spark's own JDBC reader. Then rows change, and three sides bring their target up to date: ours
from the log, Spark's JDBC reader and a MERGE of the changed rows, and that MERGE alone of rows that are staged already.
In the end many small windows follow, and the table is counted and scanned: maintained, not maintained, and compacted.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pyspark.sql.connect.session import SparkSession
from rich.console import Console

from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import build_merge
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.catch_up_windows import check_caught_up
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.runners.connect_session import active
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, SparkTableSink
from airflow_provider_backpressure.sources import PostgresSource
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from benchmarks.stage import WORKERS
from dev.databases import open_database
from dev.lake_connectors import make_connector_conf
from dev.services import Server, Services, temporary_services

SCHEMAS = {"iceberg": "lake.raw", "delta": "spark_catalog.default"}
COLUMNS = ("id", "v", "body", "changed")
APPENDS = {"spark": "ours, by Spark", "task": "ours, by the task", "jdbc": "Spark JDBC"}
WINDOWS = {
    "job": "ours, from the log to the commit",
    "spark": "ours, the whole run",
    "jdbc": "Spark JDBC, then MERGE",
    "merge": "the MERGE alone, of staged rows",
}
SMALL = "small windows"
SETTINGS = {
    "postgres": {"wal_level": "logical", "autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB"}
}
SUMS = "count(*), sum(v), sum(length(body)), sum(id * v % 1000003)"
SCANS = 3
WINDOW_BYTES = 4 * 2**30
"""More log than the changes of any turn: each turn is one window."""
console = Console()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one side took once. ``what``: ``append``, ``window``, or :data:`SMALL`."""

    format: str
    what: str
    side: str
    rows: int
    seconds: float
    cpu_seconds: float
    """Of Spark, PostgreSQL and this process."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A table after its windows."""

    format: str
    state: str
    files: int
    deletes: int
    seconds: float
    """Of a scan of every value; the median of some."""


class TimedRunner(ConnectRunner):
    """Notes how long the job of each range takes. That of a window reads the log, merges and commits."""

    taken: float = 0.0
    """Seconds since this was set."""

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See :meth:`ConnectRunner.run`."""
        began, future = time.perf_counter(), super().run(spec)
        future.add_done_callback(lambda _: self._note(began))
        return future

    def _note(self, began: float) -> None:
        self.taken += time.perf_counter() - began


@dataclass(kw_only=True)
class Bench:
    """The open servers, and what was found."""

    postgres: Server
    spark: Server
    folder: Path
    rows: int
    maintain_every: int
    turns: list[Turn] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        """Make the ledger, and fill the source."""
        with open_database(self.postgres, "postgres") as connection:
            connection.execute("CREATE DATABASE ledger")
            connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, v bigint, body text, changed bigint)")
            connection.execute(
                f"INSERT INTO t SELECT i, 0, repeat(md5(i::text), 3), 0 FROM generate_series(1, {self.rows}) i"
            )
            connection.execute("CREATE INDEX ON t (changed)")
            connection.execute("VACUUM ANALYZE t")
        server = self.postgres
        self.url = f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/ledger"
        migrate(self.url)
        self.at = Endpoint(
            conn_id="db",
            host=server.host,
            port=server.port,
            database="postgres",
            user=server.user or "",
            password=server.password or "",
        )
        self.spark_at = replace(NOWHERE, conn_id="spark", password=self.spark.url)

    def measure(self, formats: Sequence[str], *, windows: int, changes: int, small: int, few: int) -> None:
        """Append once, then follow in large windows and in small ones, format by format."""
        logins = {"db": self.at, "spark": self.spark_at}
        with (
            closing(TimedRunner(self.spark.url, logins, ui_url=self.spark.ui_url)) as runner,
            closing(SqlSession(self.spark_at)) as session,
        ):
            self.runner, self.session = runner, session.get()
            for format_ in formats:
                self._append(format_)
                self.hydrate(self._followed(format_), follows=True)
                for _ in range(windows):
                    self._window(format_, changes, "window", ("spark", "jdbc", "merge"))
                for _ in range(small):
                    self._window(format_, few, SMALL, ("spark", "jdbc"))
                self._check(format_)
                self._scan(format_)

    def hydrate(self, sink: Any, *, follows: bool = False) -> None:
        """Do what a run of the DAG does. ``follows``: by the log, otherwise by one append."""
        budget = Budget(credits=2, range_rows=max(self.rows // 4, 1), range_bytes=WINDOW_BYTES)
        with ExitStack() as stack:
            ledger = stack.enter_context(closing(SqlLedger(self.url)))
            source = stack.enter_context(closing(PostgresSource(conn_id="db", table="public.t").open(self.at)))
            opened = stack.enter_context(closing(sink.open(self.spark_at)))
            planner = Planner(
                source=source,
                sink=opened,
                runner=self.runner,
                ledger=ledger,
                budget=budget,
                mode=Mode.UPSERT if follows else Mode.APPEND,
                consistency=Consistency.CATCH_UP if follows else Consistency.STATIC,
                owner="benchmark",
                cluster="spark",
            )
            hydration_id, more = planner.plan().hydration.id, True
            while more:
                plan = ledger.hydration(hydration_id).plan
                assert plan is not None
                Hydrator(
                    hydration_id=hydration_id,
                    plan=plan,
                    lane="benchmark",
                    ledger=ledger,
                    source=source,
                    sink=opened,
                    runner=self.runner,
                    limiter=Limiter(ledger=ledger, hydration_id=hydration_id, budget=budget, memory=self.runner.memory),
                    budget=budget,
                    share=budget.credits,
                    inline_wait=3600,
                ).run()
                more = follows and bool(planner.follow())
            plan = ledger.hydration(hydration_id).plan
            assert plan is not None
            if follows:
                check_caught_up(plan, opened)
            opened.complete(plan)
            ledger.finish(hydration_id)

    def _followed(self, format_: str) -> SparkTableSink:
        return SparkTableSink(
            table=f"{SCHEMAS[format_]}.followed",
            spark_conn_id="spark",
            format=format_,
            tasks=2,
            maintain_every=self.maintain_every,
        )

    def _append(self, format_: str) -> None:
        warm, by_spark = (
            SparkTableSink(table=f"{SCHEMAS[format_]}.{name}", spark_conn_id="spark", format=format_, tasks=2)
            for name in ("warm", "appended")
        )
        by_task: Any = DeltaSink(path=str(self.folder / "by_task"))
        if format_ == "iceberg":
            catalog = {"name": "own", "type": "sql", "uri": f"sqlite:///{self.folder}/own.db"}
            by_task = IcebergSink(table="raw.t", catalog={**catalog, "warehouse": f"file://{self.folder}/own"})
        # Otherwise the first side would pay for what the server loads and compiles once.
        self.hydrate(warm)
        with self._clocked(format_, "append", "spark", self.rows):
            self.hydrate(by_spark)
        with self._clocked(format_, "append", "task", self.rows):
            self.hydrate(by_task)
        with self._clocked(format_, "append", "jdbc", self.rows):
            bounds = {"column": "id", "lowerBound": "1", "upperBound": str(self.rows), "numPartitions": "4"}
            self._write_by_jdbc(format_, "jdbc", bounds)
        self._write_by_jdbc(format_, "merge", {})

    def _write_by_jdbc(self, format_: str, name: str, bounds: dict[str, str]) -> None:
        """Make a table of the source's rows, with the properties that ours has where it is followed."""
        options = {"partitionColumn" if key == "column" else key: value for key, value in bounds.items()}
        writer = self._read("t", **options).writeTo(f"{SCHEMAS[format_]}.by_{name}").using(format_)
        if format_ == "iceberg":
            for what in ("merge", "update", "delete"):
                writer = writer.tableProperty(f"write.{what}.mode", "merge-on-read")
            writer = writer.tableProperty("format-version", "2")
        writer.create()

    def _read(self, table: str, **options: str) -> Any:
        login = {"user": self.at.user, "password": self.at.password, "driver": "org.postgresql.Driver"}
        url = f"jdbc:postgresql://{self.at.host}:{self.at.port}/{self.at.database}"
        return self.session.read.format("jdbc").options(url=url, dbtable=table, **login, **options).load()

    def _window(self, format_: str, changes: int, what: str, sides: Sequence[str]) -> None:
        """Change rows all over the table, and let each side bring them."""
        self._number += 1
        every = max(self.rows // changes, 1)
        with open_database(self.postgres, "postgres") as connection:
            updated = connection.execute(
                f"UPDATE t SET v = v + 1, changed = {self._number} WHERE id % {every} = {self._number % every}"
            )
            rows = updated.rowcount
            connection.execute("CHECKPOINT")
        changed = f"(SELECT * FROM t WHERE changed = {self._number}) AS changed"
        # Each window begins with another side.
        first = self._number % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            if side == "spark":
                self.runner.taken = 0.0
                with self._clocked(format_, what, side, rows):
                    self.hydrate(self._followed(format_), follows=True)
                self.turns.append(replace(self.turns[-1], side="job", seconds=self.runner.taken))
            elif side == "jdbc":
                with self._clocked(format_, what, side, rows):
                    self._merge(format_, side, self._read(changed))
            else:
                with active(cast("SparkSession", self.session)):
                    staged = self._read(changed).localCheckpoint()
                with self._clocked(format_, what, side, rows):
                    self._merge(format_, side, staged)

    def _merge(self, format_: str, name: str, rows: Any) -> None:
        rows.createOrReplaceTempView("rows")
        self.session.sql(build_merge(f"{SCHEMAS[format_]}.by_{name}", "rows", COLUMNS, ("id",))).collect()

    def _check(self, format_: str) -> None:
        """Raise where a target is not its source: figures of half a job say nothing."""
        with open_database(self.postgres, "postgres") as connection:
            wanted = tuple(map(int, connection.execute(f"SELECT {SUMS} FROM t").fetchone() or ()))
        for name in ("followed", "by_jdbc"):
            (row,) = self.session.sql(f"SELECT {SUMS} FROM {SCHEMAS[format_]}.{name}").collect()
            if tuple(map(int, row)) != wanted:
                raise RuntimeError(f"{name} in {format_} is not equal to its source: {tuple(row)} instead of {wanted}")

    def _scan(self, format_: str) -> None:
        """Count the files and scan the tables; then compact the one that was never maintained, and scan it again."""
        followed, never = (f"{SCHEMAS[format_]}.{name}" for name in ("followed", "by_jdbc"))
        self.scans.append(self._look(format_, f"ours, maintained every {self.maintain_every} windows", followed))
        self.scans.append(self._look(format_, "by MERGE, never maintained", never))
        if format_ == "delta":
            self.session.sql(f"OPTIMIZE {followed}").collect()
        else:
            options = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
            call = f"CALL lake.system.rewrite_data_files(table => '{followed}', options => {options})"
            self.session.sql(call).collect()
        self.scans.append(self._look(format_, "ours, compacted now", followed))

    def _look(self, format_: str, state: str, table: str) -> Scan:
        times = []
        for _ in range(SCANS):
            began = time.perf_counter()
            self.session.sql(f"SELECT {SUMS} FROM {table}").collect()
            times.append(time.perf_counter() - began)
        if format_ == "iceberg":
            kinds = [row[0] for row in self.session.sql(f"SELECT content FROM {table}.files").collect()]
            files, deletes = kinds.count(0), len(kinds) - kinds.count(0)
        else:
            (detail,) = self.session.sql(f"DESCRIBE DETAIL {table}").collect()
            files, deletes = int(detail["numFiles"]), 0
        found = Scan(format=format_, state=state, files=files, deletes=deletes, seconds=statistics.median(times))
        console.print(f"{format_}, {state}: {files} files, {deletes} of deletes, scan {found.seconds:.2f} s")
        return found

    @contextmanager
    def _clocked(self, format_: str, what: str, side: str, rows: int) -> Iterator[None]:
        # The servers are children of this process, so its own time is not that of its tree.
        roots, began = {"spark": self.spark.pid or 0, "postgres": self.postgres.pid or 0}, time.process_time()
        with Accounts(roots, own=("spark",)) as accounts:
            yield
        cpu = sum(tree.cpu_seconds for tree in accounts.trees.values()) + time.process_time() - began
        turn = Turn(format=format_, what=what, side=side, rows=rows, seconds=accounts.seconds, cpu_seconds=cpu)
        self.turns.append(turn)
        console.print(f"{format_} {what}, {side}: {rows:,} in {turn.seconds:.1f} s, {cpu:.1f} CPU s")


def find_median(turns: Sequence[Turn], figure: Callable[[Turn], float], **which: str) -> float:
    """Return the median of a figure over the turns with these values; 0 where there is none."""
    found = [figure(each) for each in turns if all(getattr(each, name) == value for name, value in which.items())]
    return statistics.median(found) if found else 0.0


def section(command: str, bench: Bench, about: dict[str, str]) -> str:
    """Return the figures as Markdown."""
    speeds, scans = [], []
    for format_ in dict.fromkeys(each.format for each in bench.turns):
        for what, sides in (("append", APPENDS), ("window", WINDOWS), (SMALL, WINDOWS)):
            for side, title in sides.items():
                which = {"format": format_, "what": what, "side": side}
                rows = find_median(bench.turns, lambda one: one.rows, **which)
                if not rows:
                    continue
                seconds = find_median(bench.turns, lambda one: one.seconds, **which)
                rate = find_median(bench.turns, lambda one: one.rows / one.seconds, **which)
                cpu = find_median(bench.turns, lambda one: one.cpu_seconds / one.rows * 1e6, **which)
                speeds.append(
                    f"| {format_} | {what} | {title} | {rows:,.0f} | {seconds:.1f} | {rate:,.0f} | {cpu:.0f} |"
                )
        mine = [each for each in bench.scans if each.format == format_]
        scans += [
            f"| {format_} | {each.state} | {each.files} | {each.deletes} | {each.seconds:.2f} | "
            f"{each.seconds / mine[-1].seconds:.2f} |"
            for each in mine
        ]
    return "\n".join(
        [
            f"A table of {bench.rows:,} rows; each window updates rows all over it. Medians:",
            f"\n```sh\n{command}\n```\n",
            "| format | what | side | rows | s | rows/s | CPU s per million |",
            "|---|---|---|---|---|---|---|",
            *speeds,
            "",
            "After all windows, a scan of every value:",
            "",
            "| format | table | files | files of deletes | scan s | over compacted |",
            "|---|---|---|---|---|---|",
            *scans,
            "",
            "The whole run plans, opens a session, checks, and ends the plan besides; maintenance counts as ours. CPU "
            "is that of Spark, PostgreSQL and the lane. In the end count and sums of each target are compared with the "
            "source's.\n",
            report.machine(about),
        ]
    )


def measure(services: Services, wanted: argparse.Namespace) -> Bench:
    """Start the servers and measure."""
    postgres = services.up("postgres", fsync=True, settings=SETTINGS)["postgres"]
    folder = services.guest("lakes")
    conf = {**WORKERS, **make_connector_conf(folder)}
    spark = services.up("connect:lakes", jars=("postgres",), driver_memory=wanted.heap, spark_conf=conf)[
        "connect:lakes"
    ]
    bench = Bench(postgres=postgres, spark=spark, folder=folder, rows=wanted.rows, maintain_every=wanted.maintain_every)
    bench.measure(
        wanted.formats.split(","),
        windows=wanted.windows,
        changes=wanted.changes,
        small=wanted.small,
        few=wanted.few,
    )
    return bench


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lakes", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--windows", type=int, default=3, help="large ones")
    parser.add_argument("--changes", type=int, default=500_000, help="in a large window")
    parser.add_argument("--small", type=int, default=50, help="small windows behind them")
    parser.add_argument("--few", type=int, default=10_000, help="changes in a small window")
    parser.add_argument("--maintain-every", type=int, default=20)
    parser.add_argument("--formats", default="iceberg,delta")
    parser.add_argument("--heap", default="2g")
    parser.add_argument("--write-docs", action="store_true", help="write the section of these formats in benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(jars=("postgres",))
    with temporary_services() as services:
        bench = measure(services, wanted)
    command = (
        f"python -m benchmarks.lakes --rows {wanted.rows} --windows {wanted.windows} --changes {wanted.changes} "
        f"--small {wanted.small} --few {wanted.few} --maintain-every {wanted.maintain_every} --formats {wanted.formats}"
    )
    text = section(command, bench, about)
    console.print(text, markup=False)
    if wanted.write_docs:
        page.write(f"PostgreSQL to {' and '.join(map(str.capitalize, wanted.formats.split(',')))} by Spark", text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
