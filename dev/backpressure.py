"""A producer ten times as fast as the target: where the surplus stays, which stage is held back, what the gate admits.

``make demo-backpressure`` prints the figures beside the expected ones; the test of the same takes them by :func:`play`.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.progress.bottleneck import find_bottleneck
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, State
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import KafkaSource
from benchmarks.accounting import resident_bytes
from dev.databases import open_database
from dev.services import Services

PRODUCED, HELD_TO = 1_000, 100
"""Messages a second, into the topic and out of it."""
SECONDS = 60.0
CREDITS, RANGE_ROWS, BYTES = 4, 100, 200
WARM = 15.0
"""Seconds at the beginning that are not looked at: the first window is a small one, and Spark starts its workers."""
TOPIC, TARGET = "readings", "raw.readings"

BRAKE = f"""
CREATE SEQUENCE taken;
CREATE TABLE brake (since timestamptz, off boolean NOT NULL DEFAULT false);
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE began timestamptz; loose boolean;
BEGIN
    SELECT since, off INTO began, loose FROM brake;
    IF loose THEN
        RETURN NEW;
    END IF;
    -- One at a time, and each a hundredth of a second behind the one before, for all writers.
    PERFORM pg_advisory_xact_lock(7);
    IF began IS NULL THEN
        SELECT since INTO began FROM brake;
    END IF;
    IF began IS NULL THEN
        began := clock_timestamp();
        INSERT INTO brake (since) VALUES (began);
        PERFORM setval('taken', 1);
    END IF;
    PERFORM pg_sleep(greatest(0, extract(epoch FROM
        began + nextval('taken') * interval '1 second' / {HELD_TO} - clock_timestamp())));
    RETURN NEW;
END $$;
CREATE TRIGGER hold BEFORE INSERT ON {TARGET} FOR EACH ROW EXECUTE FUNCTION hold();
"""


class Over(Exception):
    """The time is over."""


class Deadline(SystemClock):
    """Time that ends on request."""

    def __init__(self) -> None:
        self.over = False

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        if self.over:
            self.over = False
            raise Over
        return super().monotonic()


@dataclass
class Watched:
    """A runner whose results are kept, with the time at which they were asked for."""

    runner: Runner
    flows: list[tuple[float, dict[Stage, StageTime]]] = field(default_factory=list)

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See ``Runner.run``."""
        asked, future = time.monotonic(), self.runner.run(spec)
        future.add_done_callback(partial(self._keep, asked))
        return future

    def _keep(self, asked: float, done: "Future[RangeResult]") -> None:
        if done.exception() is None:
            self.flows.append((asked, done.result().flow))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


@dataclass(kw_only=True)
class Look:
    """What was there at one moment."""

    at: float
    produced: int
    committed: int
    in_flight: int
    memory: int

    @property
    def lag(self) -> int:
        """Messages that are in the topic and not in the target."""
        return self.produced - self.committed


