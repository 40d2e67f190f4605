"""The trigger that waits for another run: it fires when that run lets go, ends or vanishes, and waits out errors."""

import asyncio
from importlib import import_module

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_backpressure.exceptions import LedgerUnavailable
from airflow_provider_backpressure.operators import PlanSnapshotOperator
from airflow_provider_backpressure.triggers import TurnTrigger, other_run
from airflow_provider_backpressure.triggers import shared_ledger as ledger
from tests.support.world import World, context


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    made.running.add("run")
    monkeypatch.setattr(ledger, "get_shared_ledger", lambda address: made.ledger)
    monkeypatch.setattr(other_run, "is_running", lambda dag_id, run_id: dag_id == "dag" and run_id in made.running)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


def trigger(world: World, **values) -> TurnTrigger:
    return TurnTrigger(
        **{
            "hydration_id": world.hydration.id,
            "backpressure_conn_id": "backpressure_default",
            "dag_id": "dag",
            "run_id": "run",
            "look_interval": 0.01,
            "first_look": 0.0,
            **values,
        }
    )


def fires(made: TurnTrigger, *, act=None) -> dict:
    """Return the event; ``act`` is called once the trigger has looked for a while in vain."""

    async def first() -> dict:
        async for event in made.run():
            return event.payload
        raise AssertionError("the trigger ended without an event")

    async def watched() -> dict:
        waiting = asyncio.ensure_future(first())
        if act is not None:
            await asyncio.sleep(0.1)
            assert not waiting.done(), "the other run has the hydration"
            act()
        return await asyncio.wait_for(waiting, timeout=10)

    return asyncio.run(watched())


def test_it_is_rebuilt_from_what_it_serialises(world):
    path, kwargs = trigger(world).serialize()
    assert path == "airflow_provider_backpressure.triggers.turn.TurnTrigger", "as stored rows have it"
    assert getattr(import_module(path.rpartition(".")[0]), TurnTrigger.__name__) is TurnTrigger
    assert TurnTrigger(**kwargs).serialize() == (path, kwargs)


def test_it_fires_when_the_run_lets_go(world):
    event = fires(trigger(world), act=lambda: world.ledger.let_go(world.hydration.id, run="run"))
    assert event == {"why": "turn", "sentence": "run run has done with the hydration"}


def test_it_fires_when_the_run_has_ended_or_was_deleted(world):
    event = fires(trigger(world), act=lambda: world.running.clear())
    assert event == {"why": "turn", "sentence": "run run does not run any more"}


def test_it_waits_out_what_passes(world, monkeypatch):
    """Neither a ledger nor an Airflow that does not answer for a moment ends the wait."""
    real, errors = (
        world.ledger.hydration,
        [
            LedgerUnavailable("the ledger does not answer"),
            AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)),
        ],
    )

    def flaky(hydration_id: str):
        if errors:
            raise errors.pop()
        return real(hydration_id)

    monkeypatch.setattr(world.ledger, "hydration", flaky)
    fires(trigger(world), act=lambda: world.running.clear())
    assert errors == []


def test_an_error_that_waiting_does_not_cure_is_told(world):
    event = fires(trigger(world, hydration_id="0" * 32))
    assert event["why"] == "refused"
    assert "no hydration 0000" in event["sentence"]
