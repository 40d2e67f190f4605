"""Steady state: how many changes a second a hydration keeps up with, and how late they arrive at half that rate.

``python -m benchmarks.steady`` follows a table of PostgreSQL (``catch_up``) and a topic of Kafka into PostgreSQL. A
backlog is worked off in one run, which gives the rate; for the table it is compared with what the server takes to
decode the same log. Then a process of its own writes at half that rate while one run follows the other, and each row's
way from its writing to a query of the target is clocked. Airflow's own part, which starts a run, is left out.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any, ClassVar

import psycopg
from confluent_kafka import Producer
from rich.console import Console

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.catch_up_windows import check_caught_up
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import KafkaSource, PostgresSource
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from dev import events
from dev.services import Server, temporary_services

HEADING = "Steady state"
ROWS = 200_000
"""Of the table before anything changes."""
BACK = 200
"""How many changes after its insertion a row is deleted."""
AT_ONCE = 20
"""Changes in a transaction."""
BYTES = 200
"""Size of a message."""
console = Console()


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one source showed."""

    title: str
    changes: int
    seconds: float
    """Of the run that worked the backlog off."""
    cpu: dict[str, float]
    """CPU seconds by part meanwhile."""
    decode_seconds: float | None
    """What the source's server takes for the same changes alone."""
    offered: float
    """Changes a second while latencies were taken."""
    runs: int
    latencies: list[float]
    """Seconds from a row's writing to its sight, of every row that was seen."""

    @property
    def rate(self) -> float:
        """Changes a second."""
        return self.changes / self.seconds


@dataclass(kw_only=True)
class Followed(ABC):
    """One source, followed run after run into ``raw.followed``."""

    title: ClassVar[str]
    consistency: ClassVar[Consistency]
    mode: ClassVar[Mode]
    arrived: ClassVar[str]
    """Column of the target that says when a row was written."""

    servers: dict[str, Server]
    ledger_url: str
    budget: Budget
    _stack: ExitStack = field(default_factory=ExitStack)

    @abstractmethod
    def declared(self) -> PostgresSource | KafkaSource:
        """Return the source's declaration."""

    @abstractmethod
    def begin(self) -> None:
        """Make the source."""

    @abstractmethod
    def change(self, number: int) -> None:
        """Make so many changes, as fast as the source takes them."""

    @abstractmethod
    def write(self, rate: float, over: Event) -> None:
        """Make so many changes a second until it is over."""

    def decoding(self) -> float | None:
        """Return how long the server takes to decode what was not followed yet; ``None`` where it decodes nothing."""
        return None

    def open(self) -> None:
        """Open the ports and a warm session."""
        at = self.endpoint("warehouse")
        spark = self.servers["connect"]
        self.ledger: Ledger = self._stack.enter_context(closing(SqlLedger(self.ledger_url)))
        self.source: Source = self._stack.enter_context(closing(self.declared().open(self.upstream())))
        self.sink: Sink = self._stack.enter_context(
            closing(PostgresSink(conn_id="sink", table="raw.followed").open(at))
        )
        places = {"source": self.upstream(), "sink": at}
        self.runner: Runner = self._stack.enter_context(closing(ConnectRunner(spark.url, places, ui_url=spark.ui_url)))

    def close(self) -> None:
        """Close the ports."""
        self._stack.close()

    @abstractmethod
    def upstream(self) -> Endpoint:
        """Return where the source is."""

    def endpoint(self, database: str) -> Endpoint:
        """Return where a database of PostgreSQL is."""
        server = self.servers["postgres"]
        conn_id = "sink" if database == "warehouse" else "source"
        return Endpoint(
            conn_id=conn_id,
            host=server.host,
            port=server.port,
            database=database,
            user=server.user or "",
            password=server.password or "",
        )

    def connected(self, database: str) -> "psycopg.Connection[Any]":
        """Open a database of PostgreSQL."""
        at = self.endpoint(database)
        return psycopg.connect(
            host=at.host, port=at.port, dbname=at.database, user=at.user, password=at.password, autocommit=True
        )

    def run(self) -> Planned:
        """Do what a run of the DAG does."""
        planner = Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=self.mode,
            consistency=self.consistency,
            owner="benchmark",
            cluster="spark",
        )
        planned = planner.plan()
        if planned.verdict is Verdict.PLANNED:
            self._drain()
            while planner.follow():
                self._drain()
            hydration = self.ledger.hydration(planned.hydration.id)
            assert hydration.plan is not None
            check_caught_up(hydration.plan, self.sink)
            self.ledger.finish(hydration.id)
        return planned

    def _drain(self) -> None:
        hydration = self.ledger.find(
            environment="default", source_identity=self.source.identity, sink_identity=self.sink.identity
        )
        assert hydration is not None
        assert hydration.plan is not None
        Hydrator(
            hydration_id=hydration.id,
            plan=hydration.plan,
            lane="benchmark",
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=Limiter(
                ledger=self.ledger, hydration_id=hydration.id, budget=self.budget, memory=self.runner.memory
            ),
            budget=self.budget,
            share=self.budget.credits,
            inline_wait=3600,
        ).run()

    def latencies(self, rate: float, *, seconds: float) -> tuple[int, list[float]]:
        """Return how many runs there were, and how late every row of theirs was seen."""
        found: list[float] = []
        runs = 0
        with self.writing(rate), self.connected("warehouse") as link:
            since = link.execute("SELECT clock_timestamp()").fetchone()[0]  # type: ignore[index]
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                runs += self.run().verdict is Verdict.PLANNED
                rows = link.execute(
                    f'SELECT extract(epoch FROM clock_timestamp() - "{self.arrived}"), "{self.arrived}"'
                    f' FROM raw.followed WHERE "{self.arrived}" > %s',
                    (since,),
                ).fetchall()
                found += [float(late) for late, _ in rows]
                since = max([since, *(at for _, at in rows)])
        return runs, found

    @contextmanager
    def writing(self, rate: float) -> Iterator[None]:
        """Let another process write until the block is left."""
        context = multiprocessing.get_context("fork")
        over = context.Event()
        process = context.Process(target=self.write, args=(rate, over))
        process.start()
        try:
            yield
        finally:
            over.set()
            process.join()


