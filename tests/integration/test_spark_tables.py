"""PostgreSQL into tables that Spark's own connectors write, over a real Spark Connect server."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.results import Verdict
from airflow_provider_backpressure.core.verification.verifier import Report, Verify
from airflow_provider_backpressure.runners.connect import ConnectRunner
from tests.integration.test_lakes import SALES, source_rows
from tests.support.composed import Composed
from tests.support.lakes import Cluster
from tests.support.postgres import run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def runner(lake_cluster: Cluster, logins: dict[str, Endpoint]) -> Iterator[ConnectRunner]:
    """One session for all tests of the module, as a lane has one for all ranges."""
    with closing(ConnectRunner(lake_cluster.url, logins, ui_url=lake_cluster.ui_url)) as runner:
        yield runner


@pytest.fixture(params=["delta", "iceberg"])
def composed(
    request: pytest.FixtureRequest,
    database: Endpoint,
    ledger_url: str,
    lake_cluster: Cluster,
    logins: dict[str, Endpoint],
) -> Composed:
    """2,500 rows of many types, to go into a new table in ranges of 1,000 that two tasks read, and what comes later."""
    run(database, *SALES.split(";"))
    logins["source"] = replace(database, conn_id="source")
    return Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote=lake_cluster.url,
        ui_url=lake_cluster.ui_url,
        table="public.sales",
        budget=Budget(credits=2, range_rows=1_000),
        into=lake_cluster.place(request.param, f"t_{uuid.uuid4().hex[:8]}", tasks=2),
        reading={"increment_column": "id"},
    )


def hydrate(composed: Composed, runner: ConnectRunner) -> tuple[Verdict, Report]:
    """Plan, drain, verify the target, and finish."""
    with composed.open(runner) as ports:
        planned = ports.planner().plan()
        ports.hydrator().run()
        plan = ports.plan
        report = ports.verifier().verify(ports.ledger.ranges(plan.plan_id), Verify.TARGET)
        ports.sink.complete(plan)
        ports.sink.publish(plan)
        ports.ledger.finish(ports.hydration.id)
        return planned.verdict, report


@pytest.mark.statement("K1", "X1")
def test_every_row_arrives_with_its_values(
    composed: Composed, runner: ConnectRunner, database: Endpoint, lake_cluster: Cluster
) -> None:
    """K1, X1: two ranges at once, two tasks each; by count, by checksum, and by value with the format's own reader."""
    verdict, report = hydrate(composed, runner)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 2500, ())
    assert lake_cluster.rows(composed.into) == expected(composed, database)

    run(database, "INSERT INTO sales (id, code) SELECT i, 'later' FROM generate_series(2501, 2600) i", "ANALYZE sales")
    verdict, report = hydrate(composed, runner)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 100, ())
    assert lake_cluster.rows(composed.into) == expected(composed, database)


def expected(composed: Composed, database: Endpoint) -> list[tuple[Any, ...]]:
    """The rows as the source's own driver reads them."""
    return source_rows(database)
