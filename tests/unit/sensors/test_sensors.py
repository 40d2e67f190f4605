"""The sensors: the same readings give the same decision and reasons as in a lane, and a credit is reserved once."""

import itertools
import json
from dataclasses import replace

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_backpressure.core.admission import health_measurements as looking
from airflow_provider_backpressure.core.admission.gate_watcher import SIGNALS, Watch
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import ActiveSessions, Budget, Query
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.hydration_record import GateState, Permit, Phase, Refusal
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import SinkRefused, SourceUnavailable
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, SubmitRangeOperator
from airflow_provider_backpressure.sensors import ExecutorMemorySensor, HydrationQueueSensor, SinkCommitSensor
from tests.support.world import World, context

GIB = 2**30
STATE = GateState(
    phase=Phase.HYDRATION,
    credits=3,
    in_flight=0,
    waiting=1,
    reserved_bytes=0,
    oldest_seconds=None,
    commit_seconds=None,
    range_memory_bytes=None,
    paused_by=None,
    paused_why=None,
    memory_closed=False,
)
STATES = (
    STATE,
    replace(STATE, in_flight=3, oldest_seconds=1.0),
    replace(STATE, in_flight=1, oldest_seconds=75.0),
    replace(STATE, commit_seconds=61.0),
    replace(STATE, in_flight=1, oldest_seconds=1.0, commit_seconds=61.0),
    replace(STATE, paused_by="ada", paused_why="release night"),
    replace(STATE, in_flight=2, oldest_seconds=1.0, reserved_bytes=GIB // 2, range_memory_bytes=GIB // 2),
    replace(STATE, memory_closed=True),
)
READINGS = (
    None,
    MemoryReading(used_bytes=0, limit_bytes=GIB, age_seconds=0.0),
    MemoryReading(used_bytes=int(0.7 * GIB), limit_bytes=GIB, age_seconds=1.0),
    MemoryReading(used_bytes=int(0.9 * GIB), limit_bytes=GIB, age_seconds=1.0, executor="7"),
    MemoryReading(used_bytes=0, limit_bytes=GIB, age_seconds=16.0),
)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


def commit_sensor(world: World, seq: int, **values):
    return SinkCommitSensor(task_id="sink_commit", seq=seq, **{**world.flow, **values})


def memory_sensor(world: World, **values):
    return ExecutorMemorySensor(task_id="executor_memory", **{**world.flow, **values})


def looked(sensor) -> tuple[bool, tuple]:
    """Run a sensor once; return whether it let through, and its signals."""
    try:
        sensor.execute(context())
    except TaskDeferred:
        return False, sensor._watcher.last.signals
    return True, sensor._watcher.last.signals


@pytest.mark.statement("T2", "T6")
@pytest.mark.parametrize(("state", "reading"), list(itertools.product(STATES, READINGS)))
def test_sensors_and_lane_decide_alike(world, monkeypatch, state, reading):
    """T2, T6: by the same readings a lane gets a permit if and only if both sensors let through; reasons are equal."""
    monkeypatch.setattr(world.ledger, "gate", lambda hydration_id: state)
    # What may be admitted under the row lock is another matter; here only the decision is compared.
    permit = Permit(range=world.ledger.ranges(world.hydration.plan.plan_id, limit=1)[0])
    monkeypatch.setattr(world.ledger, "admit", lambda *args, **values: permit)
    world.runner.reading = reading

    answer = Limiter(
        ledger=world.ledger, hydration_id=world.hydration.id, budget=world.budget, memory=world.runner.memory
    ).acquire(lane="lane", session_id="session")
    commit, commit_signals = looked(commit_sensor(world, 0))
    memory, memory_signals = looked(memory_sensor(world))

    assert (commit and memory) == (answer is permit)
    if isinstance(answer, Refusal):
        assert {*commit_signals, *memory_signals} == set(answer.decision.signals)
        assert {signal.name for signal in commit_signals} == SIGNALS[Watch.COMMIT]
        assert {signal.name for signal in memory_signals} == SIGNALS[Watch.MEMORY]


def test_the_sensor_reserves_and_the_submission_takes_it_up(world):
    """Three credits: the fourth sensor waits although nothing was submitted; a commit lets it through."""
    for seq in (0, 1, 2):
        assert looked(commit_sensor(world, seq))[0]
    assert not looked(commit_sensor(world, 3))[0]
    assert world.runner.submitted == []
    assert world.ledger.gate(world.hydration.id).in_flight == 3

    submit = SubmitRangeOperator(task_id="submit_range", seq=1, **world.flow)
    assert submit.execute(context())["attempt"] == 1, "the reservation became the attempt"
    assert looked(commit_sensor(world, 3))[0]


@pytest.mark.statement("T7")
def test_the_sensor_of_commits_watches_the_declared_signals(world):
    """T7: as a lane does; the sensor of memory does not."""
    signals = (ActiveSessions(on="sink", most=80), Query(on="source", sql="SELECT 1", most=5))
    watched = {"budget": Budget(credits=3, range_rows=10, signals=signals, signal_interval=0.5)}
    world.sink.figures["sink active sessions"] = 90.0
    let_through, looked_at = looked(commit_sensor(world, 0, **watched))
    assert not let_through
    assert [signal.sentence for signal in looked_at if signal.closed] == ["sink active sessions 90 >= 80"]
    assert "query on source 0 < 5" in [signal.sentence for signal in looked_at]
    assert looked(memory_sensor(world, **watched))[0]
    world.sink.figures["sink active sessions"] = 79.0
    assert looked(commit_sensor(world, 0, **watched))[0]
    assert not looking._shared


@pytest.mark.statement("T7")
def test_a_lane_waits_for_the_declared_signals_and_tells_the_trigger(world):
    """T7: nothing is submitted; what the trigger carries is what the budget declares."""
    world.budget = Budget(range_rows=10, signals=(ActiveSessions(on="source", most=80),), signal_interval=0.5)
    world.source.figures["source active sessions"] = SourceUnavailable("The host is away.")
    with pytest.raises(TaskDeferred) as deferred:
        HydrateOperator(task_id="hydrate_ranges", **world.flow).execute(context())
    assert world.runner.submitted == []
    _, told = deferred.value.trigger.serialize()
    assert Budget(**json.loads(json.dumps(told["budget"]))) == world.budget
    decision = world.hydration.decision
    sentence = "source active sessions never seen, deadline 15 s (The host is away)"
    assert sentence in [signal["sentence"] for signal in decision["signals"] if signal["closed"]]
    world.source.figures.clear()
    assert HydrateOperator(task_id="hydrate_ranges", **world.flow).execute(context())["committed"] == 10


def test_a_plan_is_refused_where_a_declared_signal_cannot_be_watched(world):
    """Before a row moves."""
    world.budget = Budget(signals=(ActiveSessions(on="sink", most=80),))
    world.sink.figures["sink active sessions"] = SinkRefused("GRANT pg_monitor first.")
    with pytest.raises(AirflowFailException, match="GRANT pg_monitor"):
        PlanSnapshotOperator(task_id="plan_snapshot", **world.flow).execute(context())


def test_a_retried_sensor_keeps_its_reservation(world):
    assert looked(commit_sensor(world, 0))[0]
    assert looked(commit_sensor(world, 0))[0]
    assert world.ledger.gate(world.hydration.id).in_flight == 1
    assert world.ledger.range(world.plan.plan_id, 0).attempt == 1


def test_memory_that_rose_after_the_reservation_gives_it_back(world):
    """T6: the submission looks at the memory once more."""
    assert looked(commit_sensor(world, 0))[0]
    world.runner.reading = MemoryReading(used_bytes=GIB, limit_bytes=GIB, age_seconds=0.0)
    with pytest.raises(TaskDeferred):
        SubmitRangeOperator(task_id="submit_range", seq=0, **world.flow).execute(context())
    assert world.ledger.range(world.plan.plan_id, 0).state is RangeState.PLANNED
    assert world.runner.submitted == []


def test_a_committed_range_needs_no_credit(world):
    SubmitRangeOperator(task_id="submit_range", seq=0, **world.flow).execute(context())
    assert commit_sensor(world, 0).execute(context()) is None
    assert world.ledger.gate(world.hydration.id).in_flight == 0


def test_a_credit_of_a_silent_lane_is_settled_by_the_sensor(monkeypatch):
    """A lease that ran out is reaped: the attempt is ended in Spark and sink, then the credit is free again."""
    world = World(budget=Budget(credits=1, range_rows=10))
    world.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **world.flow).execute(context())
    world.ledger.admit(world.hydration.id, lane="dead", session_id="gone", lease_seconds=-1)
    assert looked(commit_sensor(world, 5))[0]
    assert len(world.runner.interrupted) == 1
    assert world.sink.ended == ["0.0"]


