"""Followed tables of one task group into tables of Spark's catalog: one log, a commit for each table and window."""

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import Kind, Note, is_shared_window
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import open_table
from airflow_provider_backpressure.connectors.lake.tasks import spark_write_shared_log
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.operators.shared_log_lane import StreamLane
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from tests.support.lake_flow import LakeFlow
from tests.support.lakes import Cluster
from tests.support.operator_flow import writing

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(params=["delta", "iceberg"])
def flow(
    request: pytest.FixtureRequest, database: Endpoint, lake_cluster: Cluster, tmp_path: Path
) -> Iterator[LakeFlow]:
    made = LakeFlow.make_into(request.param, lake_cluster, database, tmp_path, f"s{uuid.uuid4().hex[:8]}")
    yield made
    made.close()


def list_windows(flow: LakeFlow, name: str) -> list[Note]:
    """Return the notes of windows in a target's own log."""
    place = flow.place(name)
    with closing(SqlSession(replace(NOWHERE, password=flow.cluster.url))) as session:
        table: Any = open_table(session.get(), place["format"], place["table"])
        table.state()
        notes = table._notes if place["format"] == "iceberg" else [each.note for each in table._commits]
    return [each for each in notes if each and each.kind is Kind.MARK and is_shared_window(each.about["slice_id"])]


def check_windows(flow: LakeFlow) -> None:
    """Fail where a window was committed twice to a table, or not where the one before it has ended."""
    for name in flow.names:
        bounds = [each.about["bounds"] for each in list_windows(flow, name)]
        assert bounds, name
        bounds.sort(key=lambda each: int(each["start"].partition(" ")[0]))
        ends = [each["end"].partition(" ")[0] for each in bounds]
        assert [each["start"].partition(" ")[0] for each in bounds][1:] == ends[:-1], name


def write_everything(flow: LakeFlow, value: int) -> None:
    """Write transactions over all tables: updates that leave long values out, deletes, keys that change, inserts."""
    for name in flow.names:
        flow.do(
            f"UPDATE {name} SET v = {value}",
            f"UPDATE {name} SET id = id + 1000 WHERE id = {value + 10}",
            f"DELETE FROM {name} WHERE id = {value + 30}",
            f"INSERT INTO {name} VALUES ({5000 + value}, {value}, repeat('z', 3000))",
        )


def plans(flow: LakeFlow) -> dict[str, str]:
    """Return the plan by which each table was read as a whole."""
    every = [one for one in flow.hydrations() if one.plan and one.plan.stream]
    return {one.source_identity.rpartition(".")[2]: one.plan.plan_id for one in every if one.plan}


