"""How often planning asks the servers for each of many tables."""

import json
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.hooks import hydration_session
from airflow_provider_backpressure.operators import PlanSnapshotOperator
from airflow_provider_backpressure.operators import plan as planning
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from tests.support import postgres
from tests.support.world import context

pytestmark = pytest.mark.integration

MOST = 110
"""Waits for an answer that a table may take, of source, target and ledger together."""


@pytest.fixture
def plan(database: Endpoint, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[int]]:
    """Return what plans the tables of a pattern, one by one, and returns how often it waited for a server for each."""
    ledger = make_url(ledger_url)
    shop = _connection("postgres", database.host, database.port, database.user, database.password, database.database)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", shop)
    monkeypatch.setenv(
        "AIRFLOW_CONN_BACKPRESSURE_DEFAULT",
        _connection(
            "backpressure", ledger.host, ledger.port, ledger.username, str(ledger.password or ""), ledger.database
        ),
    )
    runner = MemoryRunner(source=MemorySource(keys=range(1)), sink=MemorySink())
    monkeypatch.setattr(hydration_session, "open_runner", lambda *args, **options: runner)
    monkeypatch.setattr(planning, "PLANNED_AT_ONCE", 1)
    counts: list[int] = []
    planners: list[int] = []
    wait, plan_table = psycopg.Connection.wait, PlanSnapshotOperator._plan_table

    def note(self: psycopg.Connection[Any], *args: Any, **options: Any) -> Any:
        if planners[-1:] == [threading.get_ident()]:
            counts[-1] += 1
        return wait(self, *args, **options)

    def plan_one(self: PlanSnapshotOperator, *args: Any) -> Any:
        counts.append(0)
        planners.append(threading.get_ident())
        return plan_table(self, *args)

    monkeypatch.setattr(psycopg.Connection, "wait", note)
    monkeypatch.setattr(PlanSnapshotOperator, "_plan_table", plan_one)

    def run(pattern: str) -> list[int]:
        counts.clear()
        planners.clear()
        task = PlanSnapshotOperator(
            task_id=f"plan_{len(pattern)}",
            source=PostgresSource(conn_id="shop_db", tables=pattern),
            sink=PostgresSink(conn_id="shop_db", table="raw.{table}"),
            spark_conn_id="spark_connect_default",
        )
        task.execute(context(run_id=pattern))
        return list(counts)

    return run


@pytest.mark.statement("L3")
def test_each_of_many_tables_takes_the_same_few_round_trips(
    database: Endpoint, plan: Callable[[str], list[int]]
) -> None:
    """What is asked once for all is asked by the first of them; no table asks about the others."""
    for number in range(30):
        postgres.run(database, f"CREATE TABLE t{number:02} AS SELECT 1::bigint AS id, 'x' AS note")
        postgres.run(database, f"ALTER TABLE t{number:02} ADD PRIMARY KEY (id)")
    counts = plan("public.t*")
    assert len(counts) == 30
    # The ledger's driver prepares a statement when it has seen it some times.
    later = counts[15:]
    assert max(later) <= MOST, counts
    # One of them looks up those that come next.
    assert max(later) <= min(later) + 4, f"it grows with the other tables: {counts}"


def _connection(kind: str, host: Any, port: Any, user: Any, password: str, name: Any) -> str:
    place = {"conn_type": kind, "host": host, "port": port, "login": user, "password": password, "schema": name}
    return json.dumps(place)
