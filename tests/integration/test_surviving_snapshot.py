"""A snapshot that is lost does not cost the plan: another one continues, and what changed since is corrected."""

import multiprocessing
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.postgres.sink import range_conditions
from airflow_provider_backpressure.connectors.postgres.sink.target import PostgresTarget
from airflow_provider_backpressure.connectors.postgres.tasks import copy, slice_commit
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Action, Point, Step
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    PlanOutdated,
    PlanSuperseded,
    SinkRefused,
    SnapshotLost,
    VerificationFailed,
)
from tests.support.composed import Composed, Ports, compare_with_snapshot, difference, remember_snapshot
from tests.support.local_runner import LocalRunner
from tests.support.marks import mark_long
from tests.support.postgres import connected, run
from tests.support.waiting import beside, until

pytestmark = pytest.mark.integration

ROWS = 3000
RANGES = 30
LONG = pytest.mark.long
MODES = ("append", "replace", "upsert", "mirror")


@pytest.fixture
def composed(database: Endpoint, ledger_url: str) -> Composed:
    """3,000 rows of ``public.t`` into ``raw.t``, which has the source's key, in 30 ranges of one snapshot."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v int, pad text)",
        f"INSERT INTO t SELECT g, 0, repeat('p', 50) FROM generate_series(1, {ROWS}) g",
        "ANALYZE t",
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (id int PRIMARY KEY, v int, pad text)",
    )
    return Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote="",
        consistency="snapshot",
        budget=Budget(credits=2, range_rows=ROWS // RANGES),
    )


@contextmanager
def opened(composed: Composed, monkeypatch: pytest.MonkeyPatch | None = None) -> Iterator[Ports]:
    """Open the ports with a runner of threads. ``public.as_it_was`` is the source in the snapshot that is kept last."""
    ends = {name: replace(getattr(composed, name), conn_id=name) for name in ("source", "sink")}
    runner = LocalRunner(logins=ends)
    try:
        with composed.open(runner) as ports:
            if monkeypatch is not None:
                remember_snapshot(ports, monkeypatch)
            yield ports
    finally:
        runner.close()


def end_keeper(endpoint: Endpoint) -> None:
    run(
        endpoint,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'backpressure keeper'"
        " AND datname = current_database()",
    )


def lose(ports: Ports, after: int) -> None:
    """Let a lane run until it has committed so many ranges and its snapshot is gone."""
    lane, commits = ports.hydrator(), iter(range(1, RANGES * 2))
    lane.on_commit = lambda: end_keeper(ports.composed.source) if next(commits) == after else None
    with pytest.raises(SnapshotLost) as lost:
        lane.run()
    assert not isinstance(lost.value, PlanOutdated)


def finish(ports: Ports) -> None:
    """End the hydration as its last task does."""
    plan = ports.plan
    Completion(plan=plan, ledger=ports.ledger, sink=ports.sink).check()
    ports.sink.complete(plan)
    report = ports.verifier().verify(ports.ledger.ranges(plan.plan_id), Verify.TARGET)
    assert report.equal, report.mismatches
    ports.sink.publish(plan)
    ports.ledger.finish(ports.hydration.id)


@contextmanager
def churning(endpoint: Endpoint) -> Iterator[None]:
    """Change, move, add and remove rows all the while."""

    def churn(over: threading.Event) -> None:
        with connected(endpoint) as connection:
            number = 0
            while not over.is_set():
                number += 1
                connection.execute("UPDATE t SET v = v + 1 WHERE id %% 97 = %s", (number % 97,))
                connection.execute("UPDATE t SET id = id + 50000 WHERE id = %s", (number * 7 % ROWS,))
                connection.execute("INSERT INTO t VALUES (%s, 0, 'new')", (-number,))
                connection.execute("DELETE FROM t WHERE id = %s", (ROWS - number * 11 % ROWS,))
                over.wait(0.02)

    with beside(churn):
        yield


@pytest.mark.statement("L8")
@pytest.mark.parametrize("after", [pytest.param(3, marks=LONG), 15, pytest.param(29, marks=LONG)])
@pytest.mark.parametrize("mode", mark_long(MODES, quick=["append", "mirror"]))
def test_a_lost_snapshot_is_continued_by_another_one(
    composed: Composed, mode: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8, at 10, 50 and 97 %: rows are changed, moved, added and removed all the while."""
    composed = replace(composed, mode=mode)
    with churning(composed.source), opened(composed, monkeypatch) as ports:
        planned = ports.planner().plan()
        assert planned.note.endswith("if its snapshot is lost, another one continues")
        lose(ports, after)
        first = ports.plan.snapshot_epoch
        ports.hydrator().run()
        assert ports.plan.plan_id == planned.plan.plan_id
        # The last range may have come in beside the one before it: then no other snapshot was needed.
        assert ports.plan.counted or (after == RANGES - 1 and ports.plan.snapshot_epoch == first)
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)
    assert difference(composed.source, "public.t", composed.sink, "raw.t") != (0, 0), "it did change meanwhile"