@dataclass(kw_only=True)
class Figures:
    """What was seen while the target was held."""

    looks: list[Look]
    admitted: list[tuple[float, int]]
    """When each range was admitted, in seconds since the beginning, and its messages."""
    flow: dict[Stage, StageTime]
    credits: int
    before: list[StageTime]
    """The sink's time within the ranges that ended last under the brake."""
    after: list[StageTime]
    """The same of the first ranges that began without it."""

    @property
    def settled(self) -> list[Look]:
        """Without the beginning."""
        return [look for look in self.looks if look.at >= WARM]

    def rate(self, name: str) -> float:
        """Return a count's growth per second, by the line that fits it best."""
        times = [look.at for look in self.settled]
        return statistics.linear_regression(times, [getattr(look, name) for look in self.settled]).slope

    @property
    def admitted_rate(self) -> float:
        """Return messages admitted per second, once the credits are out and three ranges have passed."""
        times, messages = zip(*(each for each in self.admitted if each[0] <= self.looks[-1].at), strict=True)
        sums, begin = list(accumulate(messages)), self.credits + 3
        return statistics.linear_regression(times[begin:], sums[begin:]).slope

    @property
    def memory_growth(self) -> float:
        """How much more executor memory is in use in the last third than in the first, as a share."""
        third = len(self.settled) // 3
        first, last = (max(look.memory for look in part) for part in (self.settled[:third], self.settled[-third:]))
        return last / first - 1

    def rows(self) -> Iterator[tuple[str, str, str, bool]]:
        """Yield what is looked at, what was expected, what was seen, and whether that is right."""
        seconds = self.looks[-1].at
        for name, title in (("produced", "produced/s"), ("committed", "committed/s"), ("lag", "lag grows by/s")):
            wanted = {"produced": PRODUCED, "committed": HELD_TO, "lag": PRODUCED - HELD_TO}[name]
            found = self.rate(name)
            yield title, f"{wanted} ± 5 %", f"{found:.1f}", abs(found / wanted - 1) <= 0.05
        yield (
            "admitted/s",
            f"{HELD_TO} ± 5 %",
            f"{self.admitted_rate:.1f}",
            abs(self.admitted_rate / HELD_TO - 1) <= 0.05,
        )
        last = self.looks[-1]
        lag = (PRODUCED - HELD_TO) * seconds
        yield f"lag after {seconds:.0f} s", f"{lag:,.0f} ± 10 %", f"{last.lag:,}", abs(last.lag / lag - 1) <= 0.1
        most = max(look.in_flight for look in self.looks)
        yield "ranges in flight", f"at most {self.credits}", str(most), most <= self.credits
        yield "Spark's memory", "flat (± 10 %)", f"{self.memory_growth:+.1%}", self.memory_growth <= 0.1
        held = self.flow[Stage.ADMIT].share(State.BACKPRESSURED)
        yield "gate held back", "90 % or more", f"{held:.0%}", held >= 0.9
        busy = self.flow[Stage.SINK].share(State.BUSY)
        yield "sink busy", "most of the time", f"{busy:.0%}", busy >= 0.8
        found_stage = find_bottleneck(self.flow)
        yield "bottleneck", "sink", str(found_stage), found_stage is Stage.SINK
        freed = max(spent.busy for spent in self.after) / max(spent.busy for spent in self.before)
        yield "sink's time for a range, freed", "less than a third", f"{freed:.0%}", freed < 1 / 3


