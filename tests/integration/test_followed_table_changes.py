"""Tables that join, leave, fail and return, and a log that is lost, in a task group of followed tables."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_backpressure.connectors.postgres.tasks import connections
from airflow_provider_backpressure.connectors.postgres.tasks.change_apply import Fold
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.shared_log_windows import StreamPlanner
from airflow_provider_backpressure.exceptions import SourceUnavailable, TablesFailed
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.operators import plan as planning
from airflow_provider_backpressure.operators.shared_log_lane import StreamLane
from tests.support.ledgers import new_ledger
from tests.support.local_runner import LocalRunner, fail_range
from tests.support.marks import mark_long
from tests.support.operator_flow import OperatorFlow
from tests.support.postgres import connected

pytestmark = pytest.mark.integration


WHEN = ("between runs", "before the ranges", "before the windows")


@pytest.fixture
def flow(database: Endpoint, tmp_path: Path) -> Iterator[OperatorFlow]:
    made = OperatorFlow.make(database, tmp_path)
    yield made
    made.close()


def lose(flow: OperatorFlow) -> None:
    """Remove the log from the source."""
    (name,) = flow.slots()
    flow.do(f"SELECT pg_drop_replication_slot('{name}')", f"DROP PUBLICATION {name}")


def plans(flow: OperatorFlow) -> set[str]:
    """Return the plans by which tables were read as a whole."""
    return {one.plan.plan_id for one in flow.hydrations() if one.plan and one.plan.stream}


@pytest.mark.statement("W6")
def test_a_table_joins_leaves_and_returns(flow: OperatorFlow) -> None:
    """W6: nothing is skipped, and rows that were deleted meanwhile are gone."""
    assert flow.run()
    flow.make_table("d")
    flow.do("UPDATE a SET v = 1")
    wider = replace(flow.with_run("run 2"), names=("a", "b", "c", "d"))
    assert wider.run()
    assert wider.differs() == {}
    (name,) = flow.slots()
    assert len(flow.published()) == 4
    narrow = replace(flow.with_run("run 3"), names=("a", "c", "d"))
    flow.do("DELETE FROM b WHERE id < 50", "UPDATE c SET v = 3")
    assert narrow.run()
    assert narrow.differs() == {}
    assert flow.published() == [(name, table) for table in ("a", "c", "d")]
    flow.do("UPDATE b SET v = 4 WHERE id = 60", "UPDATE c SET v = 4")
    assert wider.with_run("run 4").run()
    assert wider.differs() == {}
    assert flow.slots() == [name]


@pytest.mark.statement("W6", "X6")
def test_what_a_log_shows_of_the_table_before_it_was_made_again_is_left_out(flow: OperatorFlow) -> None:
    """W6, X6: its ranges have read the new one, and the log has rows of the old one under the same name."""
    assert flow.run()
    flow.do("INSERT INTO b VALUES (500, 5)", "DROP TABLE b")
    flow.make_table("b")
    flow.do("UPDATE a SET v = 1")
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}


@pytest.mark.statement("W6", "X6")
def test_what_happened_while_a_table_was_not_published_is_not_missed(flow: OperatorFlow) -> None:
    """W6, X6: a row that came before it left the log, and went before it returned, is not shown to be gone."""
    assert flow.run()
    (name,) = flow.slots()
    flow.do("INSERT INTO b VALUES (500, 5)", f"ALTER PUBLICATION {name} DROP TABLE b", "DELETE FROM b WHERE id = 500")
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}


@pytest.mark.statement("W6", "X6")
def test_what_is_written_to_a_table_under_the_name_of_another_one_is_not_taken_for_its_own(flow: OperatorFlow) -> None:
    """W6, X6: two tables exchange their names for a while. One keeps its rows, the other is named and read again."""
    assert flow.run()
    exchange = [f"ALTER TABLE {old} RENAME TO {new}" for old, new in (("a", "x"), ("c", "a"), ("x", "c"))]
    flow.do(*exchange, "TRUNCATE a", "INSERT INTO a VALUES (500, 5)", *exchange, "UPDATE a SET v = 1 WHERE id = 3")
    second = flow.with_run("run 2")
    with pytest.raises(
        AirflowFailException, match=r"(?s)1 of 3 tables have failed.*public\.c was named public\.a when"
    ):
        second.hydrate(second.plan())
    assert flow.differs("a", "b") == {}
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}


@pytest.mark.statement("W6")
def test_a_table_that_fails_stops_alone_and_returns(flow: OperatorFlow) -> None:
    """W6: the others are followed, the task names it, and it is read again once it can be."""
    assert flow.run()
    flow.do("ALTER TABLE raw.b DROP COLUMN v", "UPDATE a SET v = 1", "DELETE FROM b WHERE id < 20")
    second = flow.with_run("run 2")
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- public\.b"):
        second.plan()
    with pytest.raises(AirflowFailException, match=r"public\.b"):
        second.hydrate(second.pushed)
    with pytest.raises(AirflowFailException, match=r"public\.b"):
        second.verify(second.pushed)
    assert flow.differs("a", "c") == {}
    flow.do("DROP TABLE raw.b", "UPDATE c SET v = 2", "UPDATE b SET v = 2")
    third = flow.with_run("run 3", backpressure="restart")
    assert third.run()
    assert flow.differs() == {}
    assert len(flow.slots()) == 1


@pytest.mark.statement("W6")
def test_a_table_whose_changes_are_refused_is_parked(flow: OperatorFlow) -> None:
    """W6: the windows go on without it in the same task, its cause is named, and it is read again when it returns."""
    assert flow.run()
    flow.do("ALTER TABLE raw.b ADD CHECK (v < 50)", "UPDATE b SET v = 60 WHERE id = 3", "UPDATE a SET v = 1")
    flow.do("DELETE FROM b WHERE id > 90")
    second = flow.with_run("run 2")
    tables = second.plan()
    refused = r"1 of 3 tables have failed:\n- public\.b: .*violates check constraint"
    with pytest.raises(AirflowFailException, match=refused):
        second.hydrate(tables)
    assert flow.differs("a", "c") == {}
    with pytest.raises(AirflowFailException, match=refused):
        second.verify(tables)
    flow.do("ALTER TABLE raw.b DROP CONSTRAINT b_v_check", "UPDATE c SET v = 2")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}
    assert len(flow.slots()) == 1


@pytest.mark.statement("W6")
@pytest.mark.long
def test_a_table_that_is_locked_is_parked_once_no_try_is_left(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6: retries may find it free, and a table that is left out costs a copy. Then the others continue."""
    assert flow.run()
    before = plans(flow)
    flow.do(*(f"UPDATE {name} SET v = 1" for name in flow.names), "DELETE FROM b WHERE id > 90")
    second = flow.with_run("run 2")
    tables = second.plan()
    monkeypatch.setitem(connections._SETTINGS, "lock_timeout", "200ms")
    failed = r"1 of 3 tables have failed:\n- public\.b: Range 0 failed 3 times.* due to lock timeout"
    with connected(flow.database, autocommit=False) as connection:
        connection.execute("LOCK TABLE raw.b IN EXCLUSIVE MODE")
        with pytest.raises(TablesFailed, match="3 of 3 tables have failed"):
            second.hydrate(tables, tries=2)
        assert sorted(flow.differs()) == ["a", "b", "c"]
        with pytest.raises(TablesFailed, match=failed):
            second.hydrate(tables)
        connection.rollback()
    assert flow.differs("a", "c") == {}
    flow.do("UPDATE c SET v = 2")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}
    assert len(before - plans(flow)) == 1, "one was read again"


