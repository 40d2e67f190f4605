"""Followed tables of one task group: one slot, one publication, and windows for all of them, by the real tasks."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.connectors.postgres.source.shared_log import SharedLog
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.exceptions import TablesFailed
from airflow_provider_backpressure.ledger.repository import SqlLedger
from dev.services import Server
from tests.conftest import fresh_database
from tests.support.marks import mark_long
from tests.support.operator_flow import OperatorFlow, writing
from tests.support.postgres import connected, run
from tests.support.waiting import beside

pytestmark = pytest.mark.integration


@pytest.fixture
def flow(database: Endpoint, tmp_path: Path) -> Iterator[OperatorFlow]:
    made = OperatorFlow.make(database, tmp_path)
    yield made
    made.close()


@pytest.mark.statement("W2")
def test_a_group_of_followed_tables_has_one_slot_and_one_publication(flow: OperatorFlow) -> None:
    """W2: copied in the first run, followed in the next ones, and equal once nobody writes."""
    with writing(flow):
        tables = flow.plan()
        flow.hydrate(tables)
    flow.verify(tables)
    for number in range(2, 4):
        with writing(flow, seed=number):
            time.sleep(0.5)
        assert flow.with_run(f"run {number}").run()
        assert flow.differs() == {}
    name = f"backpressure_{flow.stream}"
    assert flow.slots() == [name]
    assert flow.published() == [(name, table) for table in flow.names]
    assert {one.phase for one in flow.hydrations()} == {Phase.STEADY_STATE}
    assert {one.holder for one in flow.hydrations()} == {None}
    assert len(flow.hydrations()) == len(flow.names) + 1
    rows = flow.do("SELECT target, consistent FROM raw.backpressure_plan ORDER BY 1")
    assert rows == [("raw.a", True), ("raw.b", True), (f"raw.{name}", True), ("raw.c", True)]


@pytest.mark.fault(23)
@pytest.mark.parametrize("how", mark_long(["emptied", "restored"], quick=["emptied"]))
def test_a_target_that_lost_its_plans_is_filled_again_by_a_restart(
    how: str, database: Endpoint, postgres: Server, tmp_path: Path
) -> None:
    """Fault 23: the run stops, and says to restart, which begins the log and all of its tables again."""
    with fresh_database(postgres) as target, closing(OperatorFlow.make(database, tmp_path, target=target)) as flow:
        admin, copy = replace(target, database="postgres"), f"{target.database}_copy"
        assert flow.run()
        if how == "restored":
            run(admin, f"CREATE DATABASE {copy} TEMPLATE {target.database}")
        flow.change("UPDATE a SET v = v + 1 WHERE id < 10")
        assert flow.with_run("second").run()
        if how == "restored":
            run(admin, f"DROP DATABASE {target.database} WITH (FORCE)")
            run(admin, f"CREATE DATABASE {target.database} TEMPLATE {copy}", f"DROP DATABASE {copy}")
        else:
            run(target, "DROP SCHEMA raw CASCADE")
        with pytest.raises(AirflowFailException, match=r'restored.*{"backpressure": "restart"}'):
            flow.with_run("third").run()
        assert flow.with_run("fourth", backpressure="restart").run()
        assert flow.differs() == {}
        flow.change("UPDATE a SET v = v + 1 WHERE id < 10")
        assert flow.with_run("fifth").run()
        assert flow.differs() == {}


def test_ranges_and_windows_are_carried_out_by_spark(flow: OperatorFlow, connect: Server) -> None:
    flow = replace(flow, spark=int(connect.url.rpartition(":")[2].partition("/")[0]))
    assert flow.run()
    flow.do("UPDATE a SET v = 7", "DELETE FROM b WHERE id < 9", "INSERT INTO c VALUES (500, 1, 'new')")
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}
    flow.do("ALTER TABLE raw.b ADD CHECK (v < 50)", "UPDATE b SET v = 60 WHERE id = 30", "UPDATE a SET v = 8")
    third = flow.with_run("run 3")
    tables = third.plan()
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- public\.b: .*check constraint"):
        third.hydrate(tables)
    assert flow.differs("a", "c") == {}


def test_a_run_in_which_nothing_was_written_has_nothing_to_do(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is released, and others may have the tables. Source and target are one server, which always writes."""
    assert flow.run()
    end = flow.do("SELECT pos FROM raw.backpressure_frontier")
    with monkeypatch.context() as patch:
        patch.setattr(SharedLog, "windows", lambda self, start, *, bytes, goal, large: [])
        assert flow.with_run("run 2").plan() is None
    assert {one.holder for one in flow.hydrations()} == {None}
    kept = flow.do("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE database = current_database()")
    assert kept == end
    flow.do("UPDATE a SET v = 7 WHERE id = 1")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}


