"""Fault 22: a range takes more memory than its executor has."""

from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.hydrator import Outcome
from airflow_provider_backpressure.core.messages import Transform
from airflow_provider_backpressure.core.ranges import RangeState
from airflow_provider_backpressure.ledger.store import SqlLedger
from tests.chaos.drained import Session
from tests.support.composed import Composed, difference
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.fault(22), pytest.mark.timeout(300)]

ROWS, RANGE_ROWS = 4_000, 2_000


@pytest.mark.statement("X2")
@pytest.mark.parametrize("way", ["narrow", "killed"])
def test_a_range_that_is_too_large_is_cut_until_it_fits(
    database: Endpoint, ledger_url: str, session: Session, hydration: Composed, way: str
) -> None:
    """X2: in halves, at a real Spark; what did not fit is refused by the sink from then on, and all rows arrive."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, {ROWS}) i",
        "ANALYZE t",
    )
    composed = replace(
        hydration,
        budget=Budget(credits=2, range_rows=RANGE_ROWS),
    )
    with composed.open(session(composed)) as ports:
        planner = replace(ports.planner(), transform=Transform(python=f"tests.integration.transforms:{way}"))
        plan = planner.plan().plan
        assert ports.hydrator().run().outcome is Outcome.DONE
    with closing(SqlLedger(ledger_url)) as ledger:
        records = ledger.ranges(plan.plan_id)
    states = [record.state for record in records]
    assert states.count(RangeState.REVOKED) >= 2
    assert {record.rows for record in records if record.state is RangeState.COMMITTED} <= set(range(1, 1_001))
    assert set(states) == {RangeState.COMMITTED, RangeState.REVOKED}
    assert difference(database, "public.t", database, "raw.t") == (0, 0)
