"""``catch_up`` into tables that Spark's own connectors write: ranges, then windows of changes by MERGE."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.lake.spark.notes import Kind
from airflow_provider_backpressure.connectors.lake.spark.session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import open_table
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.gate.hydration import Phase
from airflow_provider_backpressure.core.planning.results import Verdict
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.runners.connect import ConnectRunner
from tests.support.catching_up import FILL, TABLE
from tests.support.composed import IN_PROCESS, Composed
from tests.support.lakes import Cluster
from tests.support.lakes_catching_up import FollowedTable, follow

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def runner(lake_cluster: Cluster, logins: dict[str, Endpoint]) -> Iterator[ConnectRunner]:
    """One session for all tests of the module, as a lane has one for all ranges."""
    with closing(ConnectRunner(lake_cluster.url, logins, ui_url=lake_cluster.ui_url)) as runner:
        yield runner


@pytest.fixture(params=["delta", "iceberg"])
def followed(
    request: pytest.FixtureRequest,
    database: Endpoint,
    ledger_url: str,
    lake_cluster: Cluster,
    logins: dict[str, Endpoint],
    runner: ConnectRunner,
) -> FollowedTable:
    """``public.t`` into a new table of each format."""
    into = lake_cluster.place(request.param, f"t_{uuid.uuid4().hex[:8]}")
    here = Composed(source=database, sink=database, ledger_url=ledger_url, remote=IN_PROCESS)
    return follow(here, lake_cluster, into, runner, logins)


def check_commits(followed: FollowedTable) -> None:
    """Fail where a window or a range was committed twice, by the notes of the table's own log."""
    place = followed.composed.into
    with closing(SqlSession(replace(NOWHERE, password=followed.cluster.url))) as session:
        table: Any = open_table(session.get(), place["format"], place["table"])
        table.state()
        notes = table._notes if place["format"] == "iceberg" else [each.note for each in table._commits]
    tokens = [note.token for note in notes if note is not None and note.kind is Kind.MARK]
    assert tokens
    assert len(tokens) == len(set(tokens))


@pytest.mark.statement("K2", "T8")
def test_a_table_that_changes_while_it_is_read_has_caught_up_in_the_end(followed: FollowedTable) -> None:
    """K2, T8: inserts, updates, deletes and keys that change, between the ranges and after them."""
    followed.source(TABLE, FILL.format(600), "ANALYZE t")
    planned = followed.plan()
    assert planned.verdict is Verdict.PLANNED
    with followed.ports() as ports:
        ports.hydrator().run()
        followed.source("UPDATE t SET v = 1 WHERE id <= 300", "DELETE FROM t WHERE id > 550")
        followed.source("UPDATE t SET id = id + 100000 WHERE id BETWEEN 400 AND 420")
        with pytest.raises(LedgerRefused, match="consistent from"):
            followed.finish()
        assert ports.planner().follow()
        ports.hydrator().run()
        assert not ports.planner().follow()
    assert followed.finish().phase is Phase.STEADY_STATE
    assert followed.differs() == (0, 0)
    followed.source(
        "INSERT INTO t VALUES (20000, 7, NULL, '')", "DELETE FROM t WHERE id = 1", "UPDATE t SET v = 9 WHERE id = 2"
    )
    assert followed.go().verdict is Verdict.PLANNED
    assert followed.differs() == (0, 0)
    check_commits(followed)