@pytest.mark.long
def test_snapshots_may_be_lost_several_times(composed: Composed, monkeypatch: pytest.MonkeyPatch) -> None:
    with churning(composed.source), opened(composed, monkeypatch) as ports:
        ports.planner().plan()
        for after in (10, 20, 25):
            lose(ports, after)
        ports.hydrator().run()
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)


@pytest.mark.long
def test_a_target_that_the_product_creates_has_an_index_as_long_as_it_is_corrected(
    composed: Composed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Under ``append`` it has no key. Who reads it when the run ends keeps the index there until the next run's end."""
    monkeypatch.setattr(range_conditions, "PATIENCE", "100ms")
    run(composed.sink, "DROP TABLE raw.t")
    with churning(composed.source), opened(composed, monkeypatch) as ports:
        planned = ports.planner().plan()
        assert planned.note.endswith("if its snapshot is lost, another one continues")
        lose(ports, 15)
        assert indexes(composed.sink) == []
        ports.hydrator().run()
        (index,) = indexes(composed.sink)
        with connected(composed.sink, autocommit=False) as reader:
            reader.execute("SELECT count(*) FROM raw.t")
            ports.sink.complete(ports.plan)
        assert f"The index raw.{index} stays until the next run ends" in caplog.text
        assert indexes(composed.sink) == [index]
        finish(ports)
    assert indexes(composed.sink) == []
    assert compare_with_snapshot(composed) == (0, 0)


@pytest.mark.statement("L8")
def test_a_snapshot_that_is_too_old_is_given_up_while_the_gate_is_closed(
    composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of L8: the age is a signal, the source's oldest xmin moves on, and the plan continues later."""
    composed = replace(composed, budget=replace(composed.budget, snapshot_age=1.0))
    with opened(composed, monkeypatch) as ports:
        planned = ports.planner().plan()
        lane = ports.hydrator()
        lane.on_commit = lambda: ports.ledger.pause(ports.hydration.id, who="ada")
        with pytest.raises(SnapshotLost, match=r"The snapshot is \d+ s old and given up: Budget\(snapshot_age=1\)"):
            lane.run()
        (signal,) = [each for each in lane.limiter.last.signals if each.name == "snapshot age"]
        assert re.fullmatch(r"snapshot \d+ s old >= 1 s", signal.sentence)
        assert run(composed.source, KEPT) == [(0,)]
        ports.ledger.resume(ports.hydration.id, who="ada")
    run(composed.source, "UPDATE t SET v = 1 WHERE id <= 5")
    patient = replace(composed, budget=replace(composed.budget, snapshot_age=600.0))
    with opened(patient, monkeypatch) as ports:
        ports.hydrator().run()
        assert ports.plan.plan_id == planned.plan.plan_id
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"consistency": "static"}, "goes with consistency='snapshot' only"), ({"mode": "upsert"}, "holds rows already")],
)
def test_an_age_without_another_snapshot_to_continue_with_is_refused(
    composed: Composed, changes: dict[str, str], words: str
) -> None:
    run(composed.sink, "INSERT INTO raw.t VALUES (-1)" if "mode" in changes else "SELECT 1")
    composed = replace(composed, budget=replace(composed.budget, snapshot_age=1.0), **changes)
    with opened(composed) as ports, pytest.raises(InvalidDeclaration, match=words):
        ports.planner().plan()


KEPT = """
    SELECT count(*)::int FROM pg_stat_activity
    WHERE application_name = 'backpressure keeper' AND backend_xmin IS NOT NULL AND datname = current_database()
"""


