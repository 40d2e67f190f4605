"""Fault 7: the source's server is killed while ranges are read from it."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SnapshotLost
from dev.services import Services
from tests.chaos.drained import Drained, Session, planned
from tests.conftest import endpoint_of
from tests.support import mysql as on_mysql
from tests.support.composed import Composed, difference
from tests.support.kafka import Topic
from tests.support.kafka import endpoint_of as on_kafka
from tests.support.postgres import run
from tests.support.waiting import beside, until

pytestmark = [pytest.mark.integration, pytest.mark.fault(7), pytest.mark.timeout(300)]

NAME, ROWS, RANGE_ROWS = "postgres:origin", 20_000, 1_000


@pytest.fixture(scope="module")
def origin(services: Services) -> Iterator[Endpoint]:
    """A server of its own with ``public.t``."""
    endpoint = endpoint_of(services.up(NAME)[NAME], "postgres")
    run(
        endpoint,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO t SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, {ROWS}) i",
        "ANALYZE t",
    )
    yield endpoint
    services.down(NAME)


@pytest.fixture
def composed(origin: Endpoint, hydration: Composed) -> Composed:
    return replace(
        hydration,
        source=origin,
        budget=Budget(credits=2, range_rows=RANGE_ROWS),
    )


def struck(services: Services, name: str = NAME) -> None:
    """Kill it, and bring it back a moment later."""
    services.kill(name)
    time.sleep(0.5)
    services.restart(name)


def drained_through(drained: Drained, services: Services, name: str) -> None:
    """Drain, and kill the server while ranges are being read from it."""

    def strike(_: object) -> None:
        until(lambda: drained.committed() >= 3 and drained.in_flight())
        struck(services, name)
        assert drained.committed() < drained.ranges, "it is killed in mid-run"

    with beside(strike):
        drained.run()


@pytest.mark.statement("X2")
def test_ranges_of_a_static_table_are_read_again(composed: Composed, services: Services, session: Session) -> None:
    """X2: what was in flight fails and is tried again, in this life of the lane or the next; the rest is kept."""
    drained = planned(composed, session(composed))
    drained_through(drained, services, NAME)
    drained.check()


@pytest.mark.long
@pytest.mark.statement("X2")
def test_ranges_of_a_table_of_mysql_are_read_again(hydration: Composed, services: Services, session: Session) -> None:
    """X2: as those of PostgreSQL are."""
    name = "mysql:origin"
    server = endpoint_of(services.up(name)[name], "mysql")
    with on_mysql.fresh_database(server) as source:
        on_mysql.run(
            source,
            f"SET SESSION cte_max_recursion_depth = {ROWS}",
            "CREATE TABLE t (id bigint PRIMARY KEY, body varchar(96) NOT NULL)",
            f"INSERT INTO t WITH RECURSIVE g (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {ROWS})"
            " SELECT i, repeat(md5(i), 3) FROM g",
            "ANALYZE TABLE t",
        )
        budget = Budget(credits=2, range_rows=RANGE_ROWS)
        composed = replace(hydration, source=source, kind="mysql", table="t", budget=budget)
        drained = planned(composed, session(composed))
        drained_through(drained, services, name)
        there = on_mysql.run(source, "SELECT id, body FROM t ORDER BY id")
    services.down(name)
    assert run(composed.sink, "SELECT id, body FROM raw.t ORDER BY id") == there
    drained.check_ranges()


@pytest.mark.statement("X2", "X6")
@pytest.mark.long
def test_ranges_of_a_topic_are_read_again(hydration: Composed, services: Services, session: Session) -> None:
    """X2, X6: also where the broker goes while records come; each offset is there once."""
    name = "kafka:origin"
    broker = services.up(name)[name]
    topic = Topic(servers=broker.url).create(2)
    for partition in range(2):
        topic.send(partition, *range(ROWS // 2))
    composed = replace(
        hydration,
        source=on_kafka(broker),
        kind="kafka",
        consistency="offsets",
        table=topic.name,
        budget=Budget(credits=2, range_rows=RANGE_ROWS),
    )
    drained = planned(composed, session(composed))
    drained_through(drained, services, name)
    there = topic.committed()
    services.down(name)
    rows = run(composed.sink, 'SELECT "partition", "offset", value::text FROM raw.t ORDER BY 1, 2')
    assert rows == [(*place, (value or b"").decode()) for place, value in sorted(there.items())]
    assert len(rows) == ROWS
    drained.check_ranges()


@pytest.mark.long
@pytest.mark.statement("X2", "X6")
def test_two_snapshots_are_not_mixed(composed: Composed, services: Services, session: Session) -> None:
    """X2, X6: the snapshot went with its server: it stops by name, the target is cleared, and a new one is read."""
    kept = replace(composed, consistency="snapshot", target="raw.kept")
    runner = session(kept)
    drained = planned(kept, runner)

    def strike(_: object) -> None:
        until(lambda: drained.committed() >= 3)
        struck(services)

    with beside(strike), kept.open(runner) as ports, pytest.raises(SnapshotLost):
        ports.hydrator().run()
    with kept.open(runner) as ports:
        if ports.ledger.counts(drained.plan_id).open:
            ports.close_plan()
        assert run(kept.sink, "SELECT count(*) FROM raw.kept") == [(0,)]
        run(kept.source, "UPDATE t SET body = 'new' WHERE id < 5000")
        ports.hydrator().run()
    assert difference(kept.source, "public.t", kept.sink, "raw.kept") == (0, 0)
