"""A range whose read or write does not come back is ended at its deadline, and the next attempt finds the way free."""

import threading
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from tests.support.composed import Composed, difference
from tests.support.postgres import connected, numbered_rows, run
from tests.support.waiting import beside, until

pytestmark = pytest.mark.integration


@pytest.mark.statement("L6")
@pytest.mark.parametrize("locked", ["t", "raw.t"])
def test_a_range_that_waits_for_a_lock_is_ended_and_tried_again(
    locked: str, database: Endpoint, hydration: Composed
) -> None:
    """L6: its connections are gone before the next attempt begins, so that it does not queue behind them."""
    run(
        database,
        *numbered_rows(3000),
        "CREATE SCHEMA raw",
    )
    composed = replace(hydration, budget=Budget(credits=1, range_rows=1500, range_timeout=4.0))
    plan = composed.plan().plan

    def drain(_: threading.Event) -> None:
        with composed.open() as ports:
            ports.hydrator().run()

    def attempts() -> list[int]:
        with composed.open() as ports:
            return [record.attempt for record in ports.ledger.ranges(plan.plan_id)]

    with connected(database) as holder:
        holder.execute("BEGIN")
        holder.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
        with beside(drain):
            until(lambda: max(attempts()) >= 2)
            waiting = run(database, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            assert waiting[0][0] <= 1
            holder.execute("ROLLBACK")
    assert difference(database, "t", database, "raw.t") == (0, 0)