def indexes(endpoint: Endpoint) -> list[str]:
    """The indexes of the target."""
    return [
        name
        for (name,) in run(
            endpoint, "SELECT indexname::text FROM pg_indexes WHERE schemaname = 'raw' AND tablename = 't'"
        )
    ]


def drain(config: Path) -> None:
    """Plan and drain in a process that a test may kill."""
    with opened(Composed.read(config)) as ports:
        ports.planner().plan()
        ports.hydrator().run()


@pytest.mark.fault(3)
@pytest.mark.statement("L8")
@pytest.mark.parametrize("after", [pytest.param(3, marks=LONG), 15, pytest.param(29, marks=LONG)])
@pytest.mark.parametrize(
    "mode", ["append", *(pytest.param(mode, marks=LONG) for mode in ("replace", "upsert", "mirror"))]
)
def test_a_lane_that_is_killed_is_continued_by_another_one(
    composed: Composed, mode: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8: by kill -9 at 10, 50 and 97 %, with a range in the target's open transaction, while a writer works."""
    composed = replace(composed, mode=mode, budget=replace(composed.budget, credits=1))
    folder = tmp_path / "failpoints"
    folder.mkdir()
    point = Point(step=Step.BEFORE_SINK_COMMIT, action=Action.WAIT, number=after + 1)
    (folder / "points").write_text(str(point))
    with churning(composed.source):
        with monkeypatch.context() as environment:
            environment.setenv(VARIABLE, str(folder))
            process = multiprocessing.get_context("spawn").Process(target=drain, args=(composed.write(tmp_path),))
            process.start()
        journal = folder / "journal"
        try:
            until(lambda: journal.exists() and journal.read_text().count(f"{point.step} ") > after, 240)
        finally:
            process.kill()
            process.join()
        with opened(composed, monkeypatch) as ports:
            killed = ports.plan
            assert ports.ledger.counts(killed.plan_id).committed == len(ports.sink.markers(killed.plan_id)) == after
            ports.hydrator().run()
            assert ports.plan.plan_id == killed.plan_id
            finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)
    assert difference(composed.source, "public.t", composed.sink, "raw.t") != (0, 0), "it did change meanwhile"


def count_writes(composed: Composed, table: str) -> tuple[int, ...]:
    (found,) = run(
        composed.sink,
        "SELECT pg_stat_force_next_flush()",
        f"SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relid = '{table}'::regclass",
    )
    return tuple(found)


