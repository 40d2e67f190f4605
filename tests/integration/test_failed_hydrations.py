"""A hydration that fails on real servers is shown as failed by the page's API and by ``status``."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.api_fastapi.core_api.security import get_user
from airflow.cli.cli_parser import get_parser
from airflow.sdk.exceptions import AirflowFailException
from fastapi.testclient import TestClient

from airflow_provider_backpressure import base_operator as task
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import RangeFailed
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator
from airflow_provider_backpressure.plugins import permissions as access
from airflow_provider_backpressure.plugins.app import make_app
from airflow_provider_backpressure.plugins.permissions import OpenedLedger
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from dev.services import Server
from tests.support.postgres import run
from tests.support.world import context

pytestmark = pytest.mark.integration


class Everybody:
    """An auth manager by which everybody may read."""

    def is_authorized_dag(self, **asked: Any) -> bool:
        return True

    def filter_authorized_dag_ids(self, *, dag_ids: set[str], **asked: Any) -> set[str]:
        return dag_ids


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch, database: Endpoint, ledger_url: str, connect: Server) -> None:
    """Airflow's connections to the real servers; no other run is under way."""
    fields = {"host": database.host, "port": database.port, "login": database.user, "password": database.password}
    place = sa.make_url(ledger_url)
    made = {
        "shop": {"conn_type": "postgres", **fields, "schema": database.database},
        "warehouse": {"conn_type": "postgres", **fields, "schema": database.database},
        "spark": {
            "conn_type": "spark_connect",
            "host": connect.host,
            "port": connect.port,
            "extra": {"ui_url": connect.ui_url},
        },
        "backpressure_default": {
            "conn_type": "backpressure",
            **fields,
            "schema": place.database,
            "extra": {"push": "none"},
        },
    }
    for name, values in made.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(values))
    monkeypatch.setattr(task, "is_running", lambda dag_id, run_id: False)
    monkeypatch.setattr(access, "get_auth_manager", Everybody)


@pytest.fixture
def shown(connections: None, ledger_url: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], Any]]:
    """Return what the page's API, ``status --output json`` and the picture of ``status`` say of the only hydration."""
    with closing(SqlLedger(ledger_url)) as ledger:
        app = make_app(OpenedLedger(lambda: (ledger, None)))
        app.dependency_overrides[get_user] = lambda: None
        with TestClient(app) as client:

            def ask() -> tuple[Any, Any, str]:
                (line,) = client.get("/api/hydrations").json()["hydrations"]
                texts = []
                for output in ("json", "table"):
                    capsys.readouterr()
                    args = get_parser().parse_args(["backpressure", "status", "--output", output])
                    args.func(args)
                    texts.append(capsys.readouterr().out)
                return line, json.loads(texts[0])[0], " ".join(texts[1].split())

            yield ask


def flow(table: str) -> dict[str, Any]:
    return {
        "source": PostgresSource(conn_id="shop", table=table),
        "sink": PostgresSink(conn_id="warehouse", table="raw.t"),
        "spark_conn_id": "spark",
        "budget": Budget(credits=2, range_rows=1000),
    }


def test_a_hydration_whose_planning_fails_is_failed(shown: Callable[[], Any]) -> None:
    """Of an unknown table nothing can be planned: it is not "not begun"."""
    with pytest.raises(AirflowFailException) as error:
        PlanSnapshotOperator(task_id="plan_snapshot", **flow("public.nowhere")).execute(context())
    line, facts, picture = shown()
    assert (line["state"], line["begun"], line["failure"]) == ("failed", False, str(error.value))
    assert "nowhere" in line["failure"]
    assert (facts["state"], facts["failure"], facts["failed"]) == ("failed", str(error.value), None)
    assert "failed" in picture
    assert "nowhere" in picture


def test_a_hydration_with_a_poison_row_is_failed(shown: Callable[[], Any], database: Endpoint) -> None:
    """Its range uses up its attempts, and the lane with it."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, code text)",
        "INSERT INTO t SELECT i, CASE i WHEN 2500 THEN 'poison' ELSE 'fine' END FROM generate_series(1, 3000) i",
        "ANALYZE t",
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (id bigint PRIMARY KEY, code text CHECK (code <> 'poison'))",
    )
    PlanSnapshotOperator(task_id="plan_snapshot", **flow("public.t")).execute(context())
    line, facts, _ = shown()
    assert (line["state"], facts["state"], line["failure"]) == ("running", "running", None)
    with pytest.raises((AirflowFailException, RangeFailed)):
        HydrateOperator(task_id="hydrate_ranges", **flow("public.t")).execute(context())
    line, facts, picture = shown()
    assert (line["state"], line["failed"], line["in_flight"], line["lag"]) == ("failed", 1, 0, None)
    assert (facts["state"], facts["failed"], facts["in_flight"], facts["lag"]) == ("failed", 1, 0, None)
    assert line["failure"] == facts["failure"]
    assert line["failure"]
    assert "failed" in picture
    assert line["memory_used"] != 0
