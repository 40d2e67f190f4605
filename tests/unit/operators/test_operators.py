"""The operators over in-memory ports: what they return, how their errors leave them, how they resume."""

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, AirflowTaskTimeout, TaskDeferred

from airflow_provider_backpressure.assets import hydrations_of
from airflow_provider_backpressure.core.config import Budget, Consistency
from airflow_provider_backpressure.core.execution import lane_runner as hydrator
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning import range_repair
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage
from airflow_provider_backpressure.exceptions import LedgerUnavailable, RangeFailed, SourceRefused
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.operators import (
    HydrateOperator,
    PlanSnapshotOperator,
    SubmitRangeOperator,
    VerifyHydrationOperator,
)
from airflow_provider_backpressure.sensors import SinkCommitSensor
from airflow_provider_backpressure.testing import MemorySource
from tests.support.world import TABLES, World, context


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    return made


def plan(world: World, **values):
    return PlanSnapshotOperator(task_id="plan_snapshot", **world.flow, **values)


def lane(world: World, **values):
    return HydrateOperator(task_id="hydrate_ranges", **world.flow, **values)


def verify(world: World, **values):
    return VerifyHydrationOperator(task_id="verify_hydration", **world.flow, **values)


def shown(world) -> tuple[str, str | None]:
    """Return the state that people see, and why."""
    (glance,) = world.ledger.glances(limit=2)
    return glance.state.value, glance.hydration.failure


def raising(error: BaseException):
    def fail(*args, **values):
        raise error

    return fail


def test_a_hydration_whose_planning_fails_is_failed_until_the_next_task_begins(world, monkeypatch):
    """Not "not begun"; the sentence is our own, and a plan that works clears it."""
    with monkeypatch.context() as broken:
        broken.setattr(world.source, "snapshot", raising(SourceRefused("There is no table public.t.")))
        with pytest.raises(AirflowFailException):
            plan(world).execute(context())
    assert world.hydration.plan is None
    assert shown(world) == ("failed", "There is no table public.t.")
    plan(world).execute(context())
    assert shown(world) == ("running", None)


def test_a_lane_that_fails_leaves_why_and_a_stranger_s_error_only_its_type(world, monkeypatch):
    """Sentences of others may hold a password."""
    plan(world).execute(context())
    monkeypatch.setattr(HydrateOperator, "_follow", raising(ValueError("password=secret1")))
    with pytest.raises(ValueError, match="secret1"):
        lane(world).execute(context())
    assert shown(world) == ("failed", "ValueError: the task's log says more.")


def test_a_try_that_is_followed_by_another_has_not_failed_yet(world, monkeypatch):
    """Only the last one has; an error that nothing mends has at once. A task that waits or skips has not failed."""
    plan(world).execute(context())
    given = context()
    given["ti"].try_number, given["ti"].max_tries = 1, 1
    monkeypatch.setattr(HydrateOperator, "_follow", raising(LedgerUnavailable("The ledger is away.")))
    with pytest.raises(LedgerUnavailable):
        lane(world).execute(given)
    assert shown(world) == ("running", None)
    given["ti"].try_number = 2
    with pytest.raises(LedgerUnavailable):
        lane(world).execute(given)
    assert shown(world) == ("failed", "The ledger is away.")
    monkeypatch.setattr(HydrateOperator, "_follow", raising(AirflowSkipException("enough")))
    with pytest.raises(AirflowSkipException):
        lane(world).execute(given)
    assert shown(world) == ("running", None)


def test_a_verification_that_fails_is_shown(world):
    plan(world).execute(context())
    with pytest.raises(AirflowFailException):
        verify(world).execute(context())
    state, why = shown(world)
    assert state == "failed"
    assert "10 of 10 ranges are not committed yet" in (why or "")


def test_plan_drain_verify(world):
    """All rows arrive, the hydration is in steady state, and the asset's event carries the committed frontier."""
    given = context()
    planned = plan(world).execute(given)
    assert planned == {"hydration_id": world.hydration.id, "plan_id": world.plan.plan_id, "ranges": 10}
    ids = {"hydration_id": world.hydration.id, "plan_id": world.plan.plan_id}
    assert {name: value for name, value in given["ti"].pushed.items() if not name.startswith("_")} == ids

    assert lane(world).execute(context())["committed"] == 10

    task = verify(world)
    given = context()
    assert task.execute(given)["rows"] == 100
    assert sorted(world.sink.rows) == list(range(100))
    assert world.hydration.phase is Phase.STEADY_STATE
    (asset,) = task.outlets
    assert asset.uri == "backpressure://default/shop_db/public.t->warehouse/raw.t"
    extra = given["outlet_events"][asset].extra
    assert (extra["frontier"], extra["rows"], extra["phase"]) == ({"memory://source": 100}, 100, "hydration")
    assert extra["hydration_id"] == world.hydration.id
    assert given["asset_state_store"][asset]["committed_frontier"] == {"memory://source": 100}


