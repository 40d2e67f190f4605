"""M10: sources that change their shape while a trigger watches them, on real servers with a real ledger.

Everything here goes through the trigger's own ``run``, as in a triggerer: the poller finds the hydrations in the ledger
and opens their sources by Airflow's connections.
"""

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.progress.lag import Course, Verdict
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.hooks.recorded_declaration import plain
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.triggers import UnreadTrigger
from airflow_provider_backpressure.triggers.new_data_event import Subject
from airflow_provider_backpressure.triggers.shared_ledger import get_shared_ledger, open_shared_ledger
from dev.services import Server, Services
from tests.conftest import endpoint_of, fresh_database
from tests.support import kafka as on_kafka
from tests.support import mysql as on_mysql
from tests.support.composed import Composed
from tests.support.kafka import Topic
from tests.support.local_runner import LocalRunner
from tests.support.postgres import run
from tests.support.waiting import beside, until

pytestmark = [pytest.mark.integration, pytest.mark.statement("M10"), pytest.mark.timeout(300)]

INTERVAL = 0.2
"""Seconds between two looks at a source."""
LOST, GTIDS = "postgres:observed", "mysql:observed"
"""Servers of these tests' own: one goes back in time, the other gets transactions of another server."""
FOREIGN = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
"""The server where those transactions were committed first."""


@dataclass(kw_only=True)
class Observed:
    """A ledger, the hydrations in it, and what a trigger makes of them."""

    ledger: SqlLedger
    sink: Endpoint
    url: str
    connect: Callable[[str, dict[str, Any]], None]
    """Makes an Airflow connection."""
    events: list[dict[str, Any]] = field(default_factory=list)
    courses: dict[str, list[Course]] = field(default_factory=dict)
    """Every course that was seen of a hydration."""

    def composed(self, source: Endpoint, table: str, target: str, **options: Any) -> Composed:
        """Return a hydration of a source into the warehouse."""
        return Composed(
            source=source,
            sink=self.sink,
            ledger_url=self.url,
            remote="",
            table=table,
            target=target,
            budget=Budget(credits=2, range_rows=100),
            **options,
        )

    def followed(self, source: Endpoint, table: str, target: str, **options: Any) -> Composed:
        """Return a hydration that follows the log of a table."""
        return self.composed(source, table, target, mode="upsert", consistency="catch_up", **options)

    def hydrate(self, composed: Composed) -> str:
        """Run the hydration once from beginning to end, and return its id."""
        names = ("source", "sink")
        runner = LocalRunner(logins={name: replace(getattr(composed, name), conn_id=name) for name in names})
        with closing(runner), composed.open(runner) as ports:
            ports.planner().plan()
            ports.hydrator().run()
            while ports.planner().follow():
                ports.hydrator().run()
            return ports.ledger.finish(ports.hydration.id).id

    @contextmanager
    def watching(self, composed: Composed) -> Iterator[None]:
        """Run the trigger of a hydration's source in an event loop of its own, as a triggerer does."""
        self.connect("source", connection_of(composed))
        subject = Subject(
            source=plain(composed.declared()), sink=plain(PostgresSink(conn_id="sink", table=composed.target))
        )
        made = UnreadTrigger(subject=subject.to_json(), backpressure_conn_id="backpressure_default", interval=INTERVAL)

        async def collect() -> None:
            async for event in made.run():
                self.events.append(event.payload)

        async def watch(over: threading.Event) -> None:
            task = asyncio.create_task(collect())
            await asyncio.to_thread(over.wait)
            assert not task.done(), "the trigger ended"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        with beside(lambda over: asyncio.run(watch(over))):
            yield

    def until(self, hydration_id: str, found: Callable[[Course], object]) -> Course:
        """Return the first course of which ``found`` is true."""

        def look() -> Course | None:
            course = self.ledger.course(hydration_id)
            if course is None:
                return None
            self.courses.setdefault(hydration_id, []).append(course)
            return course if found(course) else None

        course = until(look, 60, told=lambda: self.ledger.course(hydration_id))
        assert course is not None
        return course

    def until_seen_again(self, hydration_id: str) -> Course:
        """Return the course after a look that began later than now."""
        course = self.until(hydration_id, bool)
        for _ in range(2):  # the next look may have begun before now
            before = course.latest.at
            course = self.until(hydration_id, lambda now, before=before: now.latest.at > before)
        return course

    def check_rates(self) -> None:
        """No rate and no lag that was seen is negative."""
        for course in (each for seen in self.courses.values() for each in seen):
            for number in (course.upstream_rate, course.process_rate, course.lag, course.unread):
                assert number is None or number >= 0, course

    def percent(self, hydration_id: str) -> float | None:
        """Return how much of the snapshot is in."""
        return total_progress(self.ledger.statistics(hydration_id)).percent


