"""The trigger: it fires when there is something to do, waits out what passes, and never blocks the event loop."""

import asyncio
import threading
import time
from dataclasses import asdict, replace

import pytest

from airflow_provider_backpressure.core.admission import health_measurements as looking
from airflow_provider_backpressure.core.config import ActiveSessions, Budget, Consistency
from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit
from airflow_provider_backpressure.exceptions import (
    LedgerRefused,
    LedgerUnavailable,
    LogLost,
    SinkUnavailable,
    SnapshotLost,
    SourceRefused,
    SourceUnavailable,
)
from airflow_provider_backpressure.hooks import recorded_declaration as recorded
from airflow_provider_backpressure.hooks.recorded_declaration import text
from airflow_provider_backpressure.operators import PlanSnapshotOperator, SubmitRangeOperator
from airflow_provider_backpressure.triggers import AdmissionsTrigger, AdmissionTrigger, admission
from airflow_provider_backpressure.triggers import shared_ledger as ledger
from tests.support.world import TABLES, MemoryTable, World, context
from tests.unit.triggers.test_between_runs import Logged


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(budget=Budget(credits=1, range_rows=10))
    made.install(monkeypatch)
    monkeypatch.setattr(ledger, "get_shared_ledger", lambda address: made.ledger)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


@pytest.fixture
def logged(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A hydration whose source keeps its log."""
    monkeypatch.setattr(recorded, "classes", lambda: {"MemoryTable": MemoryTable})
    world.source = TABLES["public.t"] = Logged(keys=list(range(20)))
    plan = replace(world.plan, consistency=Consistency.CATCH_UP, position="100 0/64")
    world.ledger.take_over(world.hydration.id, plan)
    return world


def trigger(world: World, **values) -> AdmissionTrigger:
    return AdmissionTrigger(
        **{
            "hydration_id": world.hydration.id,
            "backpressure_conn_id": "backpressure_default",
            "budget": {**asdict(world.budget), "law": world.budget.law.value},
            "watch": "gate",
            "poll_interval": 0.01,
            "first_look": 0.0,
            **values,
        }
    )


async def first(made: AdmissionTrigger) -> dict:
    async for event in made.run():
        assert event.payload.pop("waited") >= made.wait.first_look
        return event.payload
    raise AssertionError("the trigger ended without an event")


def fires(made: AdmissionTrigger, *, act=None, looks=None) -> dict:
    """Return the event; ``act`` is called once the trigger has looked for a while in vain, and ``looks`` has a few."""

    async def watched() -> dict:
        waiting = asyncio.ensure_future(first(made))
        if act is not None:
            await asyncio.sleep(0.1)
            async with asyncio.timeout(10):
                while looks is not None and len(looks) < 2:
                    await asyncio.sleep(0.01)
            assert not waiting.done(), "the gate was closed"
            act()
        return await asyncio.wait_for(waiting, timeout=10)

    return asyncio.run(watched())


def test_it_is_rebuilt_from_what_it_serialises(world):
    made = trigger(world, plan_id="p", seq=3, lane="lane", memory_url="http://spark:4040")
    path, kwargs = made.serialize()
    assert path == f"{AdmissionTrigger.__module__}.{AdmissionTrigger.__qualname__}"
    assert AdmissionTrigger(**kwargs).serialize() == (path, kwargs)


def test_an_unknown_argument_is_an_error(world):
    with pytest.raises(TypeError, match="renamed"):
        trigger(world, renamed=1)


@pytest.mark.parametrize("error", [SourceRefused("No more."), LogLost("It is gone."), SnapshotLost("It was dropped.")])
def test_at_a_closed_gate_the_policy_acts_at_the_limit_of_the_source_s_log(logged, monkeypatch, error):
    """No lane has a job, so none looks: a paused hydration's log would grow until the source's disk is full."""
    monkeypatch.setattr(admission, "GUARD_SECONDS", 0.01)
    logged.ledger.pause(logged.hydration.id, who="ada")
    waiting = trigger(logged, source=text(logged.flow["source"]))

    def grow() -> None:
        logged.source.kept.trouble = [error]

    assert fires(waiting, act=grow, looks=logged.source.kept.guarded) == {"why": "refused", "sentence": str(error)}
    assert set(logged.source.kept.guarded) == {False}, "no log is replayed yet"


def test_a_source_that_does_not_answer_leaves_its_log_to_the_next_look(logged, monkeypatch):
    monkeypatch.setattr(admission, "GUARD_SECONDS", 0.01)
    logged.ledger.pause(logged.hydration.id, who="ada")
    logged.source.kept.trouble = [SourceUnavailable("It is away.")]
    waiting = trigger(logged, source=text(logged.flow["source"]))
    looks = logged.source.kept.guarded
    event = fires(waiting, act=lambda: logged.ledger.resume(logged.hydration.id, who="ada"), looks=looks)
    assert event["why"] == "open"
    assert len(looks) > 1


def test_it_fires_when_a_person_resumes(world):
    world.ledger.pause(world.hydration.id, who="ada")
    event = fires(trigger(world), act=lambda: world.ledger.resume(world.hydration.id, who="ada"))
    assert event == {"why": "open", "sentence": "the gate is open"}


def test_it_fires_to_let_the_task_tell_of_a_gate_that_stays_closed(world):
    world.ledger.pause(world.hydration.id, who="ada")
    assert fires(trigger(world, remind_after=0.1))["why"] == "closed"


def test_it_fires_when_the_sink_has_committed(world):
    permit = world.ledger.admit(world.hydration.id, lane="other", session_id="s", lease_seconds=60)
    give_back = permit.range
    fires(
        trigger(world),
        act=lambda: world.ledger.release(give_back.plan_id, give_back.seq, attempt=1, error="ended"),
    )


def test_it_fires_when_nothing_is_left(world):
    """Ranges in flight with others are no reason to wait."""
    for seq in range(9):
        SubmitRangeOperator(task_id="submit", seq=seq, **world.flow).execute(context())
    world.ledger.admit(world.hydration.id, lane="other", session_id="s", lease_seconds=60)
    assert fires(trigger(world))["why"] == "settled"


def test_it_fires_for_a_silent_lane(world):
    """The resumed task settles what was left; the trigger has neither Spark nor sink."""
    world.ledger.admit(world.hydration.id, lane="dead", session_id="s", lease_seconds=-1)
    assert fires(trigger(world))["why"] == "abandoned"


def test_it_reserves_the_range_it_stands_for(world):
    """Of many waiters one is let through per credit."""
    waits = [
        trigger(world, watch="commit", plan_id=world.plan.plan_id, seq=seq, lane=f"range-{seq}") for seq in (3, 4, 5)
    ]

    async def race() -> int:
        tasks = [asyncio.ensure_future(first(one)) for one in waits]
        done, rest = await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        more, pending = await asyncio.wait(rest, timeout=0.5)
        for task in pending:
            task.cancel()
        return len(done) + len(more)

    assert asyncio.run(race()) == 1
    assert world.ledger.gate(world.hydration.id).in_flight == 1


def test_it_fires_when_its_range_was_committed_by_another(world):
    permit = world.ledger.admit(world.hydration.id, lane="other", session_id="s", lease_seconds=60, seq=3)
    made = trigger(world, watch="commit", plan_id=world.plan.plan_id, seq=3, lane="mine")

    def commit() -> None:
        world.ledger.commit(
            world.plan.plan_id,
            3,
            worker="other",
            attempt=permit.range.attempt,
            rows=10,
            bytes=80,
            checksum="memory:0",
            limit=FixedLimit(),
            pressure=0.0,
        )

    assert fires(made, act=commit)["why"] == "settled"


def test_without_an_address_of_spark_it_watches_what_the_ledger_tells(world):
    """Memory is then left to the resumed task; with an address that does not answer, the gate counts as closed."""
    assert fires(trigger(world))["why"] == "open"
    closed = trigger(world, memory_url="http://127.0.0.1:9")

    async def waits() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first(closed), timeout=0.3)

    asyncio.run(waits())


def test_it_is_heard_of_tables_behind_the_one_that_it_waits_for(world, monkeypatch):
    """They have no trigger of their own."""
    monkeypatch.setattr(admission, "HEARTBEAT_SECONDS", 0.02)
    made = trigger(world)
    world.ledger.pause(world.hydration.id, who="ada")
    behind = world.ledger.register(
        environment="default",
        source_identity="memory://behind",
        sink_identity="memory://behind",
        owner="dag",
        cluster="spark",
        credits=1,
    )
    assert behind.heard_at is None
    made.wait = replace(made.wait, also=[behind.id])

    def heard() -> bool:
        return world.ledger.hydration(behind.id).heard_at is not None

    async def watch() -> None:
        look = asyncio.create_task(first(made))
        async with asyncio.timeout(10):
            while not heard():
                await asyncio.sleep(0.01)
        look.cancel()

    asyncio.run(watch())


def test_errors_that_pass_are_waited_out_and_others_told(world, monkeypatch):
    gate, calls = world.ledger.gate, []

    def flaky(hydration_id: str):
        calls.append(hydration_id)
        if len(calls) < 3:
            raise LedgerUnavailable("the ledger does not answer")
        return gate(hydration_id)

    monkeypatch.setattr(world.ledger, "gate", flaky)
    assert fires(trigger(world))["why"] == "open"

    def refused(hydration_id: str):
        raise LedgerRefused("tables missing: run `airflow db migrate`")

    monkeypatch.setattr(world.ledger, "gate", refused)
    assert fires(trigger(world)) == {"why": "refused", "sentence": "tables missing: run `airflow db migrate`"}


def test_a_missing_connection_is_told(world, monkeypatch):
    event = fires(trigger(world, backpressure_conn_id="nowhere"))
    assert event["why"] == "refused"
    assert "There is no Airflow connection 'nowhere'" in event["sentence"]


def test_a_slow_ledger_does_not_block_the_event_loop(world, monkeypatch):
    gate, loop_thread = world.ledger.gate, threading.get_ident()
    threads = []

    def slow(hydration_id: str):
        threads.append(threading.get_ident())
        time.sleep(0.3)
        return gate(hydration_id)

    monkeypatch.setattr(world.ledger, "gate", slow)

    async def ticks() -> int:
        waiting = asyncio.ensure_future(first(trigger(world)))
        count = 0
        while not waiting.done():
            await asyncio.sleep(0.01)
            count += 1
        return count

    assert asyncio.run(ticks()) > 10
    assert loop_thread not in threads


def watching(world: World, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Let the budget watch the sink, which is opened as the plan has it; return what a trigger is told."""
    opened = MemoryTable(conn_id="warehouse", table="raw.t")
    monkeypatch.setitem(recorded.SOURCES, "memory", lambda read, identity: replace(opened, table="public.t"))
    monkeypatch.setitem(recorded.SINKS, "memory", lambda write, identity: opened)
    world.budget = Budget(credits=1, signals=(ActiveSessions(on="sink", most=80),), signal_interval=0.5)
    return {"budget": world.budget.to_json()}


@pytest.mark.statement("T7")
@pytest.mark.parametrize("watch", ["gate", "commit"])
def test_it_fires_when_the_sink_s_health_is_better(world, monkeypatch, watch):
    """T7: a deferred task is held back by the declared signals too; what was opened for it is closed in the end."""
    told = watching(world, monkeypatch)
    world.sink.figures["sink active sessions"] = 80.0
    made = trigger(world, watch=watch, **told)
    event = fires(made, act=lambda: world.sink.figures.update({"sink active sessions": 8.0}))
    assert event == {"why": "open", "sentence": "the gate is open"}
    assert not looking._shared


def test_a_cancelled_trigger_looks_no_more(world, monkeypatch):
    told = watching(world, monkeypatch)
    world.sink.figures["sink active sessions"] = SinkUnavailable("away")

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first(trigger(world, **told)), timeout=0.5)

    asyncio.run(cancelled())
    assert not looking._shared