@pytest.mark.parametrize("known", [True, False], ids=["in a DAG", "mapped"])
def test_names_that_only_a_run_knows_give_an_event_by_the_alias_of_their_dag(world, known):
    """Of a mapped operator the alias is found when it runs; the event is that of the asset, with the same facts."""
    plan(world).execute(context())
    lane(world).execute(context())
    flow = {**world.flow, "source": replace(world.flow["source"], table="public.{{ params.table }}")}
    with DAG("dag", schedule=None) if known else nullcontext():
        task = VerifyHydrationOperator(task_id="verify_hydration", **flow)
    assert task.outlets == ([hydrations_of("dag")] if known else [])
    task.source = world.flow["source"]  # As Airflow renders it.
    given = context()
    task.execute(given)
    assert task.outlets == [hydrations_of("dag")]
    (event,) = given["outlet_events"][hydrations_of("dag")].asset_alias_events
    assert event.dest_asset_key.uri == "backpressure://default/shop_db/public.t->warehouse/raw.t"
    assert (event.extra["rows"], event.extra["hydration_id"]) == (100, world.hydration.id)


def test_a_lane_drains_what_follows_in_the_same_run(world, monkeypatch):
    """As windows of a log follow ranges; the count is that of all. Nothing follows a plan of another consistency."""
    plan(world).execute(context())
    follows, take = iter([True, True, False]), HydrationSession.take_target
    monkeypatch.setattr(
        "airflow_provider_backpressure.core.planning.planner.Planner.follow", lambda self: next(follows)
    )

    def take_followed(session):
        taken = take(session)
        return taken._replace(plan=replace(taken.plan, consistency=Consistency.CATCH_UP))

    monkeypatch.setattr(HydrationSession, "take_target", take_followed)
    monkeypatch.setattr("airflow_provider_backpressure.core.execution.lane_runner.guard_log", lambda *_: None)
    assert lane(world).execute(context())["committed"] == 10
    assert next(follows, None) is None
    monkeypatch.setattr(HydrationSession, "take_target", take)
    assert lane(world).execute(context())["committed"] == 0


@pytest.mark.parametrize("how", ["target", "none"])
def test_replace_shows_the_new_rows_when_they_are_verified(world, how):
    """The target keeps its rows until then; killed between swap and finish, the task does the rest when retried."""
    world.sink.rows[:] = [7, 7]
    plan(world, mode="replace").execute(context())
    lane(world).execute(context())
    assert world.sink.rows == [7, 7]
    finish = world.ledger.finish
    world.ledger.finish = lambda *_, **__: (_ for _ in ()).throw(LedgerUnavailable("killed"))
    with pytest.raises(LedgerUnavailable):
        verify(world, verify=how).execute(context())
    world.ledger.finish = finish
    assert plan(world, mode="replace").execute(context())["plan_id"] == world.plan.plan_id
    assert lane(world).execute(context())["committed"] == 0
    assert verify(world, verify=how).execute(context())["rows"] == 100
    assert sorted(world.sink.rows) == list(range(100))
    with pytest.raises(AirflowSkipException, match="has not changed"):
        plan(world, mode="replace").execute(context())


def test_a_replacement_that_differs_is_not_shown(world):
    world.sink.rows[:] = [7, 7]
    plan(world, mode="replace").execute(context())
    lane(world).execute(context())
    world.sink.shadow.remove(42)
    with pytest.raises(AirflowFailException, match="1 of 10 ranges differ: 4"):
        verify(world).execute(context())
    assert world.sink.rows == [7, 7]
    plan(world, mode="replace").execute(context(conf={"backpressure": "restart"}))
    lane(world).execute(context())
    verify(world).execute(context())
    assert sorted(world.sink.rows) == list(range(100))


@pytest.mark.statement("L1")
def test_nothing_to_do_is_a_skip(world):
    """L1: the task's log says that later runs do nothing, and what would make them read again."""
    plan(world).execute(context())
    lane(world).execute(context())
    verify(world).execute(context())
    with pytest.raises(AirflowSkipException, match=r"has not changed.*; it is read once, and refresh='each_run' would"):
        plan(world).execute(context())


