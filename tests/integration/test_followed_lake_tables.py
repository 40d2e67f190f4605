"""Followed tables of one task group into tables of Spark's catalog: one log, a commit for each table and window."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import COMPACTED
from airflow_provider_backpressure.connectors.lake.tasks import spark_write_shared_log
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.exceptions import SinkRefused, TablesFailed
from airflow_provider_backpressure.operators.shared_log_lane import StreamLane
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from tests.support.lake_flow import LakeFlow, check_windows, list_windows, plans, write_everything
from tests.support.lakes import Cluster
from tests.support.ledgers import new_ledger
from tests.support.operator_flow import writing

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(params=["delta", "iceberg"])
def flow(
    request: pytest.FixtureRequest, database: Endpoint, lake_cluster: Cluster, tmp_path: Path
) -> Iterator[LakeFlow]:
    made = LakeFlow.make_into(request.param, lake_cluster, database, tmp_path, f"s{uuid.uuid4().hex[:8]}")
    yield made
    made.close()


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
    monkeypatch.setattr(ConnectRunner, "close", lambda runner: asleep.append(runner))
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


@pytest.mark.statement("W2", "X2", "X3")
def test_a_lost_ledger_finds_the_log_and_what_each_table_has_of_it(flow: LakeFlow, tmp_path: Path) -> None:
    """W2, X2, X3: the lane is killed when one table has the window, and the ledger is lost with it."""
    assert flow.run()
    before, slots = plans(flow), flow.slots()
    points = tmp_path / "failpoints"
    points.mkdir()
    (points / "points").write_text(f"{Step.AFTER_SINK_COMMIT.value}=kill@1")
    write_everything(flow, 1)
    process = flow.with_run("run 2").process(tmp_path, **{VARIABLE: str(points)})
    assert process.wait(timeout=900) == -9, (tmp_path / "flow.log").read_text()[-3000:]
    write_everything(flow, 2)
    new_ledger(tmp_path / "fresh.db")
    fresh = replace(flow.with_run("run 3"), ledger=str(tmp_path / "fresh.db"))
    assert fresh.run()
    fresh.with_run("run 4").run()
    assert fresh.differs() == {}
    assert (plans(fresh), fresh.slots()) == (before, slots)
    check_windows(fresh)


@pytest.mark.statement("W6", "X3")
def test_a_table_that_was_set_back_is_left_out_and_read_again(flow: LakeFlow) -> None:
    """W6, X3: to before its last window, so that its changes would be lost in silence. The others are followed."""
    assert flow.run()
    before, version = plans(flow), flow.cluster.find_version(flow.place("b"))
    write_everything(flow, 1)
    assert flow.with_run("run 2").run()
    flow.cluster.set_back(flow.place("b"), version)
    write_everything(flow, 2)
    third = flow.with_run("run 3")
    reason = ""
    if flow.format == "iceberg":
        with pytest.raises(
            AirflowFailException, match=r"1 of 3 tables have failed:\n- public\.b: .*no longer has the commit"
        ):
            third.plan()
    else:
        # The properties of a Delta table go back with it, so that its first window is what does not fit.
        third.plan()
        reason = ".*it was restored"
    with pytest.raises(AirflowFailException, match=rf"public\.b: {reason}"):
        third.hydrate(third.pushed)
    assert flow.differs("a", "c") == {}
    write_everything(flow, 3)
    assert flow.with_run("run 4").run()
    flow.with_run("run 5").run()
    assert flow.differs() == {}
    after = plans(flow)
    assert {name for name in after if after[name] != before[name]} == {"b"}


@pytest.mark.statement("W6", "X3")
def test_a_table_that_is_set_back_while_a_window_is_on_its_way_is_read_again(
    flow: LakeFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6, X3: the window on top of an older one would hide those between for good."""
    assert flow.run()
    before, version = plans(flow), flow.cluster.find_version(flow.place("b"))
    publish, set_back = spark_write_shared_log.publish_changes, flow.place("b")
    write_everything(flow, 1)
    second = flow.with_run("run 2")
    # Not verified: of an Iceberg table a run that has ended keeps the commit that it must not go back behind.
    second.hydrate(second.plan())
    write_everything(flow, 2)

    def publish_late(table: Any, *arguments: Any) -> Any:
        if table.name == set_back["table"]:
            monkeypatch.undo()
            flow.cluster.set_back(set_back, version)
        return publish(table, *arguments)

    monkeypatch.setattr(spark_write_shared_log, "publish_changes", publish_late)
    third = flow.with_run("run 3")
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- public\.b: .*it was restored"):
        third.hydrate(third.plan())
    assert flow.differs("a", "c") == {}
    assert flow.with_run("run 4").run()
    assert flow.differs() == {}
    after = plans(flow)
    assert {name for name in after if after[name] != before[name]} == {"b"}