def test_in_a_worker_slot_a_sensor_pokes_until_its_time_is_over(world):
    world.ledger.pause(world.hydration.id, who="ada")
    with pytest.raises(AirflowSensorTimeout):
        commit_sensor(world, 0, deferrable=False, poke_interval=0.01, timeout=0.05).execute(context())
    world.ledger.resume(world.hydration.id, who="ada")
    commit_sensor(world, 0, deferrable=False, poke_interval=0.01, timeout=5).execute(context())
    assert world.ledger.gate(world.hydration.id).in_flight == 1


def queue_sensor(world: World, **values):
    return HydrationQueueSensor(task_id="wait_for_turn", **{**world.flow, **values})


@pytest.mark.statement("H1", "H4")
def test_a_sensor_waits_for_the_hydration_s_turn_on_its_cluster(world):
    """H1, H4: another source has the only token; the sensor keeps its place until there is one for it."""
    own = world.hydration.id
    other = world.ledger.register(
        environment="other", source_identity="s", sink_identity="k", owner="dag", cluster="spark", credits=1
    )
    world.ledger.share(Shared.HYDRATIONS, "spark", 1, who="ada")
    assert world.ledger.enqueue(other.id, run="other").granted
    let_through, signals = looked(queue_sensor(world))
    assert not let_through
    assert {signal.name for signal in signals} == SIGNALS[Watch.QUEUE]
    assert [entry.hydration_id for entry in world.ledger.queue("spark")] == [other.id, own]
    with pytest.raises(TaskDeferred):
        HydrateOperator(task_id="hydrate_ranges", **world.flow).execute(context())
    assert world.runner.submitted == [], "a lane that comes another way waits too"
    world.ledger.leave(other.id)
    assert looked(queue_sensor(world))[0]
    assert [entry.hydration_id for entry in world.ledger.queue("spark") if entry.running] == [own]


@pytest.mark.statement("H5")
def test_what_is_hydrated_passes_without_a_turn(world):
    """H5: an increment does not wait for others."""
    HydrateOperator(task_id="hydrate_ranges", **world.flow).execute(context())
    world.ledger.finish(world.hydration.id)
    world.ledger.share(Shared.HYDRATIONS, "spark", 0, who="ada")
    assert looked(queue_sensor(world))[0]


def test_who_is_paused_takes_no_place(world):
    world.ledger.pause(world.hydration.id, who="ada")
    assert looked(queue_sensor(world))[0], "the lane's own gate tells of the pause"
    with pytest.raises(TaskDeferred):
        HydrateOperator(task_id="hydrate_ranges", **world.flow).execute(context())
    assert world.ledger.queue("spark") == []