def test_a_static_source_that_moved_warns_and_skips(world, monkeypatch):
    for task in (plan(world), lane(world), verify(world)):
        task.execute(context())
    monkeypatch.setitem(TABLES, "public.t", MemorySource(keys=range(101)))
    with pytest.raises(AirflowSkipException, match="holds 101 rows"):
        plan(world).execute(context())


def test_an_empty_table_is_hydrated(monkeypatch):
    world = World(rows=0)
    world.install(monkeypatch)
    assert plan(world).execute(context())["ranges"] == 0
    assert lane(world).execute(context())["committed"] == 0
    assert verify(world).execute(context())["frontier"] == {"memory://source": 0}
    assert world.hydration.phase is Phase.STEADY_STATE


def test_restart_makes_one_new_plan_per_run(world):
    """A retry or clear of the run that asked for a new plan resumes that plan."""
    plan(world).execute(context())
    first = world.plan.plan_id
    given = context(conf={"backpressure": "restart"})
    plan(world).execute(given)
    second = world.plan.plan_id
    assert second != first
    plan(world).execute(given)
    assert world.plan.plan_id == second
    plan(world).execute(context(run_id="another", conf={"backpressure": "restart"}))
    assert world.plan.plan_id not in (first, second)


def test_a_run_that_only_plans_writes_down_what_a_plan_would_be(world):
    """Nothing is planned, and nothing written into the target; the next run plans as if it had not been."""
    only = context(run_id="look", conf={"backpressure": "plan"})
    with pytest.raises(AirflowSkipException, match="only plans"):
        plan(world).execute(only)
    assert (world.hydration.plan, world.hydration.holder) == (None, None)
    assert world.sink.plan is None
    facts = json.loads(world.ledger.preview(world.hydration.id) or "")
    assert (facts["rows"], facts["exact"], facts["mode"], facts["path"]) == (100, True, "append", "frame")
    assert datetime.fromisoformat(facts["at"]).tzinfo is not None
    plan(world).execute(context())
    with pytest.raises(AirflowSkipException, match="only plans"):
        plan(world).execute(only)
    assert world.hydration.holder == "run", "it takes no turn from a run under way"
    with pytest.raises(AirflowFailException, match="dag"):
        plan(world).execute(context(dag_id="second", conf={"backpressure": "plan"}))


def test_an_unknown_wish_is_refused(world):
    with pytest.raises(AirflowFailException, match='may only be "restart"'):
        plan(world).execute(context(conf={"backpressure": "again"}))


def test_a_second_dag_is_refused_by_name(world):
    plan(world).execute(context(dag_id="first"))
    with pytest.raises(AirflowFailException, match="first"):
        plan(world).execute(context(dag_id="second"))


@pytest.fixture
def second(world) -> Any:
    """Context of another run of the same DAG, while the first has planned and is under way."""
    world.running.add("run")
    plan(world).execute(context())
    return context(run_id="second")


def test_a_second_run_waits_deferred_until_the_first_has_done(world, second):
    """Runs of one hydration take turns; the one that comes to an end of it finds nothing to do, and skips."""
    with pytest.raises(TaskDeferred) as deferred:
        plan(world).execute(second)
    assert deferred.value.method_name == "resume"
    kwargs = deferred.value.trigger.serialize()[1]
    assert (kwargs["hydration_id"], kwargs["dag_id"], kwargs["run_id"]) == (world.hydration.id, "dag", "run")
    lane(world).execute(context())
    with pytest.raises(TaskDeferred):
        plan(world).execute(second)
    verify(world).execute(context())
    with pytest.raises(AirflowSkipException, match="has not changed"):
        plan(world).resume(second, {"why": "turn", "sentence": "run run has done with the hydration"})
    assert world.hydration.holder is None, "a skipped run keeps nothing"


def test_a_run_that_ended_or_was_deleted_keeps_nothing(world, second):
    """What it left is resumed by the next run, under the same plan."""
    world.runner.failures = {3: [RangeFailed("the executor is gone")] * 3}
    with pytest.raises(RangeFailed):
        lane(world).execute(context())
    world.running.clear()
    plan_id = world.plan.plan_id
    assert plan(world).execute(second)["plan_id"] == plan_id
    assert world.hydration.holder == "second"
    assert lane(world).execute(second)["committed"] > 0
    assert verify(world).execute(second)["rows"] == 100


def test_a_cleared_task_of_an_older_run_waits_for_its_turn_too(world, second):
    """No task of a hydration works beside another run's: neither lane, nor range, nor verification, nor sensor."""
    world.running = {"second"}
    plan(world).execute(second)
    tasks = (
        lane(world),
        verify(world),
        SubmitRangeOperator(task_id="submit", seq=1, **world.flow),
        SinkCommitSensor(task_id="sensor", seq=1, **world.flow),
    )
    for task in tasks:
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(context())
        assert deferred.value.trigger.serialize()[1]["run_id"] == "second"
    assert world.runner.submitted == []