def paced(rate: float, over: Event) -> Iterator[int]:
    """Yield how many changes are due, each time that some are."""
    began, done = time.monotonic(), 0
    while not over.wait(0.02):
        due = int((time.monotonic() - began) * rate) - done
        if due > 0:
            done += due
            yield due


class Table(Followed):
    """A table of PostgreSQL under ``catch_up``: 60 % updates, 20 % inserts, 20 % deletes."""

    title = "PostgreSQL to PostgreSQL"
    consistency = Consistency.CATCH_UP
    mode = Mode.UPSERT
    arrived = "at"

    def declared(self) -> PostgresSource:
        """See ``Followed``."""
        return PostgresSource(conn_id="source", table="public.followed")

    def upstream(self) -> Endpoint:
        """See ``Followed``."""
        return self.endpoint("shop")

    def begin(self) -> None:
        """See ``Followed``."""
        with self.connected("shop") as link:
            link.execute(
                "CREATE TABLE followed (id bigint PRIMARY KEY, cents bigint NOT NULL, note text, at timestamptz)"
            )
            link.execute(
                "INSERT INTO followed SELECT i, i, repeat(md5(i::text), 3), NULL FROM generate_series(1, %s) i", (ROWS,)
            )
            link.execute("CREATE SEQUENCE number")
            link.execute(_CHANGE.format(rows=ROWS, back=BACK))

    def change(self, number: int) -> None:
        """See ``Followed``."""
        with self.connected("shop") as link:
            link.execute(_MANY.format(number=number, at_once=AT_ONCE))

    def write(self, rate: float, over: Event) -> None:
        """See ``Followed``."""
        with self.connected("shop") as link:
            for due in paced(rate, over):
                link.execute(_MANY.format(number=due, at_once=AT_ONCE))

    def decoding(self) -> float | None:
        """See ``Followed``."""
        with self.connected("shop") as link:
            ((slot,),) = link.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
            began = time.perf_counter()
            link.execute(
                "SELECT count(*) FROM pg_logical_slot_peek_binary_changes"
                "(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)",
                (slot, slot),
            )
            return time.perf_counter() - began


_CHANGE = """
    CREATE FUNCTION change() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE n bigint := nextval('number'); k bigint := 1 + n * 7919 % {rows};
    BEGIN
        IF n % 5 = 0 THEN
            INSERT INTO followed VALUES (n + {rows}, n, repeat(md5(n::text), 3), clock_timestamp());
        ELSIF n % 5 = 1 THEN
            DELETE FROM followed WHERE id = CASE WHEN n > {back} THEN {rows} + n - {back} - 1 ELSE k END;
        ELSE
            UPDATE followed SET cents = cents + n, at = clock_timestamp() WHERE id = k;
        END IF;
        IF NOT FOUND THEN RAISE EXCEPTION 'change % has changed nothing', n; END IF;
    END $$"""
_MANY = """
    DO $$ BEGIN
        FOR i IN 1..{number} LOOP
            PERFORM change();
            IF i % {at_once} = 0 THEN COMMIT; END IF;
        END LOOP;
    END $$"""