@pytest.mark.statement("W3")
def test_a_transaction_over_tables_is_seen_whole(flow: OperatorFlow) -> None:
    """W3: a reader in a loop sees the same sum over all tables at every instant, in the target as in the source."""
    flow.do(*(f"UPDATE {name} SET v = 100" for name in flow.names))
    assert flow.run()
    total = " + ".join(f"(SELECT sum(v) FROM raw.{name})" for name in flow.names)
    sums: list[int] = []
    begun = threading.Event()

    def write(over: threading.Event) -> None:
        draw, end = random.Random(1), time.monotonic() + 8
        with connected(flow.database, autocommit=False) as connection:
            while not over.wait(0.002) and time.monotonic() < end:
                source, target = draw.sample(flow.names, 2)
                key, amount = draw.randint(1, 100), draw.randint(1, 9)
                connection.execute(f"UPDATE {source} SET v = v - {amount} WHERE id = {key}")
                connection.execute(f"UPDATE {target} SET v = v + {amount} WHERE id = {key}")
                connection.commit()
                begun.set()

    def read(over: threading.Event) -> None:
        with connected(flow.database) as connection:
            while not over.wait(0.002):
                sums.extend(int(found) for (found,) in connection.execute(f"SELECT {total}").fetchall())

    with beside(read):
        with beside(write):
            assert begun.wait(60)
            # The writer ends by itself: where runs are slow the last ones have nothing to do.
            replayed = [flow.with_run(f"run {number}").run() for number in range(2, 5)]
        flow.with_run("run 9").run()
    assert replayed[0]
    assert flow.differs() == {}
    assert len(sums) > 50
    assert set(sums) == {100 * 100 * len(flow.names)}


@pytest.mark.parametrize(
    "at", mark_long([Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT], quick=[Step.AFTER_SINK_COMMIT])
)
@pytest.mark.parametrize("what", mark_long(["range", "window"], quick=["window"]))
def test_a_task_that_is_killed_is_continued(flow: OperatorFlow, tmp_path: Path, what: str, at: Step) -> None:
    kill_and_continue(flow, tmp_path, what, at)


@pytest.mark.statement("W6", "X2")
def test_a_table_with_a_range_in_flight_elsewhere_is_not_left_out(flow: OperatorFlow) -> None:
    """W6, X2: a task was killed, and its lease has not run out. Nothing of the table is read a second time."""
    tables = flow.plan()
    (mine,) = (one for one in flow.hydrations() if one.source_identity.endswith(".b"))
    with closing(SqlLedger(f"sqlite:///{flow.ledger}")) as ledger:
        assert ledger.admit(mine.id, lane="killed", session_id="s", lease_seconds=600)
        with pytest.raises(TablesFailed, match=r"1 of 3 tables have failed:\n- public\.b: .*in flight in another"):
            flow.hydrate(tables)
        ledger.renew(mine.id, lane="killed", lease_seconds=0)
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}
    (after,) = (one for one in flow.hydrations() if one.id == mine.id)
    assert (after.plan and after.plan.plan_id) == (mine.plan and mine.plan.plan_id)


@pytest.mark.long
@pytest.mark.parametrize("at", [step for step in Step if step not in (Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT)])
@pytest.mark.parametrize("what", ["range", "window"])
def test_a_task_that_is_killed_at_other_steps_is_continued(
    flow: OperatorFlow, tmp_path: Path, what: str, at: Step
) -> None:
    kill_and_continue(flow, tmp_path, what, at)


def kill_and_continue(flow: OperatorFlow, folder: Path, what: str, at: Step) -> None:
    """Kill the run at a step of a range or a window, do the tasks again, and compare."""
    points = folder / "failpoints"
    points.mkdir()
    if what == "window":
        assert flow.run()
        flow = flow.with_run("run 2")
        with writing(flow, seconds=1.0):
            time.sleep(1.0)
    (points / "points").write_text(f"{at.value}=kill@{2 if what == 'range' else 1}")
    with writing(flow, seconds=1.0):
        process = flow.process(folder, **{VARIABLE: str(points)})
        assert process.wait(timeout=500) == -9, (folder / "flow.log").read_text()[-3000:]
    # A retry of the task that was killed, and not of the one that had planned.
    flow.hydrate(flow.pushed)
    flow.verify(flow.pushed)
    flow.with_run("run 3").run()
    assert flow.differs() == {}
    assert len(flow.slots()) == 1


def test_commands_know_the_log_and_its_tables(flow: OperatorFlow, capsys: pytest.CaptureFixture[str]) -> None:
    assert flow.run()
    name = f"backpressure_{flow.stream}"

    def call(*words: str) -> str:
        capsys.readouterr()
        args = get_parser().parse_args(["backpressure", *words])
        with flow.airflow():
            assert not args.func(args)
        return capsys.readouterr().out

    listed = {row["id"]: row for row in json.loads(call("status", "--output", "json"))}
    assert len(listed) == 4
    assert {row["state"] for row in listed.values()} == {"following"}
    for target in ("raw.a", f"raw.{name}"):
        assert json.loads(call("verify", target, "--output", "json"))[0]["equal"] is True
    call("prune", "--older-than", "1d")
    call("forget", "raw.c")
    assert flow.published() == [(name, "a"), (name, "b")]
    with pytest.raises(SystemExit):
        call("forget", f"raw.{name}")
    for table in ("raw.a", "raw.b"):
        call("forget", table)
    assert flow.slots() == []
    assert flow.hydrations() == []