def test_a_restart_waits_for_the_run_before_it(world, second):
    """A new plan would shut out the attempts of a run that is still at work."""
    first = world.plan.plan_id
    wish = context(run_id="second", conf={"backpressure": "restart"})
    with pytest.raises(TaskDeferred):
        plan(world).execute(wish)
    assert world.plan.plan_id == first
    world.running.clear()
    plan(world).resume(wish, {"why": "turn", "sentence": "run run is over"})
    assert world.plan.plan_id != first


def test_without_a_plan_a_lane_says_what_to_run(world):
    with pytest.raises(AirflowFailException, match="run its plan_snapshot task first"):
        lane(world).execute(context())


def test_each_range_returns_open_ranges_only(world):
    plan(world).execute(context())
    SubmitRangeOperator(task_id="submit", seq=4, **world.flow).execute(context())
    assert plan(world, each_range=True).execute(context()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_too_many_ranges_for_tasks(monkeypatch):
    world = World(rows=1025, budget=Budget(range_rows=1))
    world.install(monkeypatch)
    with pytest.raises(AirflowFailException, match="use lanes instead"):
        plan(world, each_range=True).execute(context())


@pytest.mark.statement("P11")
def test_a_closed_gate_defers_the_lane_and_it_comes_back(world):
    """P11: with nothing in flight the lane gives its worker slot back; resumed, it goes on from the ledger."""
    plan(world).execute(context())
    world.ledger.pause(world.hydration.id, who="ada", why="release night")
    task = lane(world)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context())
    assert deferred.value.method_name == "resume"
    path, kwargs = deferred.value.trigger.serialize()
    assert path.endswith("AdmissionTrigger")
    assert (kwargs["hydration_id"], kwargs["watch"]) == (world.hydration.id, "gate")
    assert world.runner.submitted == []

    world.ledger.resume(world.hydration.id, who="ada")
    result = task.resume(context(), {"why": "open", "sentence": "the gate is open"})
    assert result["committed"] == 10


def test_a_lane_takes_its_share_of_the_credits(world, monkeypatch):
    """Two lanes of three credits keep at most two ranges in flight each."""
    plan(world).execute(context())
    world.runner.held = True
    seen = []

    def watch() -> None:
        seen.append(world.ledger.gate(world.hydration.id).in_flight)
        world.runner.complete(1)

    original = world.sink.rows_in_flight
    world.sink.rows_in_flight = lambda plan_id: (watch(), original(plan_id))[1]
    monkeypatch.setattr(hydrator, "READ_INTERVAL", 0.0)
    lane(world, lanes=2, lane_index=1).execute(context())
    assert max(seen) == 2


def test_terminal_errors_fail_for_good_and_transient_ones_pass(world):
    """A retried lane settles what is left and goes on."""
    plan(world).execute(context())
    world.runner.failures = {3: [RangeFailed("the executor is gone")] * 3}
    with pytest.raises(RangeFailed, match="Range 3 failed 3 times"):
        lane(world).execute(context())
    assert world.ledger.range(world.plan.plan_id, 3).state is RangeState.FAILED
    lane(world).execute(context())
    assert world.ledger.counts(world.plan.plan_id).committed == 10


def test_verification_names_the_ranges_that_differ(world):
    plan(world).execute(context())
    lane(world).execute(context())
    world.sink.rows.remove(42)
    with pytest.raises(AirflowFailException, match=r"1 of 10 ranges differ: 4; the first: range 4: the target holds 9"):
        verify(world).execute(context())
    assert world.hydration.phase is Phase.HYDRATION, "what differs is not hydrated"
    verify(world, verify=False).execute(context())


def test_verification_waits_for_no_open_range(world):
    plan(world).execute(context())
    with pytest.raises(AirflowFailException, match="10 of 10 ranges are not committed yet"):
        verify(world).execute(context())


def test_a_killed_lane_gives_its_credits_back(world):
    """``on_kill`` comes in a signal handler: the lane unwinds at its next look, ends its jobs and frees its credits."""
    plan(world).execute(context())
    world.runner.held = True
    task = lane(world)
    run = world.runner.run
    world.runner.run = lambda spec: (run(spec), task.on_kill())[0]
    with pytest.raises(Exception, match="Airflow ended the task"):
        task.execute(context())
    assert world.ledger.gate(world.hydration.id).in_flight == 0
    assert {spec.tag for spec in world.runner.submitted} <= set(world.runner.interrupted)
    assert world.sink.rows == []


