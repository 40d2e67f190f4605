"""Fault 7: the source's server is killed while ranges are read from it."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SnapshotLost
from dev.services import Services
from tests.chaos.drained import Session, meanwhile, planned
from tests.conftest import endpoint_of
from tests.integration.attempts import until
from tests.support.composed import Composed, difference
from tests.support.postgres import run

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


def struck(services: Services) -> None:
    """Kill it, and bring it back a moment later."""
    services.kill(NAME)
    time.sleep(0.5)
    services.restart(NAME)


@pytest.mark.statement("X2")
def test_ranges_of_a_static_table_are_read_again(composed: Composed, services: Services, session: Session) -> None:
    """X2: what was in flight fails and is tried again, in this life of the lane or the next; the rest is kept."""
    runner = session(composed)
    drained = planned(composed, runner)

    def strike() -> None:
        until(lambda: drained.committed() >= 3)
        struck(services)

    with meanwhile(strike):
        drained.run()
    drained.check()


@pytest.mark.long
@pytest.mark.statement("X2", "X6")
def test_two_snapshots_are_not_mixed(composed: Composed, services: Services, session: Session) -> None:
    """X2, X6: the snapshot went with its server: it stops by name, the target is cleared, and a new one is read."""
    kept = replace(composed, consistency="snapshot", target="raw.kept")
    runner = session(kept)
    drained = planned(kept, runner)

    def strike() -> None:
        until(lambda: drained.committed() >= 3)
        struck(services)

    with meanwhile(strike), kept.open(runner) as ports, pytest.raises(SnapshotLost):
        ports.hydrator().run()
    with kept.open(runner) as ports:
        if ports.ledger.counts(drained.plan_id).open:
            ports.close_plan()
        assert run(kept.sink, "SELECT count(*) FROM raw.kept") == [(0,)]
        run(kept.source, "UPDATE t SET body = 'new' WHERE id < 5000")
        ports.hydrator().run()
    assert difference(kept.source, "public.t", kept.sink, "raw.kept") == (0, 0)
