"""Snapshot consistency and increments over in-memory ports: what a lane keeps, what it never mixes."""

from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.execution import lane_runner as hydrator
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning import planner
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, RangeSpec
from airflow_provider_backpressure.exceptions import SnapshotLost
from airflow_provider_backpressure.operators import (
    HydrateOperator,
    PlanSnapshotOperator,
    SubmitRangeOperator,
    VerifyHydrationOperator,
)
from airflow_provider_backpressure.testing import MemorySource
from tests.support.world import TABLES, World, context


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    return made


@pytest.fixture
def seen(world: World, monkeypatch: pytest.MonkeyPatch) -> list[RangeSpec]:
    """Every attempt that is submitted."""
    specs: list[RangeSpec] = []
    run = world.runner.run
    monkeypatch.setattr(world.runner, "run", lambda spec: (specs.append(spec), run(spec))[1])
    return specs


def plan(world: World, **values: Any) -> Any:
    task = PlanSnapshotOperator(task_id="plan_snapshot", **{"consistency": "snapshot", **values}, **world.flow)
    return task.execute(context())


def lane(world: World, **values: Any) -> Any:
    return HydrateOperator(task_id="hydrate_ranges", **values, **world.flow).execute(context())


def verify(world: World, **values: Any) -> Any:
    return VerifyHydrationOperator(task_id="verify_hydration", **values, **world.flow).execute(context())