def test_a_timed_out_lane_gives_its_credits_back(world):
    """``execution_timeout`` is raised by a signal handler, also between a permit and its submission."""
    plan(world).execute(context())
    world.runner.held = True
    run = world.runner.run

    def interrupted(spec):
        if spec.seq == 1:
            raise AirflowTaskTimeout("Timeout")
        return run(spec)

    world.runner.run = interrupted
    with pytest.raises(AirflowTaskTimeout):
        lane(world).execute(context())
    assert world.ledger.gate(world.hydration.id).in_flight == 0
    assert world.runner.interrupted == [f"bp:{world.plan.plan_id}:{seq}.0:1" for seq in (0, 1)]
    world.runner.held, world.runner.run = False, run
    assert lane(world).execute(context())["committed"] == 10


def test_one_range(world):
    plan(world).execute(context())
    task = SubmitRangeOperator(task_id="submit", seq="{{ 7 }}", **world.flow)
    task.seq = 7
    assert task.execute(context())["rows"] == 10
    assert sorted(world.sink.rows) == list(range(70, 80))
    assert task.execute(context())["rows"] == 10, "a committed range is left alone"
    assert sorted(world.sink.rows) == list(range(70, 80))


def test_one_range_waits_deferred_for_its_credit(world):
    plan(world).execute(context())
    for seq in (0, 1, 2):
        assert world.ledger.admit(world.hydration.id, lane="other", session_id="s", lease_seconds=60, seq=seq)
    with pytest.raises(TaskDeferred) as deferred:
        SubmitRangeOperator(task_id="submit", seq=5, **world.flow).execute(context())
    kwargs = deferred.value.trigger.serialize()[1]
    assert (kwargs["seq"], kwargs["plan_id"], kwargs["lane"]) == (5, world.plan.plan_id, "dag/run/range-5")


def test_one_range_is_retried_within_its_task(world):
    plan(world).execute(context())
    world.runner.failures = {2: [RangeFailed("lost")]}
    assert SubmitRangeOperator(task_id="submit", seq=2, **world.flow).execute(context())["attempt"] == 2


def test_one_range_resumes_after_its_worker_died(world):
    """An attempt of an earlier try is ended and settled before the range is submitted again."""
    plan(world).execute(context())
    world.ledger.admit(world.hydration.id, lane="dag/run/range-6", session_id="dead", lease_seconds=60, seq=6)
    assert SubmitRangeOperator(task_id="submit", seq=6, **world.flow).execute(context())["attempt"] == 2
    assert world.runner.interrupted == [f"bp:{world.plan.plan_id}:6.0:1"]


def test_a_lane_with_nothing_left_ends_at_a_closed_gate(world):
    """It waits for nothing: a gate has nothing to let through any more."""
    plan(world).execute(context())
    lane(world).execute(context())
    world.ledger.pause(world.hydration.id, who="ada")
    assert lane(world).execute(context())["committed"] == 0


@pytest.mark.statement("F3")
def test_what_a_lane_waited_without_a_slot_is_time_at_the_gate(world):
    """F3: the trigger says how long it was, and the lane writes it down as held back."""
    PlanSnapshotOperator(task_id="plan_snapshot", **world.flow).execute(context())
    lane = HydrateOperator(task_id="hydrate_ranges", **world.flow)
    lane.resume(context(), {"why": "open", "sentence": "the gate is open", "waited": 100.0})
    assert world.ledger.flow(world.hydration.id)[Stage.ADMIT].backpressured >= 100.0


@pytest.mark.parametrize("transform", [None, "SELECT * FROM source"])
def test_a_mirror_with_a_skipped_range_is_verified_without_it(world, transform):
    """The target keeps the range's rows of before, which no marker of the plan counts."""
    options = {"mode": "mirror", "transform": transform}
    plan(world, **options).execute(context())
    lane(world, transform=transform).execute(context())
    verify(world).execute(context())
    world.source.keys = [key for key in range(100) if key not in (25, 55)]
    given = context(run_id="second")
    plan(world, **options).execute(given)
    world.runner.failures[2] = [RangeFailed("unreadable")] * 3
    with pytest.raises(RangeFailed):
        lane(world, transform=transform).execute(given)
    range_repair.skip(
        world.ledger, world.sink, world.plan, world.ledger.range(world.plan.plan_id, 2), who="ada", why="unreadable"
    )
    lane(world, transform=transform).execute(given)
    assert verify(world).execute(given)["rows"] == (89 if transform is None else 88)
    assert sorted(world.sink.rows) == [key for key in range(100) if key != 55]
