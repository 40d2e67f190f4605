"""A lane that continues a plan: it takes a target only that has what the plans before committed."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.exceptions import LedgerRefused, SinkRefused
from airflow_provider_backpressure.hooks.hydration_session import Declaration, HydrationSession
from airflow_provider_backpressure.sinks import PostgresSink
from tests.support.composed import Composed, Ports
from tests.support.postgres import numbered_rows, run

pytestmark = [pytest.mark.integration, pytest.mark.statement("X1")]


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Composed:
    """300 rows in three ranges, and what comes later."""
    run(database, *numbered_rows(300))
    return replace(hydration, budget=Budget(credits=1, range_rows=100), reading={"increment_column": "id"})


def continue_plan(ports: Ports) -> None:
    """Do what the task of a lane does before its first range."""
    declaration = Declaration(
        source=ports.composed.declared(),
        sink=PostgresSink(conn_id="sink", table=ports.composed.target),
        spark_conn_id="spark",
        budget=ports.composed.budget,
        mode=Mode(ports.composed.mode),
        consistency=Consistency(ports.composed.consistency),
        owner="test",
    )
    session = HydrationSession(
        declaration=declaration,
        environment="default",
        ledger=ports.ledger,
        source=ports.source,
        sink=ports.sink,
        runner=ports.runner,
        endpoint=ports.composed.source,
    )
    session.take_target()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ("ALTER TABLE raw.t RENAME TO old; CREATE TABLE raw.t (LIKE raw.old)", SinkRefused, "created again"),
        ("DROP TABLE raw.t", SinkRefused, "dropped or created again"),
        ("DROP SCHEMA raw CASCADE", LedgerRefused, "does not know plan"),
    ],
)
def test_a_lane_does_not_continue_into_another_table(
    composed: Composed, database: Endpoint, change: str, error: type[Exception], words: str
) -> None:
    """X1: the rows of ranges before are not in it. A retry of the task does not plan, which would find that."""
    composed.plan()
    with composed.open() as ports:
        continue_plan(ports)
        run(database, *change.split(";"))
        with pytest.raises(error, match=words):
            continue_plan(ports)


def test_an_increment_does_not_create_a_target_again_that_is_gone(
    composed: Composed, database: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: with its plan table, so that no row says which table it was; it would hold the new rows only."""
    composed.plan()
    composed.run()
    composed.finish()
    run(database, "INSERT INTO t SELECT i, 'new' FROM generate_series(301, 310) i", "ANALYZE t")
    with monkeypatch.context() as killed:
        killed.setattr(Planner, "take_target", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            composed.plan()
    run(database, "DROP SCHEMA raw CASCADE")
    with composed.open() as ports, pytest.raises(LedgerRefused, match="does not know plan"):
        continue_plan(ports)
    assert run(database, "SELECT to_regclass('raw.t')::text") == [(None,)]