@pytest.mark.statement("W6")
@pytest.mark.long
def test_a_table_with_a_trigger_in_the_way_is_parked(flow: OperatorFlow) -> None:
    """W6: the trigger writes rows into the target that the source does not have."""
    assert flow.run()
    flow.do(
        "CREATE FUNCTION raw.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO raw.b VALUES (NEW.id + 1000, 0, ''); RETURN NULL; END $$",
        "CREATE TRIGGER again AFTER UPDATE ON raw.b FOR EACH ROW EXECUTE FUNCTION raw.again()",
        *(f"UPDATE {name} SET v = 1" for name in flow.names),
    )
    second = flow.with_run("run 2")
    with pytest.raises(TablesFailed, match=r"1 of 3 tables have failed:\n- public\.b: .*a trigger or rule changed"):
        second.hydrate(second.plan())
    assert flow.differs("a", "c") == {}
    flow.do("DROP TRIGGER again ON raw.b", "UPDATE b SET v = 2 WHERE id < 9")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}


def test_an_error_of_the_server_parks_no_table(flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is ended while the changes of a table are written: that says nothing about the table."""
    assert flow.run()
    before, real = plans(flow), Fold.apply
    flow.do(*(f"UPDATE {name} SET v = 1" for name in flow.names))
    second = flow.with_run("run 2")
    tables = second.plan()

    def end(self, changes):
        if self.number == 1:
            flow.do(f"SELECT pg_terminate_backend({self.connection.info.backend_pid})")
        real(self, changes)

    with monkeypatch.context() as patch:
        patch.setattr(Fold, "apply", end)
        with pytest.raises(TablesFailed, match="3 of 3 tables have failed"):
            second.hydrate(tables)
    second.hydrate(tables)
    second.verify(tables)
    assert flow.differs() == {}
    assert plans(flow) == before


def find_consistent(flow: OperatorFlow) -> list[str]:
    """Return the targets that are said to have the rows of one moment."""
    query = "SELECT target FROM raw.backpressure_plan WHERE consistent AND target LIKE 'raw._' ORDER BY target"
    return [name for (name,) in flow.do(query)]


@pytest.mark.statement("W6")
@pytest.mark.parametrize("tries", mark_long([0, 2], quick=[0]))
def test_a_table_whose_ranges_fail_gets_its_changes_and_is_continued(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """W6: the others are as their sources, and what was read of it is not read again."""
    tables = flow.plan()
    before, real, read = plans(flow), LocalRunner.run, list[int]()

    def fail(self, spec):
        if spec.write.fence != "raw.b" or spec.tables:
            return real(self, spec)
        read.append(spec.seq)
        if spec.seq == read[0]:
            return real(self, spec)
        return fail_range("Its rows cannot be read.")

    flow.do(*(f"UPDATE {name} SET v = 1 WHERE id % 10 = 0" for name in flow.names), "DELETE FROM b WHERE id = 7")
    with monkeypatch.context() as patch:
        patch.setattr(LocalRunner, "run", fail)
        with pytest.raises(TablesFailed, match=r"1 of 3 tables have failed:\n- public\.b: Range"):
            flow.hydrate(tables, tries=tries)
    assert flow.differs("a", "c") == {}
    ((copied, changed),) = flow.do("SELECT count(*), count(*) FILTER (WHERE v = 1) FROM raw.b")
    assert 10 < copied < 90
    assert changed == 10, "also of rows that were not read yet"
    with pytest.raises(AirflowFailException, match=r"public\.b"):
        flow.verify(tables)
    assert find_consistent(flow) == ["raw.a", "raw.c"]
    flow.do(*(f"UPDATE {name} SET v = 2 WHERE id < 50" for name in flow.names), "DELETE FROM b WHERE id = 3")
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}
    assert plans(flow) == before


def test_a_verification_that_failed_is_tried_again(flow: OperatorFlow) -> None:
    """Its task is cleared with the one that drains, which has nothing to read."""
    tables = flow.plan()
    flow.hydrate(tables)
    with closing(SqlLedger(f"sqlite:///{flow.ledger}")) as ledger:
        (mine,) = (one for one in flow.hydrations() if one.source_identity.endswith(".b"))
        ledger.keep_failure(mine.id, "The target differs.")
    flow.hydrate(tables)
    flow.verify(tables)
    assert flow.differs() == {}


@pytest.mark.statement("W4")
def test_no_table_is_consistent_that_the_last_windows_have_not_reached(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4: every range is in and the log could not be replayed behind them; verification runs all the same."""
    tables = flow.plan()
    flow.do(*(f"UPDATE {name} SET v = 1" for name in flow.names))
    with monkeypatch.context() as patch:
        patch.setattr(StreamLane, "_follow", Mock(side_effect=SourceUnavailable("The source does not answer.")))
        with pytest.raises(TablesFailed):
            flow.hydrate(tables)
    with pytest.raises(AirflowFailException):
        flow.verify(tables)
    assert find_consistent(flow) == []


@pytest.mark.statement("W6")
def test_a_table_that_is_refused_before_its_first_range_is_left_out(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6: a task was killed between ledger and target. Its cause is named, and the others are followed."""
    with monkeypatch.context() as patch:
        patch.setattr(Planner, "take_target", lambda self, hydration, plan, **known: plan)
        tables = flow.plan()
    flow.do("CREATE SCHEMA IF NOT EXISTS raw", "CREATE TABLE raw.b AS SELECT 1 AS id", "UPDATE a SET v = 1")
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- public\.b: .*already holds rows"):
        flow.hydrate(tables)
    assert flow.differs("a", "c") == {}


@pytest.mark.statement("W6")
def test_a_table_alone_whose_changes_are_refused_is_continued(flow: OperatorFlow) -> None:
    """W6: the cause is named, and once it is mended the windows continue where they were."""
    alone = replace(flow, names=("b",))
    assert alone.run()
    before = plans(flow)
    flow.do("ALTER TABLE raw.b ADD CHECK (v < 50)", "UPDATE b SET v = 60 WHERE id = 3")
    for name in ("run 2", "run 3"):
        again = alone.with_run(name)
        tables = again.plan()
        with pytest.raises(AirflowFailException, match="violates check constraint"):
            again.hydrate(tables)
    flow.do("ALTER TABLE raw.b DROP CONSTRAINT b_v_check")
    assert alone.with_run("run 4").run()
    assert alone.differs() == {}
    assert plans(flow) == before


def test_a_table_that_cannot_be_planned_for_now_is_not_read_again(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert flow.run()
    flow.do(*(f"UPDATE {name} SET v = 1" for name in flow.names))
    before = plans(flow)
    second, real = flow.with_run("run 2"), planning.PlanSnapshotOperator._plan_table

    def fail(self, context, tables, pair, stream):
        if pair.table == "public.b":
            raise SourceUnavailable("The source does not answer.")
        return real(self, context, tables, pair, stream)

    with monkeypatch.context() as patch:
        patch.setattr(planning.PlanSnapshotOperator, "_plan_table", fail)
        with pytest.raises(TablesFailed):
            second.plan(tries=2)
    tables = second.plan(tries=2)
    assert len(tables["planned"]) == 3
    second.hydrate(tables)
    second.verify(tables)
    assert flow.differs() == {}
    assert plans(flow) == before


def test_a_table_with_a_log_of_its_own_keeps_it_until_it_is_read_again(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(planning, "find_stream", lambda *args, **values: None)
        assert flow.run()
    before = flow.slots()
    assert len(before) == 3
    flow.make_table("d")
    flow.do("UPDATE a SET v = 1")
    wider = replace(flow.with_run("run 2"), names=("a", "b", "c", "d"))
    assert wider.run()
    assert wider.differs() == {}
    assert len(flow.slots()) == 4
    flow.do("UPDATE a SET v = 2", "UPDATE d SET v = 2")
    assert wider.with_run("run 3").run()
    assert wider.differs() == {}
    assert wider.with_run("run 4", backpressure="restart").run()
    assert wider.differs() == {}
    assert len(flow.slots()) == 1
    assert len(flow.published()) == 4


@pytest.mark.parametrize(
    "when", mark_long(["between runs", "before the ranges", "before the windows"], quick=["before the windows"])
)
def test_a_log_that_was_given_up_begins_again_with_its_tables(flow: OperatorFlow, when: str) -> None:
    flow = replace(flow, policy="drop_slot_and_restart")
    if when == "before the ranges":
        tables = flow.plan()
        lose(flow)
        flow.do("DELETE FROM a WHERE id < 50")
        flow.hydrate(tables)
        flow.verify(tables)
    else:
        assert flow.run()
        flow.do("UPDATE a SET v = 1")
        second = flow.with_run("run 2")
        tables = second.plan() if when == "before the windows" else None
        lose(flow)
        flow.do("DELETE FROM b WHERE id < 50", "UPDATE c SET v = 2")
        tables = tables or second.plan()
        second.hydrate(tables)
        second.verify(tables)
    assert flow.differs() == {}
    assert len(flow.slots()) == 1


def test_a_log_that_is_lost_is_named_and_begins_again_on_request(flow: OperatorFlow) -> None:
    assert flow.run()
    lose(flow)
    flow.do("UPDATE a SET v = 1")
    with pytest.raises(AirflowFailException, match=r"3 of 3 tables have failed:\n.*The replication slot .* is gone"):
        flow.with_run("run 2").plan()
    assert flow.with_run("run 3", backpressure="restart").run()
    assert flow.differs() == {}


def test_a_planning_task_that_is_killed_is_continued(flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the slot and before its plan is in the target; and between the tables."""
    with monkeypatch.context() as patch:
        patch.setattr(StreamPlanner, "_take_target", _die)
        with pytest.raises(KeyboardInterrupt):
            flow.plan()
    assert len(flow.slots()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(planning.TableStream, "plan_next", _die)
        with pytest.raises(KeyboardInterrupt):
            flow.plan()
    flow.do("DELETE FROM a WHERE id < 50")
    assert flow.run()
    assert flow.differs() == {}
    assert len(flow.slots()) == 1


def _die(*args: object, **values: object) -> None:
    raise KeyboardInterrupt


def test_several_lanes_leave_tables_that_share_a_log_to_one(flow: OperatorFlow) -> None:
    tables = flow.plan()
    done = [flow.hydrate(tables, lanes=2, lane_index=number)["tables"] for number in range(2)]
    assert sorted(done) == [0, 3]
    flow.verify(tables)
    assert flow.differs() == {}


def test_windows_wait_at_the_gate_of_their_own_hydration(flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__BACKPRESSURE__INLINE_WAIT", "0.1")
    assert flow.run()
    flow.do("UPDATE a SET v = 1")
    second = flow.with_run("run 2")
    tables = second.plan()
    with closing(SqlLedger(f"sqlite:///{flow.ledger}")) as ledger:
        ledger.pause(flow.stream, who="somebody")
        with pytest.raises(TaskDeferred) as deferred:
            second.hydrate(tables)
        (waits,) = deferred.value.trigger.serialize()[1]["waits"]
        assert waits["hydration_id"] == flow.stream
        ledger.resume(flow.stream, who="somebody")
    second.hydrate(tables)
    second.verify(tables)
    assert flow.differs() == {}


def test_plans_in_several_schemas_are_refused(flow: OperatorFlow) -> None:
    flow.do("CREATE SCHEMA other", "CREATE TABLE other.z (id int PRIMARY KEY)")
    wide = replace(flow, tables=("public.a", "other.z"), sink={"table": "{schema}_raw.{table}"})
    with pytest.raises(AirflowFailException, match="give the sink a system_schema"):
        wide.plan()
    assert flow.slots() == []


def test_a_ledger_that_was_lost_finds_the_log(flow: OperatorFlow, tmp_path: Path) -> None:
    assert flow.run()
    (name,) = flow.slots()
    new_ledger(tmp_path / "fresh.db")
    flow.do("UPDATE a SET v = 1", "DELETE FROM b WHERE id = 7")
    fresh = replace(flow.with_run("run 2"), ledger=str(tmp_path / "fresh.db"))
    assert fresh.run()
    assert flow.differs() == {}
    assert flow.slots() == [name]