def breaking(world: World, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Let the lane die after so many ranges, as a killed one does: nothing of it is settled."""
    run, count = world.runner.run, iter(range(1, 1000))

    def dying(spec: RangeSpec) -> Any:
        if next(count) > after:
            monkeypatch.setattr(world.runner, "run", run)
            raise KeyboardInterrupt
        return run(spec)

    monkeypatch.setattr(world.runner, "run", dying)


def test_every_range_is_read_in_the_one_snapshot(world: World, seen: list[RangeSpec]) -> None:
    plan(world)
    assert lane(world)["committed"] == 10
    (keeper,) = world.source.keepers
    assert {spec.read.snapshot for spec in seen} == {keeper.snapshot}
    assert keeper.closed
    assert verify(world)["rows"] == 100


def test_no_snapshot_where_none_is_asked_for(world: World, seen: list[RangeSpec]) -> None:
    plan(world, consistency="static")
    lane(world)
    assert world.source.keepers == []
    assert {spec.read.snapshot for spec in seen} == {None}


def test_a_killed_lane_s_ranges_are_not_mixed_with_another_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """D5: the plan is closed, the target cleared, and the log says why."""
    plan(world)
    first = world.plan
    breaking(world, monkeypatch, after=4)
    with pytest.raises(KeyboardInterrupt):
        lane(world)
    world.source.keys = range(7, 150)
    assert lane(world)["committed"] == 15
    assert sorted(world.sink.rows) == list(range(7, 150)), "nothing of the snapshot that is gone is left"
    assert world.plan.plan_id != first.plan_id
    assert world.plan.epoch > first.epoch
    said = capsys.readouterr().out
    assert "were read in a snapshot that ended with the lane" in said
    assert "The plan is closed" in said
    assert verify(world)["rows"] == 143


def test_a_late_lane_closes_nothing_of_the_one_that_has_taken_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot is gone when it wakes up, and by then all is read in another one, verified and announced."""
    plan(world)
    run, asleep = world.runner.run, list[bool]()

    def sleep(spec: RangeSpec) -> Any:
        if not asleep:
            asleep.append(True)
            lane(world)
            assert verify(world)["rows"] == 100
            raise SnapshotLost("The snapshot is gone.")
        return run(spec)

    monkeypatch.setattr(world.runner, "run", sleep)
    with pytest.raises(AirflowFailException, match="a later lane has taken it over"):
        lane(world)
    assert sorted(world.sink.rows) == list(range(100))
    assert world.hydration.phase is Phase.STEADY_STATE


def test_a_killed_lane_s_plan_is_continued_in_another_snapshot(
    world: World, seen: list[RangeSpec], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the plan allows it: what is committed stays, is compared, and is written again only where it changed."""
    monkeypatch.setattr(
        planner, "find_rewrite_key", lambda draft, snapshot, sink, *, budget: (replace(draft, rewrite_key=("id",)), "")
    )
    plan(world)
    first = world.plan
    breaking(world, monkeypatch, after=4)
    with pytest.raises(KeyboardInterrupt):
        lane(world)
    before = world.sink.markers(first.plan_id)
    world.source.keys = [*range(7, 100), 150]
    run, losses = world.runner.run, iter([True])

    def losing(spec: RangeSpec) -> Any:
        if spec.seq == 2 and next(losses, False):
            world.source.keepers[-1].lost = True
        return run(spec)

    monkeypatch.setattr(world.runner, "run", losing)
    assert lane(world)["committed"] == 10
    assert sorted(world.sink.rows) == world.source.keys
    assert world.plan.plan_id == first.plan_id
    markers = world.sink.markers(first.plan_id)
    assert [key for key in before if markers[key].epoch == before[key].epoch] == ["1.0", "2.0", "3.0"]
    assert "What is committed stays, and the lane continues in a new snapshot" in capsys.readouterr().out
    assert verify(world)["rows"] == 94
    assert world.sink.find_surplus(world.plan) == ""


def test_a_lane_that_died_before_its_first_commit_keeps_the_plan(
    world: World, seen: list[RangeSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempts are fenced off all the same: they would read in another snapshot."""
    plan(world)
    first = world.plan
    breaking(world, monkeypatch, after=0)
    with pytest.raises(KeyboardInterrupt):
        lane(world)
    assert lane(world)["committed"] == 10
    assert world.plan.plan_id == first.plan_id
    assert {spec.epoch for spec in seen} == {first.epoch + 2}, "each life has an epoch of its own"
    assert world.plan.epoch == first.epoch + 2, "which whoever publishes goes by"
    assert sorted(world.sink.rows) == list(range(100))


def test_a_lane_of_a_replaced_plan_does_not_take_the_target_back(world: World) -> None:
    plan(world)
    first = world.plan
    world.sink.begin(replace(first, plan_id="f" * 32, held_by=first.plan_id))
    with pytest.raises(AirflowFailException, match="another plan took the target"):
        lane(world)
    assert world.sink.epoch("f" * 32) == first.epoch + 1


def test_a_snapshot_lost_in_mid_run_is_replaced_a_few_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(world)
    run, losses = world.runner.run, iter([True] * 2)

    def losing(spec: RangeSpec) -> Any:
        if spec.seq == 5 and next(losses, False):
            world.source.keepers[-1].lost = True
        return run(spec)

    monkeypatch.setattr(world.runner, "run", losing)
    assert lane(world)["committed"] == 10
    assert len(world.source.keepers) == 3
    assert all(keeper.closed for keeper in world.source.keepers)
    assert sorted(world.sink.rows) == list(range(100))
    assert world.ledger.gate(world.hydration.id).in_flight == 0


def test_a_snapshot_that_is_lost_again_and_again_fails_the_try(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(world)
    run = world.runner.run

    def losing(spec: RangeSpec) -> Any:
        world.source.keepers[-1].lost = spec.seq == 5
        return run(spec)

    monkeypatch.setattr(world.runner, "run", losing)
    with pytest.raises(SnapshotLost):
        lane(world)
    assert len(world.source.keepers) == 3
    assert world.ledger.gate(world.hydration.id).in_flight == 0


def test_a_lane_that_keeps_a_snapshot_waits_at_a_closed_gate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never defers: the snapshot would be gone."""
    plan(world)
    commit, looks = world.ledger.commit, 0

    def pausing(*args: Any, **values: Any) -> bool:
        done = commit(*args, **values)
        world.ledger.pause(world.hydration.id, who="ada")
        return done

    look = hydrator.Hydrator.reap_expired

    def looking(self: hydrator.Hydrator) -> None:
        nonlocal looks
        looks += 1
        if looks % 10 == 0:
            world.ledger.resume(world.hydration.id, who="ada")
        look(self)

    monkeypatch.setattr(world.ledger, "commit", pausing)
    monkeypatch.setattr(hydrator.Hydrator, "reap_expired", looking)
    assert lane(world)["committed"] == 10
    assert looks >= 30, "it waited longer than the inline wait"
    assert len(world.source.keepers) == 1


@pytest.mark.statement("X5")
def test_what_cannot_have_a_snapshot_is_refused(world: World) -> None:
    world.budget = Budget(credits=3, range_rows=10)
    plan(world)
    with pytest.raises(AirflowFailException, match="several lanes need consistency='static'"):
        lane(world, lanes=2)
    with pytest.raises(AirflowFailException, match="tasks of one range each need consistency='static'"):
        SubmitRangeOperator(task_id="submit", seq=0, **world.flow).execute(context())
    lane(world)
    with pytest.raises(AirflowFailException, match="was not read again in the snapshot of plan"):
        verify(world, verify="full")


# --- the source is compared while its snapshot is kept


@pytest.fixture
def checked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[ChecksumSpec]:
    """Every piece of the source that is hashed."""
    specs: list[ChecksumSpec] = []
    checksum = world.runner.checksum

    def noted(spec: ChecksumSpec) -> Any:
        if spec.conn_id == "source":
            specs.append(spec)
        return checksum(spec)

    monkeypatch.setattr(world.runner, "checksum", noted)
    return specs


@pytest.mark.statement("X3")
def test_the_source_is_read_again_in_the_snapshot_of_its_ranges(world: World, checked: list[ChecksumSpec]) -> None:
    """X3: by the lane, which keeps it; the task that verifies reads the target only, and a cleared lane nothing."""
    plan(world)
    assert lane(world, verify="full")["committed"] == 10
    (keeper,) = world.source.keepers
    assert [spec.read.snapshot for spec in checked if spec.read] == [keeper.snapshot] * 10
    world.source.keys = range(500)
    assert lane(world, verify="full")["committed"] == 0
    assert verify(world, verify="full")["rows"] == 100
    assert lane(world, verify="full")["committed"] == 0
    assert len(checked) == 10


@pytest.mark.statement("X3")
def test_a_range_that_is_other_rows_when_it_is_read_again_fails_the_lane(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: it is named, and the task that verifies refuses until a lane has compared all."""
    plan(world)
    checksum = world.runner.checksum

    def reading(spec: ChecksumSpec) -> Any:
        world.source.keys = [key for key in range(100) if key != 35]
        return checksum(spec)

    monkeypatch.setattr(world.runner, "checksum", reading)
    with pytest.raises(AirflowFailException, match=r"1 of 10 ranges of .* differ from what was committed.*: 3\. Clear"):
        lane(world, verify="full")
    with pytest.raises(AirflowFailException, match="was not read again"):
        verify(world, verify="full")


@pytest.mark.statement("X3")
@pytest.mark.parametrize("survives", [True, False])
def test_a_lane_that_dies_while_it_compares_begins_again_in_another_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch, survives: bool
) -> None:
    """X3: with the same plan where that survives, otherwise with another one."""
    if survives:
        monkeypatch.setattr(
            planner,
            "find_rewrite_key",
            lambda draft, snapshot, sink, *, budget: (replace(draft, rewrite_key=("id",)), ""),
        )
    plan(world)
    first, checksum = world.plan, world.runner.checksum

    def dying(spec: ChecksumSpec) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(world.runner, "checksum", dying)
    with pytest.raises(KeyboardInterrupt):
        lane(world, verify="full")
    monkeypatch.setattr(world.runner, "checksum", checksum)
    assert lane(world, verify="full")["committed"] == 10
    assert (world.plan.plan_id == first.plan_id) is survives
    assert world.plan.epoch > first.epoch
    assert len(world.source.keepers) == 2
    assert verify(world, verify="full")["rows"] == 100


@pytest.mark.statement("X3")
def test_a_snapshot_that_is_lost_while_the_source_is_compared_proves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: another one is taken in the same try."""
    plan(world)
    checksum = world.runner.checksum

    def losing(spec: ChecksumSpec) -> Any:
        if len(world.source.keepers) == 1:
            world.source.keepers[0].lost = True
        return checksum(spec)

    monkeypatch.setattr(world.runner, "checksum", losing)
    lane(world, verify="full")
    assert len(world.source.keepers) == 2
    assert verify(world, verify="full")["rows"] == 100


@pytest.mark.statement("X2")
def test_a_lane_that_dies_while_it_plans_anew_completes_that(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between ledger and sink: the next life takes the target under the plan that the ledger has."""
    plan(world)
    breaking(world, monkeypatch, after=4)
    with pytest.raises(KeyboardInterrupt):
        lane(world)
    dying_begin(world, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        lane(world)
    assert (world.plan.epoch, len(world.sink.rows)) == (0, 40)
    assert lane(world)["committed"] == 10
    assert sorted(world.sink.rows) == list(range(100))


def dying_begin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die just before the sink is told of the plan, once."""
    begin = world.sink.begin

    def dying(*_: Any, **__: Any) -> int:
        monkeypatch.setattr(world.sink, "begin", begin)
        raise KeyboardInterrupt

    monkeypatch.setattr(world.sink, "begin", dying)


# --- increments


@pytest.fixture
def rising(world: World) -> MemorySource:
    """The world's source, read by windows of its key."""
    world.source = TABLES["public.t"] = world.runner.source = MemorySource(keys=range(100), increments=True)
    return world.source


@pytest.mark.statement("T10")
def test_later_runs_bring_what_has_come(world: World, rising: MemorySource) -> None:
    """T10: each window is a plan of its own, through the same gate, and the phase stays."""
    begin = 0
    for upto, committed in ((100, 10), (137, 4), (138, 1)):
        rising.keys = range(upto)
        plan(world)
        assert lane(world)["committed"] == committed
        assert verify(world)["rows"] == upto - begin
        assert sorted(world.sink.rows) == list(range(upto))
        assert world.hydration.phase is Phase.STEADY_STATE
        begin = upto
    assert world.plan.increment
    with pytest.raises(AirflowSkipException, match="nothing is new above 137"):
        plan(world)
    with pytest.raises(AirflowFailException, match="mode='replace' takes all rows again"):
        plan(world, mode="replace")


def test_an_open_window_is_completed_before_the_next(
    world: World, rising: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(world, consistency="static")
    lane(world)
    verify(world)
    rising.keys = range(150)
    plan(world, consistency="static")
    window = world.plan
    breaking(world, monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        lane(world)
    rising.keys = range(200)
    plan(world, consistency="static")
    assert world.plan.plan_id == window.plan_id, "it is resumed"
    lane(world)
    assert sorted(world.sink.rows) == list(range(150))
    verify(world)
    plan(world, consistency="static")
    lane(world)
    assert sorted(world.sink.rows) == list(range(200))


@pytest.mark.statement("X2", "T10")
@pytest.mark.parametrize("runs", [0, 1])
def test_a_planner_that_dies_between_ledger_and_sink_leaves_a_plan_that_goes_on(
    world: World, rising: MemorySource, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    """X2: for the first plan and for an increment, without a person's help."""
    for _ in range(runs):
        plan(world)
        lane(world)
        verify(world)
        rising.keys = range(150)
    dying_begin(world, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        plan(world)
    assert world.plan.epoch == 0
    plan(world)
    assert world.plan.epoch == world.sink.last_epoch > 0
    lane(world)
    verify(world)
    assert sorted(world.sink.rows) == list(rising.keys)


@pytest.mark.statement("X1")
def test_rows_that_came_in_until_the_fence_stood_are_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a late attempt of the plan before commits between the look at the empty target and the fence."""
    begin = world.sink.begin
    monkeypatch.setattr(
        world.sink, "begin", lambda *args, **values: (world.sink.rows.append(7), begin(*args, **values))[1]
    )
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="already holds rows"):
            plan(world)
    world.sink.rows.clear()
    monkeypatch.setattr(world.sink, "begin", begin)
    plan(world)
    lane(world)
    assert sorted(world.sink.rows) == list(range(100))


def test_a_mirror_deletes_no_more_than_its_limit_however_many_snapshots_are_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 of 100 rows are exchanged, and 20 may be deleted: by the killed lane, the next one, and the next nights."""
    world.budget = Budget(credits=1, range_rows=10, max_deletes=0.2)
    plan(world, mode="mirror")
    lane(world)
    verify(world)
    world.source.keys = [*(key for key in range(100) if key % 10 > 3), *range(1000, 1040)]

    def run(name: str, wish: str | None = None) -> None:
        given = context(run_id=name, conf={"backpressure": wish} if wish else None)
        options = {"mode": "mirror", "consistency": "snapshot"}
        PlanSnapshotOperator(task_id="plan_snapshot", **options, **world.flow).execute(given)
        HydrateOperator(task_id="hydrate_ranges", **world.flow).execute(given)

    def count_gone() -> int:
        return len({*range(100)}.difference(world.sink.rows))

    breaking(world, monkeypatch, after=1)
    with pytest.raises(KeyboardInterrupt):
        run("second")
    first = world.plan
    assert (first.write.most_deleted, count_gone()) == (20, 4)
    for name, left in (("second", 16), ("third", 4), ("fourth", 4)):
        with pytest.raises(AirflowFailException, match="would delete more than"):
            run(name)
        assert world.plan.plan_id != first.plan_id
        assert (world.plan.write.most_deleted, count_gone()) == (left, 16)
    run("fifth", wish="allow_deletes")
    assert sorted(world.sink.rows) == world.source.keys
    assert verify(world)["rows"] == 100