@pytest.mark.statement("W2")
def test_a_group_of_followed_tables_has_one_slot_and_one_publication(
    flow: LakeFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: copied in the first run, followed in the next ones, and equal once nobody writes. Each window is read once.

    Random transactions over several tables: updates, deletes, keys that change, values that the log leaves out.
    """
    with writing(flow):
        tables = flow.plan()
        flow.hydrate(tables)
    flow.verify(tables)
    stage, read = spark_write_shared_log.SharedWindow._stage, list[int]()

    def count(self: Any, parts: Any) -> Any:
        read.append(len(parts))
        return stage(self, parts)

    monkeypatch.setattr(spark_write_shared_log.SharedWindow, "_stage", count)
    before = len(list_windows(flow, "a"))
    with writing(flow, seed=2):
        time.sleep(1.0)
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}
    assert read == [3] * (len(list_windows(flow, "a")) - before)
    name = f"backpressure_{flow.stream}"
    assert flow.slots() == [name]
    assert flow.published() == [(name, table) for table in flow.names]
    assert {one.phase for one in flow.hydrations()} == {Phase.STEADY_STATE}
    assert {one.holder for one in flow.hydrations()} == {None}
    assert len(flow.hydrations()) == len(flow.names) + 1
    check_windows(flow)


@pytest.mark.statement("W2", "X1", "X2")
@pytest.mark.fault(3)
def test_a_lane_that_is_killed_between_the_commits_of_two_tables_brings_each_window_once(
    flow: LakeFlow, tmp_path: Path
) -> None:
    """W2, X1, X2: one table has the window. The others get it, and the source lets its log go only then."""
    assert flow.run()
    points = tmp_path / "failpoints"
    points.mkdir()
    (points / "points").write_text(f"{Step.AFTER_SINK_COMMIT.value}=kill@1")
    write_everything(flow, 1)
    kept = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
    before = flow.do(kept)
    second = flow.with_run("run 2")
    process = second.process(tmp_path, **{VARIABLE: str(points)})
    assert process.wait(timeout=500) == -9, (tmp_path / "flow.log").read_text()[-3000:]
    assert len(flow.differs()) == 2
    assert flow.do(kept) == before
    write_everything(flow, 2)
    second.hydrate(second.pushed)
    second.verify(second.pushed)
    flow.with_run("run 3").run()
    assert flow.differs() == {}
    assert flow.do(kept) != before
    check_windows(flow)


@pytest.mark.statement("W6")
def test_a_table_that_fails_is_left_out_and_returns(flow: LakeFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """W6: the others are followed, the task names it, and only it is read again once it can be."""
    assert flow.run()
    before, publish = plans(flow), spark_write_shared_log.publish_changes
    refused = flow.place("b")["table"]

    def refuse(table: Any, *arguments: Any) -> Any:
        if table.name == refused:
            raise SinkRefused("a constraint refuses a row")
        return publish(table, *arguments)

    monkeypatch.setattr(spark_write_shared_log, "publish_changes", refuse)
    write_everything(flow, 1)
    second = flow.with_run("run 2")
    tables = second.plan()
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- public\.b: .*a constraint refuses"):
        second.hydrate(tables)
    assert [*flow.differs()] == ["b"]
    monkeypatch.undo()
    flow.do("DELETE FROM b WHERE id < 20", "UPDATE a SET v = 7", "DELETE FROM c WHERE id = 50")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}
    after = plans(flow)
    assert {name for name in after if after[name] != before[name]} == {"b"}


@pytest.mark.statement("W2", "X1")
@pytest.mark.fault(13)
def test_a_late_window_is_refused_by_each_table(flow: LakeFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2, X1: attempts wake up before their commits when other windows, or another plan of the table, are in."""
    assert flow.run()
    publish, held = spark_write_shared_log.publish_changes, list[Any]()

    def hold(*arguments: Any) -> Any:
        held.append(arguments)
        return publish(*arguments)

    monkeypatch.setattr(spark_write_shared_log, "publish_changes", hold)
    # A lane that sleeps still has its session.
    close, asleep = ConnectRunner.close, list[ConnectRunner]()
    monkeypatch.setattr(ConnectRunner, "close", asleep.append)
    write_everything(flow, 1)
    assert flow.with_run("run 2").run()
    write_everything(flow, 2)
    assert flow.with_run("run 3").run()
    monkeypatch.undo()
    for late in held:
        publish(*late)
    assert flow.differs() == {}
    check_windows(flow)
    flow.do("UPDATE a SET v = 9")
    assert flow.with_run("run 4", backpressure="restart").run()
    for late in held:
        publish(*late)
    assert flow.differs() == {}
    for lane in asleep:
        close(lane)


@pytest.mark.statement("W4", "W6")
def test_windows_go_in_between_ranges_and_tables_join_and_leave(
    flow: LakeFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4, W6: each turn has one range of each table, while others write; a table joins, and leaves."""
    flow = replace(flow, turn_seconds=0.0)
    real, unread = StreamLane._replay, list[int]()

    def replay(self: Any, follow: Any) -> Any:
        result = real(self, follow)
        unread.append(len(self.stream.find_unread()))
        return result

    monkeypatch.setattr(StreamLane, "_replay", replay)
    with writing(flow, seed=5, seconds=40.0):
        assert flow.run()
    assert any(unread), "windows went in between ranges"
    flow.make_table("d")
    wider = replace(flow.with_run("run 2"), names=("a", "b", "c", "d"))
    write_everything(wider, 3)
    assert wider.run()
    wider.with_run("run 3").run()
    assert wider.differs() == {}
    flow.do("DELETE FROM b WHERE id < 50", "UPDATE c SET v = 3")
    narrow = replace(flow.with_run("run 4"), names=("a", "c", "d"))
    assert narrow.run()
    assert narrow.differs() == {}
    (name,) = flow.slots()
    assert flow.published() == [(name, table) for table in ("a", "c", "d")]
