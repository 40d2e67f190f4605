"""Changes of several tables: replayed by one log for all, by a log for each table, and by PostgreSQL's own replication.

``python -m benchmarks.stream`` fills tables, lets every side copy them, and then writes a backlog that each side
replays alone. The sides have the same source, and servers with the same settings that wait for the disk. In the end a
process of its own writes at half of the rate that the shared log came to, and each row's way to its target is clocked.
"""

import argparse
import multiprocessing
import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any

import psycopg
from rich.console import Console

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.shared_log_windows import Member, StreamPlanner
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger, every_range
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.verification.verifier import Verifier, Verify
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from benchmarks.stage import LIGHT, SETTINGS, WORKERS
from benchmarks.steady import paced
from dev.databases import open_database
from dev.fingerprints import Fingerprint
from dev.services import Server, Services, temporary_services
from dev.tpch import fingerprint

HEADING = "Changes of several tables"
SIDES = {
    "stream": "ours, one log for all tables",
    "slots": "ours, a log for each table",
    "server": "PostgreSQL's logical replication",
}
TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v int, note text, at timestamptz DEFAULT now())"
ROWS = 20_000
"""Of each table, before the changes."""
IN_TRANSACTION = 20
BUDGET = Budget(credits=2)
PATIENCE_SECONDS = 3600
console = Console()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one side took for one backlog."""

    tables: int
    side: str
    seconds: float
    cpu_seconds: float
    """Of Spark, both databases and this process."""


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """How late rows were that were written to all tables while the shared log was replayed run after run."""

    tables: int
    offered: float
    """Changes a second that were written; fewer than were to be where the source takes no more."""
    runs: int
    seconds: Sequence[float]
    """From a row's writing to its sight in the target, of every row that was seen."""


