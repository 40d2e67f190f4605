"""Fault 22 in earnest: the heap of an executor's JVM cannot hold a range of wide rows."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.ledger.repository import SqlLedger
from dev.services import Server, Services
from tests.support.composed import Composed, difference
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.fault(22), pytest.mark.timeout(560)]

WIDE, WIDTH = 1_000, 200_000
"""Rows, and the bytes of each: 200 MB in one range, which a heap of 480 MiB cannot hold as often as Spark needs it."""
SORTED = (
    "SELECT each.id, each.body FROM (SELECT explode(array_sort(collect_list(struct(id, body)))) AS each FROM source)"
)
"""Holds all rows of a range in the heap of the executor's JVM."""


@pytest.fixture(scope="module")
def small(services: Services) -> Iterator[Server]:
    """A standalone cluster of one executor with the least heap that Spark takes. A task that fails is not run again."""
    conf = {"spark.executor.memory": "480m", "spark.task.maxFailures": "1"}
    options = {"master": "standalone", "workers": 1, "worker_cores": 1, "worker_memory": "512m"}
    yield services.up("connect:small", spark_conf=conf, jars=(), driver_memory="512m", **options)["connect:small"]
    services.down("connect:small", "standalone")


@pytest.mark.statement("X2")
def test_a_range_that_the_heap_cannot_hold_is_cut_until_it_fits(
    database: Endpoint, ledger_url: str, small: Server, hydration: Composed
) -> None:
    """X2: the JVM runs out of memory and ends, again and again; with smaller ranges all rows arrive."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO t SELECT i, repeat(md5(i::text), {WIDTH // 32}) FROM generate_series(1, {WIDE}) i",
        "ANALYZE t",
    )
    budget = Budget(credits=1, range_rows=WIDE, range_bytes=2**30)
    composed = replace(hydration, remote=small.url, ui_url=small.ui_url, budget=budget, transform=SORTED)
    plan = composed.plan()
    assert plan.ranges == 1
    assert composed.run().outcome is Outcome.DONE
    assert difference(database, "public.t", database, "raw.t") == (0, 0)
    with closing(SqlLedger(ledger_url)) as ledger:
        states = Counter(record.state for record in ledger.ranges(plan.plan.plan_id))
    assert states[RangeState.REVOKED] >= 1
    assert states.keys() == {RangeState.REVOKED, RangeState.COMMITTED}