@pytest.mark.statement("W6", "X3")
def test_a_table_that_was_set_back_behind_its_window_is_not_verified(flow: LakeFlow) -> None:
    """W6, X3: nothing but its own notes shows that it lacks the window."""
    assert flow.run()
    version = flow.cluster.find_version(flow.place("b"))
    write_everything(flow, 1)
    second = flow.with_run("run 2")
    tables = second.plan()
    second.hydrate(tables)
    flow.cluster.set_back(flow.place("b"), version)
    with pytest.raises(AirflowFailException, match=r"public\.b"):
        second.verify(tables)
    assert flow.differs("a", "c") == {}


@pytest.mark.statement("W6")
def test_a_table_whose_merge_fails_is_left_out_and_read_again(flow: LakeFlow) -> None:
    """W6: the files of one table are gone for a while, so each of its MERGEs fails, and those of the others do not."""
    assert flow.run()
    before = plans(flow)
    files = [*flow.cluster.find_folder(flow.place("b")).rglob("*.parquet")]
    files = [file for file in files if "_delta_log" not in file.parts]
    for file in files:
        file.rename(f"{file}.away")
    write_everything(flow, 1)
    second = flow.with_run("run 2")
    tables = second.plan()
    with pytest.raises(TablesFailed, match=r"1 of 3 tables have failed:\n- public\.b: .*A statement on "):
        second.hydrate(tables)
    assert flow.differs("a", "c") == {}
    for file in files:
        file.with_name(f"{file.name}.away").rename(file)
    write_everything(flow, 2)
    assert flow.with_run("run 3").run()
    flow.with_run("run 4").run()
    assert flow.differs() == {}
    after = plans(flow)
    assert {name for name in after if after[name] != before[name]} == {"b"}
    check_windows(replace(flow, names=("a", "c")))


@pytest.mark.statement("W2", "K3", "X3")
def test_tables_are_maintained_and_nothing_that_the_log_needs_goes(flow: LakeFlow, tmp_path: Path) -> None:
    """W2, K3, X3: every table after its second window, the log's own too; then another run without the ledger."""
    flow = replace(flow, maintain_every=2)
    assert flow.run()
    before = plans(flow)
    for number in (1, 2, 3):
        write_everything(flow, number)
        assert flow.with_run(f"run {number + 1}").run()
    assert flow.differs() == {}
    log = f"{flow.place('a')['table'].rpartition('.')[0]}.backpressure_{flow.stream}"
    for table in (*(flow.place(name)["table"] for name in flow.names), log):
        assert COMPACTED in {row["key"] for row in flow.cluster.sql(f"SHOW TBLPROPERTIES {table}")}, table
    check_windows(flow)
    new_ledger(tmp_path / "fresh.db")
    fresh = replace(flow.with_run("run 5"), ledger=str(tmp_path / "fresh.db"))
    write_everything(fresh, 4)
    assert fresh.run()
    fresh.with_run("run 6").run()
    assert fresh.differs() == {}
    assert plans(fresh) == before