class Topic(Followed):
    """A topic of Kafka."""

    title = "Kafka to PostgreSQL"
    consistency = Consistency.OFFSETS
    mode = Mode.APPEND
    arrived = "timestamp"

    def declared(self) -> KafkaSource:
        """See ``Followed``."""
        return KafkaSource(conn_id="source", topic="followed")

    def upstream(self) -> Endpoint:
        """See ``Followed``."""
        return Endpoint(conn_id="source", host=self.servers["kafka"].url, port=0, database="", user="")

    def begin(self) -> None:
        """See ``Followed``."""
        events.fill(self.servers["kafka"].url, records=1_000, topic="followed", bytes=BYTES)

    def change(self, number: int) -> None:
        """See ``Followed``."""
        producer = self._producer()
        for each in range(number):
            self._send(producer, each)
        producer.flush(60)

    def write(self, rate: float, over: Event) -> None:
        """See ``Followed``."""
        producer, sent = self._producer(), 0
        for due in paced(rate, over):
            for _ in range(due):
                sent += 1
                self._send(producer, sent)
            producer.poll(0)
        producer.flush(60)

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.servers["kafka"].url, "linger.ms": 5})

    def _send(self, producer: Producer, number: int) -> None:
        while True:
            try:
                producer.produce("followed", events.order(number, BYTES), partition=number % events.PARTITIONS)
                return
            except BufferError:
                producer.poll(0.1)


def measure(side: Followed, *, changes: int, seconds: float) -> Found:
    """Hydrate, work a backlog off, and follow at half that rate."""
    side.begin()
    side.open()
    try:
        side.run()
        # The first run after the hydration loads what replaying needs.
        side.change(AT_ONCE * 10)
        side.run()
        side.change(changes)
        decode = side.decoding()
        roots = {"Spark": side.servers["connect"].pid or 0, "PostgreSQL": side.servers["postgres"].pid or 0}
        with Accounts({**roots, "client": os.getpid()}) as accounts:
            side.run()
        rate = changes / accounts.seconds
        runs, latencies = side.latencies(rate / 2, seconds=seconds)
    finally:
        side.close()
    return Found(
        title=side.title,
        changes=changes,
        seconds=accounts.seconds,
        cpu=_parts({name: tree.cpu_seconds for name, tree in accounts.trees.items()}),
        decode_seconds=decode,
        offered=rate / 2,
        runs=runs,
        latencies=latencies,
    )


def _parts(cpu: dict[str, float]) -> dict[str, float]:
    """Take the servers, which this process has started, off its own tree."""
    servers = sum(seconds for name, seconds in cpu.items() if name != "client")
    return {**cpu, "client": max(0.0, cpu["client"] - servers)}


def row(found: Found) -> str:
    """Return a line of the table."""
    decoded = "-" if found.decode_seconds is None else f"{found.changes / found.decode_seconds:,.0f}"
    parts = ", ".join(f"{name} {seconds / found.changes * 1e6:.1f}" for name, seconds in found.cpu.items())
    late = statistics.quantiles(found.latencies, n=100)
    return (
        f"| {found.title} | {found.rate:,.0f} | {decoded} | {parts} | {found.offered:,.0f} | {found.runs} |"
        f" {late[49]:.1f} | {late[98]:.1f} |"
    )


def section(command: str, found: list[Found], about: dict[str, str]) -> str:
    """Return the figures as Markdown."""
    return "\n".join(
        [
            "What a hydration keeps up with once it has hydrated, one run after the other, without Airflow's own part:",
            f"\n```sh\n{command}\n```\n",
            "| | changes/s | server decodes/s | CPU us a change | offered/s | runs | median s | p99 s |",
            "|---|---|---|---|---|---|---|---|",
            *map(row, found),
            f"\n`changes/s` is a backlog of {found[0].changes:,} worked off in one run. Changes of the table are 60 % "
            f"updates, 20 % inserts and 20 % deletes in transactions of {AT_ONCE}, on {ROWS:,} rows of 120 bytes; "
            f"messages have {BYTES} bytes. `server decodes/s` is how fast PostgreSQL alone sends the same changes. "
            "The times are those from a row's writing to its sight in the target, at the offered rate, which is half "
            "of the first.\n",
            report.machine(about),
        ]
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steady", description=__doc__)
    parser.add_argument("--changes", type=int, default=500_000, help="of the backlog")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which latencies are taken")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    about = machine.describe(packages=("confluent-kafka",))
    found = []
    for kind in (Table, Topic):
        with temporary_services() as services:
            servers = services.up("postgres", "connect", *(("kafka",) if kind is Topic else ()))
            found.append(measure(opened(kind, servers), changes=wanted.changes, seconds=wanted.seconds))
            console.print(row(found[-1]))
    command = f"python -m benchmarks.steady --changes {wanted.changes} --seconds {wanted.seconds:g}"
    text = section(command, found, about)
    console.print(text)
    if wanted.write_docs:
        page.write(HEADING, text)
    return 0


def opened(kind: type[Followed], servers: dict[str, Server]) -> Followed:
    """Make the databases and return the side."""
    server = servers["postgres"]
    root = f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}"
    made = kind(servers=servers, ledger_url=f"{root}/ledger", budget=Budget(credits=4))
    with made.connected("postgres") as link:
        for name in ("shop", "warehouse", "ledger"):
            link.execute(f"CREATE DATABASE {name}")
    with made.connected("warehouse") as link:
        link.execute("CREATE SCHEMA raw")
    migrate(made.ledger_url)
    return made


if __name__ == "__main__":
    raise SystemExit(main())
