"""How often each step of many tables asks the servers."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from airflow_provider_backpressure import base_operator
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.hooks import spark_and_yarn
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.operators import plan as planning
from airflow_provider_backpressure.operators import verify as verifying
from airflow_provider_backpressure.operators.several_tables_lane import TableLane
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from tests.support import postgres
from tests.support.local_runner import LocalRunner
from tests.support.world import context

pytestmark = pytest.mark.integration

MOST = {"plan": 36, "hydrate": 84, "verify": 40}
"""Statements and commands of transactions that a table may take in each step, at source, target and ledger together.

What is sent at once counts once. What a range itself does is not counted.
"""
PING = ";"
"""What a connection to the ledger that was idle for long is asked for: on a slow machine nearly each one was."""
TABLES = 30


@dataclass(kw_only=True)
class Trips:
    """Counts what a thread sends to servers while it works on a table."""

    counts: list[int] = field(default_factory=list)
    """Of each table, in the order in which work on it began."""
    texts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What was sent, by the method that was watched."""
    _worker: int | None = None
    _name: str = ""

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        """Count what this method sends, in its own thread: no two calls of it may be at work at once."""
        work = getattr(owner, name)

        def run(*args: Any, **values: Any) -> Any:
            self.counts.append(0)
            self._worker, self._name = threading.get_ident(), name
            try:
                return work(*args, **values)
            finally:
                self._worker = None

        monkeypatch.setattr(owner, name, run)

    def note(self, sent: Any) -> None:
        """Take note of a statement or command."""
        if threading.get_ident() == self._worker:
            text = sent.as_string(None) if isinstance(sent, sql.Composable) else sent
            text = text.decode() if isinstance(text, bytes) else text
            if text == PING:
                return
            self.counts[-1] += 1
            self.texts[self._name, " ".join(text.split())[:100]] += 1


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """Return what counts them; one table of a step is worked on at a time."""
    made, execute, command = Trips(), psycopg.Cursor.execute, psycopg.Connection._exec_command

    def run(self: psycopg.Cursor[Any], query: Any, *args: Any, **options: Any) -> Any:
        made.note(query)
        return execute(self, query, *args, **options)

    def begin_or_end(self: psycopg.Connection[Any], text: Any, *args: Any) -> Any:
        made.note(text)
        return command(self, text, *args)

    monkeypatch.setattr(psycopg.Cursor, "execute", run)
    monkeypatch.setattr(psycopg.Connection, "_exec_command", begin_or_end)
    monkeypatch.setattr(planning, "TABLES_PLANNED_AT_ONCE", 1)
    monkeypatch.setattr(verifying, "TABLES_VERIFIED_AT_ONCE", 1)
    monkeypatch.setattr(TableLane, "_count_tokens", lambda lane: 1)
    made.watch(monkeypatch, PlanSnapshotOperator, "_plan_table")
    made.watch(monkeypatch, TableLane, "_drain")
    made.watch(monkeypatch, VerifyHydrationOperator, "_verify_table")
    return made


@pytest.fixture
def steps(database: Endpoint, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], Any]]:
    """Return what plans, hydrates and verifies all tables, as one run of Airflow's does."""
    ledger = make_url(ledger_url)
    shop = _connection("postgres", database.host, database.port, database.user, database.password, database.database)
    kept = ("backpressure", ledger.host, ledger.port, ledger.username, str(ledger.password or ""), ledger.database)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", shop)
    monkeypatch.setenv("AIRFLOW_CONN_BACKPRESSURE_DEFAULT", _connection(*kept))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark_connect", "host": "spark", "port": 15002}))
    monkeypatch.setitem(spark_and_yarn.RUNNERS, "spark_connect", lambda request: LocalRunner(logins=request.endpoints))
    monkeypatch.setattr(base_operator, "is_running", lambda dag_id, run_id: False)
    declared: dict[str, Any] = {
        "source": PostgresSource(conn_id="shop_db", tables="public.t*"),
        "sink": PostgresSink(conn_id="shop_db", table="raw.{table}"),
        "spark_conn_id": "spark",
    }
    given = context(run_id="run")

    def plan() -> Any:
        return PlanSnapshotOperator(task_id="plan", **declared).execute(given)

    def hydrate() -> Any:
        tables = given["ti"].pushed["tables"]
        return HydrateOperator(task_id="hydrate", tables=tables, **declared).execute(given)

    def verify() -> Any:
        tables = given["ti"].pushed["tables"]
        return VerifyHydrationOperator(task_id="verify", tables=tables, **declared).execute(given)

    return {"plan": plan, "hydrate": hydrate, "verify": verify}


@pytest.mark.statement("L3")
def test_each_of_many_tables_takes_the_same_few_round_trips(
    database: Endpoint, trips: Trips, steps: dict[str, Callable[[], Any]]
) -> None:
    """What is asked once for all is asked by the first of them; no table asks about the others."""
    for number in range(TABLES):
        postgres.run(database, f"CREATE TABLE t{number:02} AS SELECT 1::bigint AS id, 'x' AS note")
        postgres.run(database, f"ALTER TABLE t{number:02} ADD PRIMARY KEY (id)")
    found: dict[str, list[int]] = {}
    for name, step in steps.items():
        trips.counts.clear()
        step()
        found[name] = [*trips.counts]
        assert len(trips.counts) == TABLES
    assert postgres.run(database, f"SELECT count(*) FROM raw.t{TABLES - 1:02}") == [(1,)]
    for name, counts in found.items():
        # The least: on a slow machine lanes look around while tables wait. One table looks up those that come next.
        early, late = (min(counts[part]) for part in (slice(5, 15), slice(15, None)))
        assert late <= MOST[name], (found, trips.texts.most_common(200))
        assert late <= early + 4, f"it grows with the other tables: {found}"


def _connection(kind: str, host: Any, port: Any, user: Any, password: str, name: Any) -> str:
    place = {"conn_type": kind, "host": host, "port": port, "login": user, "password": password, "schema": name}
    return json.dumps(place)
