"""Windows of a shared log that go in between the ranges of its tables, by the real tasks."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_backpressure.connectors.postgres.sink.target import PostgresTarget
from airflow_provider_backpressure.connectors.postgres.tasks import copy
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.exceptions import PlanSuperseded, TablesFailed
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.operators.several_tables_lane import TableLane
from airflow_provider_backpressure.operators.shared_log_hydration import StreamSession, TableStream
from airflow_provider_backpressure.operators.shared_log_lane import StreamLane
from tests.support.local_runner import LocalRunner, fail_range
from tests.support.operator_flow import OperatorFlow, writing
from tests.support.waiting import beside, until

pytestmark = pytest.mark.integration


@pytest.fixture
def flow(database: Endpoint, tmp_path: Path) -> Iterator[OperatorFlow]:
    """Each turn has one range of each table."""
    made = OperatorFlow.make(database, tmp_path, turn_seconds=0.0)
    yield made
    made.close()


def watch(monkeypatch: pytest.MonkeyPatch, look: Callable[[int], object]) -> None:
    """Call ``look`` behind windows, with the number of tables that have ranges left."""
    real = StreamLane._replay

    def replay(self, follow):
        result = real(self, follow)
        look(len(self.stream.find_unread()))
        return result

    monkeypatch.setattr(StreamLane, "_replay", replay)


def confirmed(flow: OperatorFlow) -> str:
    """Return up to where the source has let its log go."""
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
    return str(flow.do(query)[0][0])


def park(flow: OperatorFlow) -> None:
    """Copy the tables, and let a run leave one of them out."""
    assert replace(flow, turn_seconds=60.0).run()
    flow.do("ALTER TABLE raw.b ADD CHECK (v < 50)", "UPDATE b SET v = 60 WHERE id = 3", "DELETE FROM b WHERE id > 90")
    second = flow.with_run("run 2")
    tables = second.plan()
    with pytest.raises(AirflowFailException, match=r"public\.b"):
        second.hydrate(tables)
    flow.do("ALTER TABLE raw.b DROP CONSTRAINT b_v_check")


@pytest.mark.statement("W4")
@pytest.mark.long
def test_windows_go_in_between_the_ranges_of_a_first_copy(flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """W4: under a random writer; the source lets its log go before the last range is read."""
    places: list[tuple[int, str]] = []
    watch(monkeypatch, lambda unread: places.append((unread, confirmed(flow))))
    with writing(flow):
        tables = flow.plan()
        flow.hydrate(tables)
    flow.verify(tables)
    assert len({place for unread, place in places if unread}) >= 2
    flow.with_run("run 2").run()
    assert flow.differs() == {}
    assert len(flow.slots()) == 1


@pytest.mark.statement("W6")
def test_a_table_that_returns_does_not_hold_the_others_back(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6: their changes arrive while it is read; rows of it that were deleted meanwhile are gone."""
    park(flow)
    found: list[dict[str, tuple[int, int]]] = []

    def look(unread: int) -> None:
        if unread:
            found.append(flow.differs("a", "c"))
            flow.do("UPDATE a SET v = v + 1", "UPDATE b SET v = v + 1 WHERE v < 40", "DELETE FROM c WHERE id < 10")

    watch(monkeypatch, look)
    flow.do("UPDATE a SET v = 5")
    assert flow.with_run("run 3").run()
    assert len(found) >= 2
    assert not any(found)
    flow.with_run("run 4").run()
    assert flow.differs() == {}


@pytest.mark.statement("W4")
@pytest.mark.long
def test_a_table_joins_in_turns_with_windows(flow: OperatorFlow) -> None:
    """W4: under a random writer over all tables, also that which joins."""
    assert flow.run()
    flow.make_table("d")
    wider = replace(flow.with_run("run 2"), names=("a", "b", "c", "d"))
    with writing(wider, seed=1):
        assert wider.run()
    wider.with_run("run 3").run()
    assert wider.differs() == {}
    assert len(flow.slots()) == 1


