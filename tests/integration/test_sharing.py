"""What hydrations share on real servers: a Spark cluster that grows and shrinks, connections to a target's server."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.executor_memory import slots
from dev.services import Server, Services
from tests.support.composed import Composed, difference
from tests.support.postgres import connected, run
from tests.support.waiting import beside, until

pytestmark = pytest.mark.integration

SECONDS = 120.0
"""In which what is waited for comes."""
CLUSTER = {"master": "standalone", "worker_cores": 1, "worker_memory": "1g", "jars": ()}
SLOW = """
CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_sleep(0.005); RETURN NEW; END'
"""


def fill(endpoint: Endpoint, table: str, rows: int) -> None:
    run(
        endpoint,
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO {table} SELECT i, md5(i::text) FROM generate_series(1, {rows}) i",
        f"ANALYZE {table}",
    )


def hold(endpoint: Endpoint, target: str) -> None:
    """Let each row of a target take its time."""
    run(endpoint, f"CREATE TRIGGER linger BEFORE INSERT ON {target} FOR EACH ROW EXECUTE FUNCTION linger()")


@pytest.fixture(scope="module")
def growing(services: Services) -> Iterator[Server]:
    """A standalone cluster of one worker with one core, to which others may come."""
    yield services.up("connect:growing", workers=1, **CLUSTER)["connect:growing"]
    services.down("connect:growing", "standalone")


def running(server: Server) -> int:
    """Return how many tasks the cluster runs at once, as Spark's page says."""
    with urllib.request.urlopen(f"{server.ui_url}/api/v1/applications", timeout=5) as answer:
        app = json.load(answer)[0]["id"]
    with urllib.request.urlopen(f"{server.ui_url}/api/v1/applications/{app}/executors", timeout=5) as answer:
        return slots(json.load(answer)) or 0


@pytest.mark.long
@pytest.mark.statement("T1", "T11")
@pytest.mark.timeout(600)
def test_workers_come_and_go_while_ranges_move(
    database: Endpoint, growing: Server, services: Services, ledger_url: str
) -> None:
    """T11: 1 -> 3 -> 1 workers: credits follow within three ranges, none is lost or doubled, T1 holds throughout."""
    fill(database, "t", 12_000)
    run(database, SLOW)
    composed = Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote=growing.url,
        ui_url=growing.ui_url,
        budget=Budget(credits=6, range_rows=100, law="fixed"),
    )
    plan = composed.plan()
    hold(database, "raw.t")
    assert plan.ranges >= 100
    seen: list[tuple[int, int]] = []
    with closing(SqlLedger(ledger_url)) as ledger, looking(ledger, plan.hydration.id, seen):
        lane = threading.Thread(target=composed.run)
        lane.start()

        def follows(wanted: int) -> None:
            until(lambda: running(growing) == wanted, SECONDS)
            before = ledger.counts(plan.plan.plan_id).committed
            until(lambda: ledger.hydration(plan.hydration.id).credits_max == min(6, 2 * wanted), SECONDS)
            assert ledger.counts(plan.plan.plan_id).committed - before <= 3

        until(lambda: ledger.counts(plan.plan.plan_id).committed >= 2, SECONDS)
        follows(1)
        services.up("worker:2", "worker:3", workers=3, **CLUSTER)
        follows(3)
        until(lambda: ledger.gate(plan.hydration.id).in_flight > 2, SECONDS)
        services.down("worker:2", "worker:3")
        follows(1)
        run(database, "ALTER TABLE raw.t DISABLE TRIGGER linger")
        lane.join(300)
        assert not lane.is_alive()
    composed.finish()
    assert difference(database, "public.t", database, "raw.t") == (0, 0)
    # W binds at admission: what is in flight above a lowered limit may only become less.
    grown = [(before, after) for before, after in pairwise(seen) if after[0] > max(after[1], before[0])]
    assert grown == []
    assert max(in_flight for in_flight, _ in seen) > 2


@contextmanager
def looking(ledger: SqlLedger, hydration_id: str, seen: list[tuple[int, int]]) -> Iterator[None]:
    """Keep in flight and credits at short intervals."""

    def work(over: threading.Event) -> None:
        while not over.wait(0.1):
            state = ledger.gate(hydration_id)
            seen.append((state.in_flight, state.credits))

    with beside(work):
        yield


@pytest.mark.long
def test_four_hydrations_into_one_server_share_its_connections(
    database: Endpoint, connect: Server, ledger_url: str
) -> None:
    """Never more ranges' connections than the limit, however many credits each has; and everything arrives."""
    run(database, SLOW)
    every = []
    for number in range(4):
        fill(database, f"s{number}", 2_000)
        every.append(
            Composed(
                source=database,
                sink=database,
                ledger_url=ledger_url,
                remote=connect.url,
                ui_url=connect.ui_url,
                table=f"public.s{number}",
                target=f"raw.s{number}",
                lane=f"lane {number}",
                budget=Budget(credits=4, range_rows=100, sink_connections=3),
            )
        )
    for composed in every:
        composed.plan()
        hold(database, composed.target)
    most = [0]

    def sample(over: threading.Event) -> None:
        with connected(database) as connection:
            while not over.wait(0.02):
                query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'bp:%'"
                most.append(connection.execute(query).fetchone()[0])

    with beside(sample), ThreadPoolExecutor(4) as pool:
        list(pool.map(drained, every))
    for composed in every:
        assert difference(database, composed.table, database, composed.target) == (0, 0)
    assert max(most) == 3


def drained(composed: Composed) -> None:
    """Run lane after lane, as Airflow does: the others may have every connection for longer than one waits inline."""
    while composed.run().outcome is Outcome.CLOSED:
        pass