@dataclass(frozen=True, kw_only=True)
class Follower:
    """One of our sides: hydrations of all tables into the schema of its name."""

    side: str
    names: Sequence[str]
    source: Endpoint
    sink: Endpoint
    ledger: Ledger
    runner: Runner
    stream: str
    """Id of the log that the tables share; empty where each has its own."""

    def copy(self) -> None:
        """Let the log be kept, and copy the tables."""
        if self.stream:
            with self._stream_planner() as planner:
                planner.begin()
        for name in self.names:
            self._run(name)
        self.replay()

    def replay(self) -> None:
        """Replay what was written by now, until nothing is left."""
        if not self.stream:
            for name in self.names:
                self._run(name)
            return
        with ExitStack() as stack:
            planner = stack.enter_context(self._stream_planner())
            members = [stack.enter_context(self._member(name)) for name in self.names]
            while (planned := planner.follow(members).planned) is not None:
                self._drain(self.stream, planned.plan, planner.source, planner.sink)
                if planner.find_stand()[1].reached:
                    break

    def verify(self, how: Verify) -> int:
        """Compare every table with its source; return how many rows they hold."""
        rows = 0
        for name in self.names:
            with self._member(name) as member:
                report = Verifier(
                    plan=member.plan,
                    source=member.source,
                    sink=member.sink,
                    runner=self.runner,
                    hydration_id=member.hydration.id,
                ).verify(every_range(self.ledger, member.plan.plan_id), how)
                if not report.equal:
                    raise RuntimeError(f"{name} differs from its source: {report.mismatches}")
                rows += report.rows
        return rows

    def _run(self, name: str) -> None:
        """Plan a table and drain it, with what follows where it has a log of its own."""
        with self._table(name) as (planner, source, sink):
            hydration_id, more = planner.plan().hydration.id, True
            while more:
                plan = self.ledger.hydration(hydration_id).plan
                assert plan is not None
                self._drain(hydration_id, plan, source, sink)
                more = planner.follow()
            # The next run plans windows behind these; it would continue with them otherwise.
            self.ledger.finish(hydration_id)

    @contextmanager
    def _table(self, name: str) -> Iterator[tuple[Planner, Source, Sink]]:
        declared = PostgresSource(conn_id="source", table=f"public.{name}")
        with ExitStack() as stack:
            source = stack.enter_context(closing(declared.open(self.source)))
            sink = PostgresSink(conn_id="sink", table=f"{self.side}.{name}").open(self.sink)
            stack.callback(sink.close)
            planner = Planner(
                source=source,
                sink=sink,
                runner=self.runner,
                ledger=self.ledger,
                budget=BUDGET,
                mode=Mode.UPSERT,
                consistency=Consistency.CATCH_UP,
                owner="benchmark",
                cluster="spark",
                stream=self.stream,
            )
            yield planner, source, sink

    @contextmanager
    def _member(self, name: str) -> Iterator[Member]:
        with self._table(name) as (planner, source, sink):
            hydration = self.ledger.find(
                environment=planner.environment, source_identity=source.identity, sink_identity=sink.identity
            )
            assert hydration is not None, "its table was copied"
            yield Member(hydration=hydration, source=source, sink=sink)

    @contextmanager
    def _stream_planner(self) -> Iterator[StreamPlanner]:
        declared = PostgresSource(conn_id="source", table=f"public.{self.names[0]}")
        tables = [f"public.{name}" for name in self.names]
        with ExitStack() as stack:
            source = stack.enter_context(closing(declared.open_stream(self.source, self.stream, tables)))
            sink = PostgresSink(conn_id="sink", table=f"{self.side}.any").open_stream(self.sink, self.stream)
            stack.callback(sink.close)
            yield StreamPlanner(
                stream=self.stream,
                source=source,
                sink=sink,
                runner=self.runner,
                ledger=self.ledger,
                budget=BUDGET,
                owner="benchmark",
                cluster="spark",
            )

    def _drain(self, hydration_id: str, plan: Plan, source: Source, sink: Sink) -> None:
        Hydrator(
            hydration_id=hydration_id,
            plan=plan,
            lane="lane",
            ledger=self.ledger,
            source=source,
            sink=sink,
            runner=self.runner,
            limiter=Limiter(ledger=self.ledger, hydration_id=hydration_id, budget=BUDGET, memory=self.runner.memory),
            budget=BUDGET,
            share=BUDGET.credits,
            inline_wait=PATIENCE_SECONDS,
        ).run()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A source and a target, each a server of its own, and the tables."""

    source: Server
    sink: Server
    names: Sequence[str]
    rows: int = ROWS

    def fill(self) -> None:
        """Make the tables with their rows."""
        with open_database(self.source, "postgres") as source:
            for name in self.names:
                source.execute(TABLE.format(name))
                source.execute(f"INSERT INTO {name} SELECT g, 0, md5(g::text) FROM generate_series(1, {self.rows}) g")
                source.execute(f"ANALYZE {name}")

    def subscribe(self) -> None:
        """Let the server's own replication copy the tables."""
        with open_database(self.sink, "postgres") as sink, open_database(self.source, "postgres") as source:
            for name in self.names:
                sink.execute(TABLE.format(name))
            source.execute("CREATE PUBLICATION plain FOR ALL TABLES")
            there = f"host={self.source.host} port={self.source.port} dbname=postgres user={self.source.user}"
            sink.execute(
                f"CREATE SUBSCRIPTION plain CONNECTION '{there} password={self.source.password}' PUBLICATION plain"
            )
            self._wait(lambda: not sink.execute("SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'").fetchall())
            # Its workers continue to look for work while other sides have their turn.
            sink.execute("ALTER SUBSCRIPTION plain DISABLE")

    def write(self, changes: int, draw: random.Random) -> None:
        """Write a backlog: of ten changes six update, two insert and two delete, in transactions over two tables."""
        made = 0
        with open_database(self.source, "postgres") as connection:
            while made < changes:
                made += self._write_transaction(connection, draw)
            connection.execute("CHECKPOINT")

    def write_at(self, rate: float, over: Event, written: "Synchronized[int]") -> None:
        """Write so many changes a second of the same kinds until it is over, and count them."""
        due, draw = 0, random.Random(2)
        with open_database(self.source, "postgres") as connection:
            for more in paced(rate, over):
                due += more
                while written.value < due and not over.is_set():
                    written.value += self._write_transaction(connection, draw)

    def _write_transaction(self, connection: "psycopg.Connection[Any]", draw: random.Random) -> int:
        names = draw.sample(list(self.names), min(2, len(self.names)))
        with connection.transaction():
            for name in names:
                key = draw.randint(1, 2 * self.rows)
                connection.execute(f"UPDATE {name} SET v = v + 1, at = now() WHERE id BETWEEN {key} AND {key + 5}")
                connection.execute(
                    f"INSERT INTO {name} SELECT g, 1, md5(g::text) FROM generate_series({key}, {key + 7}) g"
                    " ON CONFLICT (id) DO UPDATE SET note = excluded.note"
                )
                connection.execute(f"DELETE FROM {name} WHERE id BETWEEN {key} AND {key + 1}")
        return 16 * len(names)

    def clock(self, follower: Follower, rate: float, seconds: float) -> Lateness:
        """Write at this rate, replay run after run, and return how late each row was seen behind a run."""
        found: list[float] = []
        runs, began = 0, time.monotonic()
        with self._writing(rate) as written, open_database(self.sink, "postgres") as sink:
            ((now,),) = sink.execute("SELECT clock_timestamp()").fetchall()
            since = dict.fromkeys(self.names, now)
            while time.monotonic() < began + seconds:
                follower.replay()
                runs += 1
                for name in self.names:
                    rows = sink.execute(
                        f"SELECT extract(epoch FROM clock_timestamp() - at), at FROM {follower.side}.{name}"
                        " WHERE at > %s",
                        (since[name],),
                    ).fetchall()
                    found += [float(late) for late, _ in rows]
                    since[name] = max([since[name], *(at for _, at in rows)])
            reached = written.value / (time.monotonic() - began)
        return Lateness(tables=len(self.names), offered=reached, runs=runs, seconds=found)

    @contextmanager
    def _writing(self, rate: float) -> Iterator["Synchronized[int]"]:
        """Let another process write until the block is left; give how much it has written."""
        context = multiprocessing.get_context("fork")
        over, written = context.Event(), context.Value("q", 0)
        process = context.Process(target=self.write_at, args=(rate, over, written))
        process.start()
        try:
            yield written
        finally:
            over.set()
            process.join()

    def replicate(self) -> None:
        """Let the server's own replication apply what was written by now."""
        with open_database(self.sink, "postgres") as sink, open_database(self.source, "postgres") as source:
            (end,) = source.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()[0]
            sink.execute("ALTER SUBSCRIPTION plain ENABLE")
            query = f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'plain'"
            self._wait(lambda: source.execute(query).fetchall() == [(True,)])
            sink.execute("ALTER SUBSCRIPTION plain DISABLE")

    def check(self, schemas: Sequence[str]) -> None:
        """Raise where a target is not its source: figures of half a job say nothing."""
        with open_database(self.sink, "postgres") as sink, open_database(self.source, "postgres") as source:
            for name in self.names:
                wanted: Fingerprint = fingerprint(source, "public", name)
                for schema in schemas:
                    if (found := fingerprint(sink, schema, name)) != wanted:
                        raise RuntimeError(f"{schema}.{name} is not equal to its source: {found}, not {wanted}")

    def _wait(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            if time.monotonic() > deadline:
                raise RuntimeError("PostgreSQL's own replication does not come to its end")
            time.sleep(0.05)


def endpoint(server: Server, conn_id: str) -> Endpoint:
    """Return how a server is reached."""
    return Endpoint(
        conn_id=conn_id,
        host=server.host,
        port=server.port,
        database="postgres",
        user=server.user or "",
        password=server.password or "",
    )


def measure(services: Services, tables: int, changes: int, turns: int, seconds: float) -> tuple[list[Turn], Lateness]:
    """Write backlogs, and let every side replay each of them, in another order each time; then clock rows."""
    logical = {"postgres": SETTINGS["postgres"] | {"wal_level": "logical", "max_replication_slots": str(tables + 8)}}
    up = services.up("postgres:source", "postgres:sink", fsync=True, settings=logical)
    stage = Stage(
        source=up["postgres:source"], sink=up["postgres:sink"], names=[f"t{number}" for number in range(tables)]
    )
    conf = WORKERS | {"spark.driver.extraJavaOptions": LIGHT}
    spark = services.up("connect:stream", jars=(), spark_conf=conf)["connect:stream"]
    stage.fill()
    stage.subscribe()
    with open_database(stage.sink, "postgres") as connection:
        connection.execute("CREATE DATABASE ledger")
    at = stage.sink
    url = f"postgresql+psycopg://{at.user}:{at.password}@{at.host}:{at.port}/ledger"
    migrate(url)
    logins = {"source": endpoint(stage.source, "source"), "sink": endpoint(stage.sink, "sink")}
    draw, found = random.Random(1), []
    with closing(SqlLedger(url)) as ledger, closing(ConnectRunner(spark.url, logins, ui_url=spark.ui_url)) as runner:
        ours = [
            Follower(side=side, names=stage.names, **logins, ledger=ledger, runner=runner, stream=stream)
            for side, stream in (("stream", uuid.uuid4().hex), ("slots", ""))
        ]
        for follower in ours:
            follower.copy()
        work = {follower.side: follower.replay for follower in ours} | {"server": stage.replicate}
        roots = {"spark": spark.pid or 0, "source": stage.source.pid or 0, "sink": stage.sink.pid or 0}
        for number in range(turns):
            stage.write(changes, draw)
            order = list(SIDES)[number % 3 :] + list(SIDES)[: number % 3]
            for side in order:
                # The servers are children of this process, so its own time is not that of its tree.
                began = time.process_time()
                with Accounts(roots, own=("spark",)) as accounts:
                    work[side]()
                parts = {name: tree.cpu_seconds for name, tree in accounts.trees.items()}
                parts["client"] = time.process_time() - began
                found.append(Turn(tables=tables, side=side, seconds=accounts.seconds, cpu_seconds=sum(parts.values())))
                shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
                console.print(f"{side}: {accounts.seconds:.1f} s, {found[-1].cpu_seconds:.1f} CPU s ({shown})")
            stage.check(("stream", "slots", "public"))
        rate = changes / statistics.median(turn.seconds for turn in found if turn.side == "stream")
        late = stage.clock(ours[0], rate / 2, seconds)
        ours[0].replay()
        stage.check(("stream",))
    return found, late


def section(command: str, turns: Sequence[Turn], late: Sequence[Lateness], changes: int, about: dict[str, str]) -> str:
    """Return the figures as Markdown: the median of each side, and how late rows of the shared log are."""
    return "\n".join(
        [
            f"{changes:,} changes into PostgreSQL, in transactions over two tables. All are written before they are "
            "replayed:",
            f"\n```sh\n{command}\n```\n",
            "| tables | side | wall s | changes/s | CPU s | µs of CPU a change | CPU over PostgreSQL's own |",
            "|---|---|---|---|---|---|---|",
            *(line for each in late for line in _list_sides(turns, each.tables, changes)),
            "",
            "CPU is that of Spark, both servers and the lane, planning included. After each backlog every target is "
            "compared with the source.\n",
            "Then rows are written at half of the shared log's rate, and seen in their targets, without Airflow's own "
            "part:\n",
            "| tables | changes/s to all | runs | median s from writing to sight | p99 s |",
            "|---|---|---|---|---|",
            *map(_describe_lateness, late),
            "",
            report.machine(about),
        ]
    )


def _list_sides(turns: Sequence[Turn], tables: int, changes: int) -> Iterator[str]:
    """Yield a line for each side, by so many tables."""
    figures = {}
    for side in SIDES:
        own = [each for each in turns if (each.tables, each.side) == (tables, side)]
        figures[side] = tuple(
            statistics.median(getattr(each, name) for each in own) for name in ("seconds", "cpu_seconds")
        )
    floor = figures["server"][1]
    for side, (seconds, cpu) in figures.items():
        yield (
            f"| {tables} | {SIDES[side]} | {seconds:.1f} | {changes / seconds:,.0f} | {cpu:.1f} | "
            f"{cpu / changes * 1e6:.0f} | {cpu / floor:.2f} |"
        )


def _describe_lateness(late: Lateness) -> str:
    shares = statistics.quantiles(late.seconds, n=100)
    return f"| {late.tables} | {late.offered:,.0f} | {late.runs} | {shares[49]:.1f} | {shares[98]:.1f} |"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream", description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=[8, 50])
    parser.add_argument("--changes", type=int, default=300_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which rows are clocked")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(jars=())
    turns, late = list[Turn](), list[Lateness]()
    for tables in wanted.tables:
        with temporary_services() as services:
            found, clocked = measure(services, tables, wanted.changes, wanted.turns, wanted.seconds)
        turns += found
        late.append(clocked)
    command = (
        f"python -m benchmarks.stream --tables {' '.join(map(str, wanted.tables))} --changes {wanted.changes} "
        f"--turns {wanted.turns} --seconds {wanted.seconds:g}"
    )
    text = section(command, turns, late, wanted.changes, about)
    console.print(text, markup=False)
    if wanted.write_docs:
        page.write(HEADING, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
