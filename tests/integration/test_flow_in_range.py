"""What the stages do is known while a long range runs, from what the target's server shows of its attempt."""

import threading
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.clock import PollPolicy, SystemClock
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, State
from tests.support.composed import Composed
from tests.support.local_runner import LocalRunner
from tests.support.postgres import run

pytestmark = pytest.mark.integration

SLOW = """
    CREATE FUNCTION raw.wait() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$
"""
FRESH_SECONDS = 5.0


def test_a_range_that_is_half_way_shows_what_its_stages_do(database: Endpoint, ledger_url: str) -> None:
    """F5, L9 without a runner of Spark's: figures of the last five seconds, before the only range has ended."""
    run(
        database,
        "CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1::bigint, 500) i",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (LIKE t)",
        SLOW,
        "CREATE TRIGGER slow BEFORE INSERT ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.wait()",
    )
    composed = Composed(
        source=database, sink=database, ledger_url=ledger_url, remote="", budget=Budget(credits=1, range_rows=1_000)
    )
    logins = {name: replace(database, conn_id=name) for name in ("source", "sink")}
    runner = LocalRunner(logins=logins)
    with composed.open(runner) as ports:
        assert ports.planner().plan().ranges == 1
        hydration_id, plan_id = ports.hydration.id, ports.plan.plan_id
        lane = threading.Thread(target=ports.hydrator().run)
        lane.start()

        def seen() -> Flow | None:
            flow = ports.ledger.flow(hydration_id, seconds=FRESH_SECONDS)
            return flow if Stage.SINK in flow else None

        flow = PollPolicy().until(seen, timeout=9, clock=SystemClock())
        counts = ports.ledger.counts(plan_id)
        lane.join()
        assert (counts.admitted, counts.committed) == (1, 0), "it was on its way"
        assert flow is not None
        assert flow[Stage.SINK].share(State.BUSY) > 0.9
        assert flow[Stage.READ].share(State.BACKPRESSURED) > 0.9
        assert ports.ledger.counts(plan_id).committed == 1
    runner.close()
