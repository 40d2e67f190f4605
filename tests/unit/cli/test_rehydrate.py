"""``rehydrate`` checks lake and target, and lets a run of the DAG do the work."""

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.sdk import DAG

from airflow_provider_backpressure.cli import command as dags
from airflow_provider_backpressure.cli import maintenance as subject
from airflow_provider_backpressure.operators import PlanSnapshotOperator
from tests.support.world import MemoryTable, World


@dataclass(frozen=True, kw_only=True)
class MemoryLake(MemoryTable):
    """Declares an in-memory source as one that was landed."""

    lake: str = "lake"


class Called:
    """Stands for Airflow's own client: it keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def trigger_dag(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        return {"dag_run_id": "manual__1"}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Called:
    made = Called()
    monkeypatch.setattr(subject, "get_current_api_client", lambda: made)
    return made


def rehydrate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], world: World, **changes: Any
) -> SimpleNamespace:
    """Return exit code, rows and what was said instead."""
    world.install(monkeypatch)
    with DAG("dag") as dag:
        PlanSnapshotOperator(task_id="plan_snapshot", **{**world.flow, **changes})
    monkeypatch.setattr(dags, "get_bagged_dag", lambda bundles, dag_id: dag)
    args = get_parser().parse_args(["backpressure", "rehydrate", "dag", "--output", "json"])
    capsys.readouterr()
    code = 0
    try:
        args.func(args)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return SimpleNamespace(code=code, rows=json.loads(out) if out else [], err=err)


LAKE = MemoryLake(conn_id="shop_db", table="public.t")


def test_a_run_is_triggered_that_plans_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], client: Called
):
    """The command moves no row itself."""
    world = World()
    found = rehydrate(monkeypatch, capsys, world, source=LAKE)
    assert (found.code, found.err) == (0, "")
    assert found.rows == [{"lake": "memory://source", "target": "memory://sink", "rows": 100, "run": "manual__1"}]
    assert [(asked["dag_id"], asked["conf"]) for asked in client.asked] == [("dag", {"backpressure": "restart"})]
    assert world.sink.rows == world.runner.submitted == []


def test_nothing_is_triggered_where_it_could_not_go_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], client: Called
):
    """A source that is no lake is wrong use; rows that are in the way are named, unless the mode deals with them."""
    world = World()
    assert rehydrate(monkeypatch, capsys, world).code == 2
    world.sink.rows.append(1)
    found = rehydrate(monkeypatch, capsys, world, source=LAKE)
    assert (found.code, "memory://sink still holds rows" in found.err) == (1, True)
    assert client.asked == []
    assert rehydrate(monkeypatch, capsys, world, source=LAKE, mode="replace").code == 0