def connection_of(composed: Composed) -> dict[str, Any]:
    """Return the fields of the Airflow connection to a hydration's source."""
    at = composed.source
    if composed.kind == "kafka":
        return {"conn_type": "kafka", "extra": {"bootstrap.servers": at.host}}
    return fields_of(at, composed.kind)


def fields_of(at: Endpoint, conn_type: str) -> dict[str, Any]:
    return {
        "conn_type": conn_type,
        "host": at.host,
        "port": at.port,
        "schema": at.database,
        "login": at.user,
        "password": at.password,
    }


@pytest.fixture
def postgres_source(postgres: Server) -> Iterator[Endpoint]:
    """A fresh database beside the warehouse."""
    with fresh_database(postgres) as source:
        yield source


@pytest.fixture
def observed(ledger_url: str, database: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    """An empty ledger and an empty warehouse, which Airflow's connections name."""

    def connect(conn_id: str, fields: dict[str, Any]) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    login, _, address = ledger_url.partition("://")[2].partition("@")
    place, _, name = address.partition("/")
    ledger_at = replace(
        database,
        host=place.partition(":")[0],
        port=int(place.partition(":")[2]),
        database=name,
        password=login.partition(":")[2],
    )
    connect("sink", fields_of(database, "postgres"))
    connect("backpressure_default", {**fields_of(ledger_at, "backpressure"), "extra": {"push": "none"}})
    get_shared_ledger.cache_clear()
    with closing(SqlLedger(ledger_url)) as ledger:
        yield Observed(ledger=ledger, sink=database, url=ledger_url, connect=connect)
    asyncio.run(open_shared_ledger("backpressure_default")).close()
    get_shared_ledger.cache_clear()


def test_a_topic_gets_a_partition_loses_old_records_and_is_made_anew(observed: Observed, kafka: Server) -> None:
    """M10: a new partition counts from zero; removed records change nothing; a topic made again is named."""
    topic = Topic(servers=kafka.url).create(1)
    topic.send(0, *range(30))
    composed = observed.composed(
        on_kafka.endpoint_of(kafka), topic.name, "raw.topic", kind="kafka", consistency="offsets"
    )
    hydration_id = observed.hydrate(composed)
    with observed.watching(composed):
        first = observed.until(hydration_id, lambda course: course.latest.known == {"0": 30})
        assert (first.lag, first.trouble, observed.events) == (0, "", [])
        topic.cut(0, 20)
        assert observed.until_seen_again(hydration_id).trouble == ""
        topic.grow(2)
        topic.send(1, *range(20))
        grown = observed.until(hydration_id, lambda course: course.latest.known == {"0": 30, "1": 20})
        assert (grown.lag, grown.trouble) == (20, "")
        until(lambda: [event["lag"] for event in observed.events] == [20], told=lambda: observed.events)
        observed.hydrate(composed)
        observed.until(hydration_id, lambda course: course.latest.committed == {"0": 30, "1": 20} and course.lag == 0)
        topic.delete()
        topic.create(2)
        topic.send(0, *range(4))
        anew = observed.until(hydration_id, lambda course: course.trouble)
        assert "Partition 0 was" in anew.trouble
        assert "30 and ends at offset" in anew.trouble
    observed.check_rates()
    topic.delete()


def test_a_table_is_added_and_another_dropped(
    observed: Observed, postgres_source: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """M10: the poller finds a new table's hydration by itself, and goes on with it when another table is dropped."""
    run(postgres_source, "CREATE TABLE old (id int PRIMARY KEY)", "INSERT INTO old SELECT generate_series(1, 50)")
    old = observed.followed(postgres_source, "public.old", "raw.old")
    dropped = observed.hydrate(old)
    with observed.watching(old):
        observed.until(dropped, bool)
        run(postgres_source, "CREATE TABLE new (id int PRIMARY KEY)", "INSERT INTO new SELECT generate_series(1, 50)")
        added = observed.hydrate(observed.followed(postgres_source, "public.new", "raw.new"))
        observed.until(added, lambda course: course.latest.committed)
        run(postgres_source, "DROP TABLE old", "INSERT INTO new VALUES (51)")
        for hydration_id in (dropped, added):
            course = observed.until_seen_again(hydration_id)
            assert course.trouble == ""
            assert course.lag is not None
    observed.check_rates()
    assert "failed." not in caplog.text
    with pytest.raises(SourceRefused, match=r"public\.old"):
        observed.hydrate(old)


@pytest.mark.parametrize("kind", ["postgres", "kafka"])
def test_of_an_empty_source_all_is_there(
    observed: Observed, request: pytest.FixtureRequest, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """M10: an empty snapshot is hydrated to 100 %, its lag is a number, and its first rows are an event."""
    topic: Topic | None = None
    if kind == "kafka":
        server = request.getfixturevalue("kafka")
        topic = Topic(servers=server.url).create(2)
        source = on_kafka.endpoint_of(server)
        composed = observed.composed(source, topic.name, "raw.t", kind="kafka", consistency="offsets")
    else:
        source = request.getfixturevalue("postgres_source")
        run(source, "CREATE TABLE t (id int PRIMARY KEY)")
        composed = observed.followed(source, "public.t", "raw.t")
    hydration_id = observed.hydrate(composed)
    assert observed.percent(hydration_id) == 100.0
    with observed.watching(composed):
        course = observed.until(hydration_id, lambda course: course.lag is not None)
        assert course.trouble == ""
        if topic is not None:
            assert (course.lag, course.verdict, course.catch_up_seconds) == (0, Verdict.CAUGHT_UP, 0.0)
            topic.send(1, *range(7))
            until(lambda: [event["lag"] for event in observed.events] == [7], told=lambda: observed.events)
        else:
            run(source, "INSERT INTO t SELECT generate_series(1, 7)")
            until(lambda: observed.events and observed.events[0]["lag"] > 0, told=lambda: observed.events)
        observed.until_seen_again(hydration_id)
    observed.check_rates()
    assert "failed." not in caplog.text
    if topic is not None:
        topic.delete()


@pytest.fixture
def lost(services: Services) -> Iterator[Endpoint]:
    """A server that the test may set back. A second try of the test gets another one."""
    yield endpoint_of(services.up(LOST)[LOST], "postgres")
    services.down(LOST, remove=True)


def test_a_server_that_was_restored_is_named_and_gives_no_negative_rate(
    observed: Observed, services: Services, lost: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """M10: its log ends before the place where it was seen: that is an error, in the course and in the log."""
    source = lost
    run(source, "CREATE TABLE t (id int PRIMARY KEY, note text)", "INSERT INTO t SELECT generate_series(1, 50)")
    composed = observed.followed(source, "public.t", "raw.t")
    hydration_id = observed.hydrate(composed)
    ((folder,),) = run(source, "SHOW data_directory")
    image = tmp_path / "image"
    services.kill(LOST)
    subprocess.run(["cp", "-a", folder, image], check=True)
    services.restart(LOST)
    with observed.watching(composed):
        before = observed.until(hydration_id, bool).latest.known["wal"]
        run(source, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(51, 5000) g")
        observed.until(hydration_id, lambda course: course.latest.known["wal"] > before + 1_000_000)
        observed.hydrate(composed)
        observed.until_seen_again(hydration_id)
        services.kill(LOST)
        until(lambda: "is not looked at now" in caplog.text, 60, told=lambda: caplog.text[-3000:])
        subprocess.run(["rm", "-r", folder], check=True)
        subprocess.run(["cp", "-a", image, folder], check=True)
        services.restart(LOST)
        restored = observed.until(hydration_id, lambda course: course.trouble)
        assert "The source's log was" in restored.trouble
        assert "the server was restored" in restored.trouble
        assert restored.upstream_rate is None
        until(lambda: "the server was restored" in caplog.text, 60, told=lambda: caplog.text[-3000:])
        # The server writes on, far behind what the target has: it is said as long as that is so.
        run(source, "INSERT INTO t VALUES (51, 'written after the restore')")
        observed.until(hydration_id, lambda course: "committed up to" in course.trouble)
    observed.check_rates()


def test_transactions_of_another_server_count_from_zero(observed: Observed, services: Services) -> None:
    """M10: a GTID source that appears is a key of its own; its transactions are lag until the next run has them."""
    server = endpoint_of(services.up(GTIDS)[GTIDS], "mysql")
    with on_mysql.fresh_database(server) as source:
        on_mysql.run(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        composed = observed.followed(source, "t", "raw.t", kind="mysql")
        hydration_id = observed.hydrate(composed)
        with observed.watching(composed):
            first = observed.until(hydration_id, lambda course: course.latest.committed is not None)
            assert len(first.latest.known) == 1
            for number in (1, 2, 3):
                on_mysql.run(
                    source, f"SET GTID_NEXT = '{FOREIGN}:{number}'", f"INSERT INTO t VALUES ({10 + number})", "COMMIT"
                )
            course = observed.until(hydration_id, lambda course: course.latest.known.get(FOREIGN) == 3)
            assert course.trouble == ""
            assert course.latest.lag == {**dict.fromkeys(first.latest.known, 0), FOREIGN: 3}
            observed.hydrate(composed)
            assert observed.until(hydration_id, lambda course: course.lag == 0).latest.committed[FOREIGN] == 3
        observed.check_rates()
        assert run(composed.sink, "SELECT count(*) FROM raw.t") == [(5,)]
    services.down(GTIDS)