@pytest.mark.statement("W4")
def test_a_range_that_was_read_before_a_window_is_refused_behind_it(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4: its lane is gone, its session is not, and it commits late: it would take back what the window brought."""
    park(flow)
    third = flow.with_run("run 3")
    tables = third.plan()
    read, thaw = threading.Event(), threading.Event()
    late: list[Future[Any]] = []
    real_copy, real_run = copy._copy, LocalRunner.run

    def wait_behind(spec, piece, source, connection, table):
        found = real_copy(spec, piece, source, connection, table)
        if spec.tag == late_tags[0]:
            read.set()
            assert thaw.wait(60)
        return found

    late_tags: list[str] = []

    def run(self, spec):
        if spec.write.fence != "raw.b" or spec.tables:
            return real_run(self, spec)
        if not late:
            late_tags.append(spec.tag)
            login = self.logins
            ends = (login[spec.read.conn_id], login[spec.write.conn_id])
            late.append(pool.submit(copy.copy_slice, spec, spec.slices[0], *ends))
            assert read.wait(60)
        return fail_range("Its worker does not answer.")

    with ThreadPoolExecutor(1) as pool:
        # A session behind a pooler cannot be found, and is not ended.
        monkeypatch.setattr(PostgresTarget, "_end", lambda self, prefix: 0)
        monkeypatch.setattr(copy, "_copy", wait_behind)
        with monkeypatch.context() as patch:
            patch.setattr(LocalRunner, "run", run)
            with pytest.raises(TablesFailed, match=r"public\.b: Range 0 failed 3 times"):
                third.hydrate(tables, tries=2)
        flow.do("UPDATE b SET v = 7", "DELETE FROM b WHERE id < 20")
        outcomes: list[BaseException | None] = []

        def look(unread: int) -> None:
            if unread and not outcomes:
                assert flow.do("SELECT count(*) FROM raw.b WHERE v = 7") == [(71,)], "brought by the window"
                thaw.set()
                outcomes.append(late[0].exception(60))

        watch(monkeypatch, look)
        third.hydrate(tables, tries=2)
    assert isinstance(outcomes[0], PlanSuperseded)
    third.verify(tables)
    assert flow.differs() == {}


@pytest.mark.statement("W4", "X2")
def test_a_lane_whose_run_is_over_refuses_nobody_s_ranges(flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """W4, X2: it was frozen between its turns, and the ranges are another run's by now."""
    tables, real, epochs = flow.plan(), TableLane.run, list[dict[str, int]]()

    def find_epochs() -> dict[str, int]:
        return {one.id: one.plan.epoch for one in flow.hydrations() if one.plan}

    def freeze(self, drain, *, clock):
        found = real(self, drain, clock=clock)
        with closing(SqlLedger(f"sqlite:///{flow.ledger}")) as ledger:
            ledger.hold(flow.stream, run="run 2", over="run 1")
        epochs.append(find_epochs())
        return found

    monkeypatch.setattr(TableLane, "run", freeze)
    with pytest.raises(TablesFailed, match="Run run 2 has this hydration now"):
        flow.hydrate(tables)
    assert epochs == [find_epochs()]


@pytest.mark.statement("W4", "X2")
def test_a_lane_that_was_overtaken_plans_no_window(flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """W4, X2: it was frozen behind its fence; a range that the other lane reads would take back what it brings."""
    tables, real = flow.plan(), StreamSession.plan_windows

    def overtake(self):
        if self.stream.reading:
            replace(self.stream, reading={}).fence(between=True)
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(StreamSession, "plan_windows", overtake)
        with pytest.raises(TablesFailed, match="are read by another task"):
            flow.hydrate(tables)
    flow.hydrate(tables)
    flow.verify(tables)
    assert flow.differs() == {}


@pytest.mark.statement("W4", "X2")
@pytest.mark.parametrize("final", [False, True])
def test_a_range_that_is_opened_again_costs_no_other(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch, final: bool
) -> None:
    """W4, X2: while ranges are read, or while the last windows are replayed. It is read under an epoch of its own."""
    park(flow)
    third, opened = flow.with_run("run 3"), list[bool]()
    tables = third.plan()
    before = {one.id: one.plan.plan_id for one in flow.hydrations() if one.plan and one.plan.stream}
    fence, replay = TableStream.fence, StreamLane._replay

    def reopen(stream: TableStream) -> None:
        whole = [one.plan for pair, one in stream.find_members().items() if one.plan and pair not in stream.reading]
        if not opened:
            opened.append(stream.tables.shared.ledger.reopen(whole[0].plan_id, 0, who="somebody"))

    def fence_first(self, *, between):
        found = fence(self, between=between)
        if not between:
            reopen(self)
        return found

    def replay_first(self, follow):
        result = replay(self, follow)
        if self.stream.between:
            reopen(self.stream)
        return result

    with monkeypatch.context() as patch:
        if final:
            patch.setattr(TableStream, "fence", fence_first)
            with pytest.raises(TablesFailed, match="were opened again"):
                third.hydrate(tables)
        else:
            patch.setattr(StreamLane, "_replay", replay_first)
            third.hydrate(tables)
    assert opened == [True]
    flow.do(*(f"UPDATE {name} SET v = 3" for name in flow.names))
    assert flow.with_run("run 4").run()
    flow.with_run("run 5").run()
    assert flow.differs() == {}
    assert {one.id: one.plan.plan_id for one in flow.hydrations() if one.plan and one.plan.stream} == before


@pytest.mark.statement("W4")
@pytest.mark.long
def test_a_table_whose_ranges_fail_does_not_keep_the_task_running(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4: rows of it that were not read yet change all the time, and the log shows none of their long values."""
    rows, changed, real = 3000, list[int](), LocalRunner.run
    flow.do(f"INSERT INTO b SELECT g, 0, repeat('x', 3000) FROM generate_series(101, {rows}) g")
    tables = flow.plan()

    def fail(self, spec):
        if spec.write.fence != "raw.b" or spec.tables:
            return real(self, spec)
        return fail_range("Its rows cannot be read.")

    def change(over: threading.Event) -> None:
        # Each row once: the first change of a row brings all of it, and the next ones need not ask for it.
        for number in range(1, rows + 1):
            if over.wait(0.005):
                return
            flow.do(f"UPDATE b SET v = v + 1 WHERE id = {number}")
            changed.append(number)

    monkeypatch.setattr(LocalRunner, "run", fail)
    with beside(change), pytest.raises(TablesFailed, match=r"1 of 3 tables have failed:\n- public\.b"):
        flow.hydrate(tables)
    assert len(changed) < rows, "it has not waited for the end of the changes"


@pytest.mark.statement("W4")
@pytest.mark.long
def test_ranges_are_read_to_their_end_where_windows_wait_at_their_gate(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4: windows that are planned by then are planned again behind these ranges."""
    monkeypatch.setenv("AIRFLOW__BACKPRESSURE__INLINE_WAIT", "0.1")
    tables, unread = flow.plan(), []
    with closing(SqlLedger(f"sqlite:///{flow.ledger}")) as ledger:

        def look(number: int) -> None:
            unread.append(number)
            flow.do(*(f"UPDATE {name} SET v = v + 1" for name in flow.names), "DELETE FROM a WHERE id < 20")
            ledger.pause(flow.stream, who="somebody")

        with monkeypatch.context() as patch:
            watch(patch, look)
            with pytest.raises(TaskDeferred) as deferred:
                flow.hydrate(tables)
        (waits,) = deferred.value.trigger.serialize()[1]["waits"]
        assert waits["hydration_id"] == flow.stream
        assert unread[0] == unread[1] == 3, "the second one has found the gate closed"
        assert flow.do("SELECT count(*) FROM raw.b") == [(100,)]
        ledger.resume(flow.stream, who="somebody")
    flow.hydrate(tables)
    flow.verify(tables)
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}


@pytest.mark.parametrize("what", ["range", "window"])
@pytest.mark.long
def test_a_task_that_is_killed_in_the_middle_of_its_turns_is_continued(
    flow: OperatorFlow, tmp_path: Path, what: str
) -> None:
    kill_and_continue(flow, tmp_path, what, Step.BEFORE_SINK_COMMIT)


@pytest.mark.long
@pytest.mark.parametrize("at", [step for step in Step if step is not Step.BEFORE_SINK_COMMIT])
@pytest.mark.parametrize("what", ["range", "window"])
def test_a_task_that_is_killed_at_any_step_of_its_turns_is_continued(
    flow: OperatorFlow, tmp_path: Path, what: str, at: Step
) -> None:
    kill_and_continue(flow, tmp_path, what, at)


def kill_and_continue(flow: OperatorFlow, folder: Path, what: str, at: Step) -> None:
    """Kill a copy at a step of its second range of some table, or of a window between ranges; continue and compare.

    Passes of a step are counted for each plan: from the second turn on, a first one is that of a window.
    """
    points = folder / "failpoints"
    points.mkdir()
    if what == "range":
        (points / "points").write_text(f"{at.value}=kill@2")
    with writing(flow, seed=len(at), seconds=20.0):
        process = flow.process(folder, **{VARIABLE: str(points)})
        if what == "window":
            until(lambda: any(one.plan and one.plan.replays for one in flow.hydrations()), timeout=200)
            (points / "points").write_text(f"{at.value}=kill@1")
        assert process.wait(timeout=300) == -9, (folder / "flow.log").read_text()[-3000:]
        flow.hydrate(flow.pushed)
    flow.verify(flow.pushed)
    flow.with_run("run 3").run()
    assert flow.differs() == {}
    assert len(flow.slots()) == 1