def test_a_signal_that_can_no_longer_be_opened_is_told(world, monkeypatch):
    """The resumed task meets the error itself."""
    told = watching(world, monkeypatch)
    monkeypatch.delenv("AIRFLOW_CONN_WAREHOUSE")
    event = fires(trigger(world, **told))
    assert event["why"] == "refused"
    assert "There is no Airflow connection 'warehouse'" in event["sentence"]


def test_the_first_of_several_gates_ends_the_wait(world: World):
    """A task of several tables waits at many gates; the event says at which it has waited, for its statistics."""
    mine, plan, wait = world.hydration.id, world.plan, trigger(world).serialize()[1]
    other = world.ledger.register(
        environment="default", source_identity="a", sink_identity="b", owner="dag", cluster="spark", credits=1
    )
    ranges = world.source.ranges(world.source.snapshot(), rows=10, bytes=10**9)
    world.ledger.save_plan(other.id, replace(plan, plan_id="other"), ranges)
    world.ledger.pause(other.id, who="ada")
    waits = [{**wait, "hydration_id": id_} for id_ in (other.id, mine)]

    async def first_event() -> dict:
        async for event in AdmissionsTrigger(waits=waits).run():
            return event.payload
        raise AssertionError("the trigger ended without an event")

    found = asyncio.run(first_event())
    assert found.pop("waited") >= 0
    assert found == {
        "why": "open",
        "sentence": "the gate is open",
        "hydration_ids": [other.id, mine],
    }
    path, arguments = AdmissionsTrigger(waits=waits).serialize()
    assert (path.rpartition(".")[2], arguments) == ("AdmissionsTrigger", {"waits": waits})