@contextmanager
def producing(servers: str) -> Iterator[list[int]]:
    """Produce at the set pace in a thread; gives the count so far."""
    count, done = [0], threading.Event()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "enable.idempotence": True})

    def work() -> None:
        began = time.monotonic()
        while not done.wait(0.02):
            for number in range(count[0], int((time.monotonic() - began) * PRODUCED)):
                value = f'{{"id": {number}, "note": "{"x" * (BYTES - 24)}"}}'
                producer.produce(TOPIC, value, key=str(number), partition=number % 4)
                count[0] += 1
            producer.poll(0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield count
    finally:
        done.set()
        thread.join()
        producer.flush(10)


def play(services: Services, *, seconds: float = SECONDS) -> Figures:
    """Start what is needed, hold the target for so long, let it go, and return what was seen."""
    servers = services.up("kafka", "postgres:sink", "connect")
    kafka, postgres, connect = servers["kafka"], servers["postgres:sink"], servers["connect"]
    admin = AdminClient({"bootstrap.servers": kafka.url})
    admin.create_topics([NewTopic(TOPIC, num_partitions=4)])[TOPIC].result(30)
    with ExitStack() as stack:
        database = stack.enter_context(open_database(postgres, "postgres"))
        database.execute("CREATE DATABASE ledger")
        url = f"postgresql+psycopg://{postgres.user}:{postgres.password}@{postgres.host}:{postgres.port}/ledger"
        migrate(url)
        source_at = Endpoint(conn_id="source", host=kafka.url or "", port=0, database="", user="")
        sink_at = Endpoint(
            conn_id="sink",
            host=postgres.host,
            port=postgres.port,
            database="postgres",
            user=postgres.user or "",
            password=postgres.password or "",
        )
        ledger = stack.enter_context(closing(SqlLedger(url)))
        runner = stack.enter_context(
            closing(ConnectRunner(connect.url or "", {"source": source_at, "sink": sink_at}, ui_url=connect.ui_url))
        )
        source = stack.enter_context(closing(KafkaSource(conn_id="source", topic=TOPIC).open(source_at)))
        sink = stack.enter_context(closing(PostgresSink(conn_id="sink", table=TARGET).open(sink_at)))
        planner = Planner(
            source=source,
            sink=sink,
            runner=runner,
            ledger=ledger,
            budget=Budget(credits=CREDITS, range_rows=RANGE_ROWS),
            mode=Mode.APPEND,
            owner="demo",
            cluster="spark",
        )
        planner.plan()
        database.execute(BRAKE)
        scene = Scene(
            planner=planner, watched=Watched(runner), database=database, clock=Deadline(), spark=connect.pid or 0
        )
        return scene.played(kafka.url or "", seconds)


@dataclass(kw_only=True)
class Scene:
    """Lane, brake and looks."""

    planner: Planner
    watched: Watched
    database: "psycopg.Connection[Any]"
    clock: Deadline
    spark: int
    """Process of the Spark server."""
    admitted: dict[tuple[str, int], tuple[float, int]] = field(default_factory=dict)
    """When each range of each window was admitted, in seconds since 1970, and its messages."""

    def played(self, servers: str, seconds: float) -> Figures:
        """Hold the target while messages come in, then let it go until a few ranges have passed freely."""
        ledger = self.planner.ledger
        lane = threading.Thread(target=self.drain)
        with producing(servers) as produced:
            began = time.monotonic()
            lane.start()
            looks = []
            while (at := time.monotonic() - began) < seconds:
                looks.append(self.look(at, produced[0]))
                time.sleep(0.5)
            flow = ledger.flow(self.hydration_id, seconds=seconds - WARM)
            admitted = self.admissions(began)
            self.database.execute("UPDATE brake SET off = true")
            freed = time.monotonic()
            deadline = freed + 60
            while len(self.free(freed)) < 2 * CREDITS and time.monotonic() < deadline:
                time.sleep(0.1)
        self.clock.over = True
        lane.join(60)
        return Figures(
            looks=looks,
            admitted=admitted,
            flow=flow,
            credits=CREDITS,
            before=[flow[Stage.SINK] for asked, flow in self.watched.flows if asked < freed][-8:-4],
            after=[flow[Stage.SINK] for flow in self.free(freed)],
        )

    @property
    def hydration_id(self) -> str:
        """The only hydration."""
        return self.planner.ledger.hydrations()[0].id

    def free(self, freed: float) -> list[dict[Stage, StageTime]]:
        """Return the flow of ranges that began after the brake was taken off."""
        return [flow for asked, flow in self.watched.flows if asked > freed]

    def look(self, at: float, produced: int) -> Look:
        """Look at topic, ledger, target and executors."""
        self.note()
        row = self.database.execute(f"SELECT count(*) FROM {TARGET}").fetchone()
        return Look(
            at=at,
            produced=produced,
            committed=row[0] if row else 0,
            in_flight=self.planner.ledger.gate(self.hydration_id).in_flight,
            memory=resident_bytes(self.spark),
        )

    def note(self) -> None:
        """Keep what the current window has admitted: the ledger has no ranges of a window that is over."""
        plan = self.planner.ledger.hydration(self.hydration_id).plan
        for each in self.planner.ledger.ranges(plan.plan_id) if plan else []:
            if each.admitted_at:
                self.admitted[each.plan_id, each.seq] = (each.admitted_at.timestamp(), each.planned_rows)

    def admissions(self, began: float) -> list[tuple[float, int]]:
        """Return when ranges were admitted, in seconds since the beginning and in that order, and their messages."""
        back = time.time() - time.monotonic() + began
        return sorted((at - back, messages) for at, messages in self.admitted.values())

    def drain(self) -> None:
        """Be the lane: window after window, until the time is over."""
        with suppress(Over):
            while True:
                planned = self.planner.plan()
                lane = self.lane(planned.hydration.id)
                try:
                    lane.run()
                except Over:
                    lane.cancel()
                    raise
                self.planner.ledger.finish(planned.hydration.id)

    def lane(self, hydration_id: str) -> Hydrator:
        """Return the loop over the current window."""
        planner = self.planner
        plan = planner.ledger.hydration(hydration_id).plan
        assert plan is not None
        return Hydrator(
            hydration_id=hydration_id,
            plan=plan,
            lane="lane",
            ledger=planner.ledger,
            source=planner.source,
            sink=planner.sink,
            runner=self.watched,
            limiter=Limiter(
                ledger=planner.ledger, hydration_id=hydration_id, budget=planner.budget, memory=self.watched.memory
            ),
            budget=planner.budget,
            share=CREDITS,
            poll=PollPolicy(initial=0.05, maximum=0.5),
            clock=self.clock,
        )


def main() -> int:
    """Play, and print the figures; 1 where one is not as expected."""
    console = Console()
    console.print(f"{PRODUCED:,} messages/s into Kafka, the PostgreSQL target held to {HELD_TO}/s, for {SECONDS:g} s …")
    services = Services(Path(".backpressure"), owner_pid=os.getpid())
    services.down(remove=True)
    try:
        figures = play(services)
    finally:
        services.down(remove=True)
    table = Table("", "expected", "seen", "")
    right = True
    for title, expected, seen, well in figures.rows():
        right = right and well
        table.add_row(title, expected, seen, "[green]yes[/]" if well else "[red]no[/]")
    console.print(table)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
