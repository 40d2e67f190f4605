"""``reindex`` over a ledger in memory that was lost, and a sink that was restored."""

import json
from dataclasses import replace

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.sdk import DAG

from airflow_provider_backpressure.cli import command as dags
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.testing import MemoryLedger
from tests.support.world import World, context


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A hydration that is complete."""
    made = World()
    made.install(monkeypatch)
    with DAG("dag") as dag:
        PlanSnapshotOperator(task_id="plan_snapshot", **made.flow)
    monkeypatch.setattr(dags, "get_bagged_dag", lambda bundles, dag_id: dag)
    for operator in (PlanSnapshotOperator, HydrateOperator, VerifyHydrationOperator):
        operator(task_id="task", **made.flow).execute(context())
    return made


def reindex(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str], str]:
    """Return the exit code, the row that is shown, and what was said instead."""
    args = get_parser().parse_args(["backpressure", "reindex", "dag", *words, "--output", "json"])
    capsys.readouterr()
    code = 0
    try:
        args.func(args)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, json.loads(out)[0] if out else {}, err


def test_a_lost_ledger_is_rebuilt_and_the_run_goes_on(world: World, capsys: pytest.CaptureFixture[str]):
    """The command says what it found; a second time there is nothing to do; the DAG's next run verifies and ends it."""
    assert reindex(capsys)[1]["found"] == "ledger and target agree"
    world.ledger = MemoryLedger()
    code, row, _ = reindex(capsys)
    assert (code, row["phase"], row["ranges"]) == (0, "rehydration", "10/10")
    assert "10 of 10 ranges are committed" in row["found"]
    assert reindex(capsys)[1]["found"] == "ledger and target agree"
    PlanSnapshotOperator(task_id="plan", **world.flow).execute(context())
    VerifyHydrationOperator(task_id="verify", **world.flow).execute(context())
    assert world.hydration.phase == "steady_state"
    assert world.runner.submitted[-1].seq == 9
    assert len(world.runner.submitted) == 10


def test_a_restored_target_needs_a_word(world: World, capsys: pytest.CaptureFixture[str]):
    """Refused with a sentence and exit code 1, accepted on demand; the act is kept with its name and reason."""
    sink = world.sink
    sink.rows[:] = [key for key in sink.rows if key < 50]
    sink._markers = {key: marker for key, marker in sink._markers.items() if int(key[1][0]) < 5}
    code, _, err = reindex(capsys)
    assert code == 1
    assert "memory://sink has 5 of the 10 ranges" in err
    code, row, _ = reindex(capsys, "--accept")
    assert (code, row["ranges"], row["phase"]) == (0, "5/10", "rehydration")
    (act,) = world.ledger.controls()
    assert (act.action, act.values["plan_id"]) == ("reindex", world.plan.plan_id)
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    assert sorted(sink.rows) == list(range(100))


def test_a_run_stops_where_the_target_is_older(world: World):
    """As terminal: retrying would not make the target younger."""
    from airflow.sdk.exceptions import AirflowFailException

    world.sink.plan = replace(world.plan, plan_id="0" * 32)
    with pytest.raises(AirflowFailException, match="restored from an older backup"):
        PlanSnapshotOperator(task_id="plan", **world.flow).execute(context())


def test_a_mapped_plan_is_known_to_its_run_only(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Where the ledger keeps no declaration of it either, the command says so."""
    with DAG("dag") as dag:
        PlanSnapshotOperator.partial(task_id="mapped", spark_conn_id="spark").expand_kwargs([{"source": 1, "sink": 2}])
    monkeypatch.setattr(dags, "get_bagged_dag", lambda bundles, dag_id: dag)
    code, _, err = reindex(capsys)
    assert (code, "The names in mapped are made by a run" in err) == (2, True)