@pytest.mark.statement("L8")
@pytest.mark.parametrize(
    "mode", ["append", *(pytest.param(mode, marks=LONG) for mode in ("replace", "upsert", "mirror"))]
)
def test_committed_ranges_that_did_not_change_write_nothing(
    composed: Composed, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8: one range of 15 is corrected, by the rows that differ. The others keep their markers; a row confirms them."""
    composed = replace(composed, mode=mode)
    with opened(composed, monkeypatch) as ports:
        table = ports.planner().plan().plan.write.target
        lose(ports, 15)
        plan_id = ports.plan.plan_id
        before = ports.sink.markers(plan_id)
        run(
            composed.source, "UPDATE t SET v = 1 WHERE id = 5", "DELETE FROM t WHERE id = 6", "INSERT INTO t VALUES (0)"
        )
        writes = count_writes(composed, table)
        ports.hydrator().run()
        rest = sum(each.planned_rows for each in ports.ledger.ranges(plan_id) if each.slice_id not in before)
        inserted, updated, deleted = (
            now - then for now, then in zip(count_writes(composed, table), writes, strict=True)
        )
        assert (inserted, updated, deleted) == (rest + 1, 1, 1)
        markers = ports.sink.markers(plan_id)
        assert [key for key in before if markers[key].epoch != before[key].epoch] == ["0.0"]
        finish(ports)
        query = "SELECT epoch FROM raw.backpressure_commit WHERE plan_id = '{}' AND slice_id = 'confirmed'"
        assert run(composed.sink, query.format(plan_id)) == [(ports.plan.epoch,)]
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)


@pytest.mark.fault(7)
@pytest.mark.statement("L8")
@pytest.mark.long
def test_a_frozen_attempt_of_the_first_snapshot_is_refused_when_it_is_thawed(
    composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8: it is frozen with all its rows in its transaction, and nobody can end its connection."""
    composed = replace(composed, mode="upsert")
    frozen, thawed, held = threading.Event(), threading.Event(), []
    reach = copy.reach

    def freeze(step: Step, tag: str) -> None:
        if step is Step.IN_COPY and ":20.0:1" in tag:
            frozen.set()
            assert thawed.wait(60)
        reach(step, tag)

    def submitted(spec: RangeSpec, future: "Future[RangeResult]") -> None:
        if spec.seq == 20 and spec.attempt == 1:
            held.append(future)
            until(frozen.is_set)
            end_keeper(composed.source)

    monkeypatch.setattr(copy, "reach", freeze)
    monkeypatch.setattr(slice_commit, "end_attempts", lambda *args, **values: None)
    monkeypatch.setattr(PostgresTarget, "_end", lambda self, prefix: 0)
    try:
        with opened(composed, monkeypatch) as ports:
            ports.planner().plan()
            lane = ports.hydrator()
            monkeypatch.setattr(ports.runner, "on_submit", submitted)
            with pytest.raises(SnapshotLost):
                lane.run()
            run(composed.source, "UPDATE t SET v = 9")
            ports.hydrator().run()
            thawed.set()
            with pytest.raises(PlanSuperseded, match="no longer holds"):
                held[0].result(30)
            finish(ports)
        assert compare_with_snapshot(composed) == (0, 0)
    finally:
        thawed.set()


@pytest.mark.statement("X3")
@pytest.mark.parametrize("mode", [*(pytest.param(mode, marks=LONG) for mode in ("append", "upsert")), "mirror"])
def test_a_wrong_range_is_repaired_in_a_new_snapshot(
    composed: Composed, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: verification names it, and afterwards all ranges are of the moment at which it was read again."""
    composed = replace(composed, mode=mode)
    with opened(composed, monkeypatch) as ports:
        ports.planner().plan()
        ports.hydrator().run()
        finish(ports)
        run(composed.sink, "UPDATE raw.t SET v = -1 WHERE id = 250", "DELETE FROM raw.t WHERE id = 260")
        run(composed.source, "UPDATE t SET v = 7 WHERE id = 1500", "DELETE FROM t WHERE id = 1600")
        records = ports.ledger.ranges(ports.plan.plan_id)
        (wrong,) = ports.verifier().verify(records, Verify.TARGET).mismatches
        (record,) = [each for each in records if each.seq == wrong.seq]
        repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada")
        ports.planner().plan()
        ports.hydrator().run()
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)
    assert run(composed.sink, "SELECT v FROM raw.t WHERE id IN (250, 260, 1500, 1600) ORDER BY id") == [
        (0,),
        (0,),
        (7,),
    ]


@pytest.mark.long
def test_rows_of_others_are_left_alone(composed: Composed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that changed, and in which somebody else has written, is not corrected: the plan is closed as before."""
    with opened(composed, monkeypatch) as ports:
        ports.planner().plan()
        lose(ports, 15)
        run(composed.source, "UPDATE t SET v = 1 WHERE id = 5", "DELETE FROM t WHERE id = 6")
        run(composed.sink, "INSERT INTO raw.t VALUES (-1, 0, 'mine')")
        with pytest.raises(PlanOutdated, match="somebody else has written there"):
            ports.hydrator().run()
        with pytest.raises(SinkRefused, match="it cannot be cleared"):
            ports.close_plan()
    assert run(composed.sink, "SELECT count(*) FROM raw.t WHERE id = -1") == [(1,)]


@pytest.mark.parametrize(
    ("side", "statement"),
    [
        pytest.param("source", "VACUUM FULL t", marks=LONG),
        ("sink", "VACUUM FULL raw.t"),
    ],
)
def test_a_table_that_got_another_file_closes_the_plan(
    composed: Composed, side: str, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(composed, monkeypatch) as ports:
        first = ports.planner().plan().plan
        lose(ports, 15)
        run(getattr(composed, side), statement)
        with pytest.raises(PlanOutdated):
            ports.hydrator().run()
        ports.close_plan()
        ports.hydrator().run()
        assert ports.plan.plan_id != first.plan_id
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)


def test_a_row_too_few_does_not_end(composed: Composed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact total is that of the second snapshot."""
    with opened(composed, monkeypatch) as ports:
        ports.planner().plan()
        lose(ports, 15)
        run(composed.source, "INSERT INTO t SELECT g FROM generate_series(-7, 0) g")
        ports.hydrator().run()
        assert ports.plan.total == ROWS + 8
        run(composed.sink, "UPDATE raw.backpressure_commit SET rows = rows - 1 WHERE slice_id = '29.0'")
        with pytest.raises(VerificationFailed, match=f"{ROWS + 7} rows were read, and the source held {ROWS + 8}"):
            finish(ports)


def test_a_lane_that_was_thought_dead_counts_nothing_in_a_later_snapshot(
    composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger commit comes after another lane has taken the plan over."""
    composed = replace(composed, budget=Budget(credits=1, range_rows=ROWS // RANGES))
    with opened(composed, monkeypatch) as ports:
        ports.planner().plan()
        lane, commit = ports.hydrator(), ports.ledger.commit

        def late(*args: Any, **values: Any) -> bool:
            monkeypatch.setattr(ports.ledger, "commit", commit)
            with monkeypatch.context() as patched:
                patched.setattr(ports.runner, "run", die)
                with pytest.raises(KeyboardInterrupt):
                    ports.hydrator().run()
            return commit(*args, **values)

        def die(spec: RangeSpec) -> "Future[RangeResult]":
            raise KeyboardInterrupt

        monkeypatch.setattr(ports.ledger, "commit", late)
        with pytest.raises(PlanSuperseded, match="a later lane has taken it over"):
            lane.run()
        run(composed.source, "UPDATE t SET v = 3")
        ports.hydrator().run()
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)


@pytest.mark.parametrize(
    ("mode", "statements", "reason"),
    [
        ("append", ("DROP TABLE raw.t", "ALTER TABLE t ALTER id TYPE text"), "so the order of id in it is not known"),
        ("append", ("ALTER TABLE raw.t DROP CONSTRAINT t_pkey",), "needs a unique index on exactly that"),
        ("append", ("CREATE UNIQUE INDEX ON raw.t (v, id)",), "its unique index t_v_id_idx may be broken"),
        ("upsert", ("INSERT INTO raw.t VALUES (-1)",), "the target holds rows already"),
        ("append", ("ALTER TABLE t DROP CONSTRAINT t_pkey",), "it is not cut by columns of its key"),
    ],
)
def test_what_a_later_snapshot_cannot_correct_is_said_when_it_is_planned(
    composed: Composed, mode: str, statements: tuple[str, ...], reason: str
) -> None:
    run(composed.sink, *statements)
    with opened(replace(composed, mode=mode)) as ports:
        planned = ports.planner().plan()
        assert "if its snapshot is lost, the whole is read again" in planned.note
        assert reason in planned.note
        lane = ports.hydrator()
        lane.on_commit = lambda: end_keeper(composed.source)
        with pytest.raises(SnapshotLost):
            lane.run()
        with pytest.raises(SnapshotLost, match="ended with the lane that kept it"):
            ports.hydrator().run()


@pytest.mark.long
def test_a_ledger_that_is_lost_follows_a_plan_of_two_snapshots(
    composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all of it is confirmed it is complete; before that the ranges are of several moments, and it is closed."""
    with opened(composed, monkeypatch) as ports:
        ports.planner().plan()
        lose(ports, 15)
        run(composed.source, "UPDATE t SET v = 1 WHERE id = 5")
        ports.hydrator().run()
        hydration, plan = ports.hydration, ports.plan
        ports.ledger.forget(hydration.id)
        found = ports.planner().reindex(ports.planner().register(), who="test")
        assert found is not None
        assert "in a snapshot that is gone" in found.note
        ports.hydrator().run()
        finish(ports)
        again = ports.plan
        assert again.plan_id != plan.plan_id
        ports.ledger.forget(ports.hydration.id)
        found = ports.planner().reindex(ports.planner().register(), who="test")
        assert found is not None
        assert found.plan.plan_id == again.plan_id
        assert ports.ledger.counts(again.plan_id).committed == RANGES
        assert all(each.state is RangeState.COMMITTED for each in ports.ledger.ranges(again.plan_id))
        finish(ports)
    assert compare_with_snapshot(composed) == (0, 0)
