"""The file of a DAG is deleted after its hydrations: the commands work by what the ledger keeps of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_backpressure import base_operator as task
from airflow_provider_backpressure.airflow_compat import AirflowException
from airflow_provider_backpressure.cli import command as dags
from airflow_provider_backpressure.cli import maintenance
from airflow_provider_backpressure.core.endpoints import Endpoint
from dev.services import Server
from tests.support.postgres import run
from tests.support.world import context

pytestmark = pytest.mark.integration

FILE = """
from airflow.sdk import DAG
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import ParquetSink, PostgresSink
from airflow_provider_backpressure.sources import LandedSource, PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

LAKE = ParquetSink(path={path!r})
SHARED = {{"spark_conn_id": "spark", "budget": Budget(credits=2, range_rows=1000), "consistency": "static"}}

with DAG("gone", schedule=None):
    source = PostgresSource(conn_id="shop", table="public.t", where="id > 500", columns=("id", "code"))
    first = hydrate(source, LAKE, group_id="land", **SHARED)
    back = PostgresSink(conn_id="warehouse", table="raw.t")
    first >> hydrate(LandedSource(lake=LAKE), back, mode="replace", group_id="back", **SHARED)
"""


class NoDag:
    """Airflow's client and its DAGs, after the DAG was deleted there too."""

    def __call__(self, *asked: Any) -> Any:
        raise AirflowException("Dag with dag_id: 'gone' not found")

    def trigger_dag(self, **asked: Any) -> Any:
        return self()


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch, database: Endpoint, ledger_url: str, connect: Server) -> None:
    """Airflow's connections to the real servers; no other run is under way."""
    fields = {"host": database.host, "port": database.port, "login": database.user, "password": database.password}
    ledger = {"schema": sa.make_url(ledger_url).database, "extra": {"push": "none"}}
    made = {
        "shop": {"conn_type": "postgres", **fields, "schema": database.database},
        "warehouse": {"conn_type": "postgres", **fields, "schema": database.database},
        "spark": {"conn_type": "spark_connect", "host": connect.host, "port": connect.port},
        "backpressure_default": {"conn_type": "backpressure", **fields, **ledger},
    }
    for name, values in made.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(values))
    monkeypatch.setattr(task, "is_running", lambda dag_id, run_id: False)


@pytest.fixture
def airflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any, str]]:
    """Run ``airflow backpressure …``; return the exit code, the rows and standard error."""

    def command(*words: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        args = get_parser().parse_args(["backpressure", *words, "--output", "json"])
        code = 0
        try:
            args.func(args)
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return command


@pytest.mark.usefixtures("connections")
def test_commands_need_no_dag(
    monkeypatch: pytest.MonkeyPatch,
    database: Endpoint,
    ledger_url: str,
    tmp_path: Path,
    airflow: Callable[..., tuple[int, Any, str]],
) -> None:
    """``verify``, ``plan`` and ``reindex`` open a part of a table and a lake; ``rehydrate`` says what it needs."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, code text, secret text)",
        "INSERT INTO t SELECT i, md5(i::text), 'x' FROM generate_series(1, 3000) i",
        "ANALYZE t",
        "CREATE SCHEMA raw",
    )
    file = tmp_path / "gone.py"
    file.write_text(FILE.format(path=str(tmp_path / "lake")))
    (dag,) = DagBag(str(file)).dags.values()
    for group in ("land", "back"):
        for name in ("plan_snapshot", "hydrate_ranges", "verify_hydration"):
            dag.get_task(f"{group}.{name}").execute(context(dag_id="gone"))
    file.unlink()
    monkeypatch.setattr(dags, "get_bagged_dag", NoDag())
    monkeypatch.setattr(maintenance, "get_current_api_client", NoDag)

    code, rows, _ = airflow("verify", "raw.t")
    assert (code, rows[0]["rows"], rows[0]["equal"]) == (0, 2500, True)
    code, rows, err = airflow("plan", "gone", "--task-group", "land")
    assert (code, [row["rows"] for row in rows or []]) == (0, [2500]), err
    code, rows, err = airflow("reindex", "gone")
    assert (code, {row["found"] for row in rows or []}) == (0, {maintenance.AGREE}), err
    assert len(rows) == 2

    _forget_last_range(ledger_url)
    code, rows, err = airflow("reindex", "gone", "--task-group", "back")
    assert code == 0, err
    assert "the ledger was rebuilt from the target" in rows[0]["found"]

    code, _, err = airflow("rehydrate", "gone", "--task-group", "back")
    assert (code, "put the file of the DAG 'gone' back" in err) == (2, True)
    code, _, err = airflow("rehydrate", "gone", "--task-group", "land")
    assert (code, "is not read from a lake" in err) == (2, True)
    assert (airflow("reindex", "gone", "--task-group", "other")[0]) == 2


def _forget_last_range(ledger_url: str) -> None:
    """Set the ledger back to a time before the last range was committed."""
    engine = sa.create_engine(ledger_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        plan = connection.scalar(
            sa.text("SELECT plan_id FROM backpressure_hydration WHERE sink_identity LIKE '%/raw.t'")
        )
        connection.execute(
            sa.text(
                "UPDATE backpressure_range SET state = 'planned', attempt = 0, committed_rows = NULL,"
                " committed_bytes = NULL, checksum = NULL, committed_at = NULL WHERE plan_id = :plan AND seq ="
                " (SELECT max(seq) FROM backpressure_range WHERE plan_id = :plan)"
            ),
            {"plan": plan},
        )
    engine.dispose()
