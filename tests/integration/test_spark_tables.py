"""PostgreSQL into tables that Spark's own connectors write, over a real Spark Connect server."""

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.results import Verdict
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.runners.connect import ConnectRunner
from tests.integration.test_lakes import compose, hydrate, source_rows, upsert_changes
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
    """The hydration into a new table of each format; two tasks read a range."""
    into = lake_cluster.place(request.param, f"t_{uuid.uuid4().hex[:8]}", tasks=2)
    return compose(database, ledger_url, logins, lake_cluster, into)


@pytest.mark.statement("K1", "X1")
@pytest.mark.long
def test_every_row_arrives_with_its_values(
    composed: Composed, runner: ConnectRunner, database: Endpoint, lake_cluster: Cluster
) -> None:
    """K1, X1: two ranges at once, two tasks each; by count, by checksum, and by value with the format's own reader."""
    verdict, report = hydrate(composed, runner, Verify.TARGET)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 2500, ())
    assert lake_cluster.rows(composed.into) == source_rows(database)

    run(database, "INSERT INTO sales (id, code) SELECT i, 'later' FROM generate_series(2501, 2600) i", "ANALYZE sales")
    verdict, report = hydrate(composed, runner, Verify.TARGET)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 100, ())
    assert lake_cluster.rows(composed.into) == source_rows(database)


@pytest.mark.statement("X1")
@pytest.mark.long
def test_changed_rows_are_merged(
    composed: Composed, runner: ConnectRunner, database: Endpoint, lake_cluster: Cluster
) -> None:
    """X1: under ``upsert``, by one MERGE for each range, two ranges at once."""
    upsert_changes(composed, runner, database, lambda: lake_cluster.rows(composed.into))
