"""Followed tables of a MySQL server: its binlog is read once for all of them, by the real tasks."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.connectors.mysql.binlog import event_stream
from airflow_provider_backpressure.connectors.mysql.tasks import changes as mysql_log
from airflow_provider_backpressure.connectors.mysql.tasks import read as mysql_read
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.snapshot.spark_messages import StreamTable, WriteSpec
from airflow_provider_backpressure.exceptions import SourceUnavailable, TablesFailed
from airflow_provider_backpressure.operators.shared_log_lane import StreamLane
from airflow_provider_backpressure.sources import MySQLSource
from dev.services import Server
from tests.support.marks import mark_long
from tests.support.mysql import run
from tests.support.mysql_flow import TABLE, MySQLFlow, connected, writing
from tests.support.postgres import connected as connected_to_target
from tests.support.waiting import beside, until

pytestmark = pytest.mark.integration


@pytest.fixture
def flow(mysql_database: Endpoint, database: Endpoint, tmp_path: Path) -> MySQLFlow:
    return MySQLFlow.make_from(mysql_database, database, tmp_path)


@pytest.fixture
def in_turns(flow: MySQLFlow) -> MySQLFlow:
    """Each turn has one range of each table."""
    return replace(flow, turn_seconds=0.0)


def watch(monkeypatch: pytest.MonkeyPatch, look: Callable[[int], object]) -> None:
    """Call ``look`` behind windows, with the number of tables that have ranges left."""
    real = StreamLane._replay

    def replay(self, follow):
        result = real(self, follow)
        look(len(self.stream.find_unread()))
        return result

    monkeypatch.setattr(StreamLane, "_replay", replay)


def binlog_bytes(flow: MySQLFlow) -> int:
    """Return the size of all files of the server's log."""
    return sum(int(row[1]) for row in flow.change("SHOW BINARY LOGS"))


def frontier(flow: MySQLFlow) -> list[tuple[Any, ...]]:
    """Return up to where the log was replayed."""
    return flow.do("SELECT stream, pos FROM raw.backpressure_frontier")


@pytest.mark.statement("W1", "W2")
@pytest.mark.parametrize("seed", mark_long(range(4), quick=[0]))
def test_all_tables_equal_their_sources_at_one_frontier(in_turns: MySQLFlow, seed: int) -> None:
    """W1, W2: by one log, under transactions over all of them, while they are copied and while they are followed."""
    flow = in_turns
    with writing(flow, seed=seed):
        tables = flow.plan()
        flow.hydrate(tables)
    flow.verify(tables)
    for number in range(2, 4):
        with writing(flow, seed=seed + 10 * number):
            time.sleep(0.5)
            flow.with_run(f"run {number}").run()
    flow.with_run("run 9").run()
    assert flow.differs() == {}
    assert [stream for stream, _ in frontier(flow)] == [f"binlog_{flow.stream}"]
    assert {one.phase for one in flow.hydrations()} == {Phase.STEADY_STATE}
    assert {one.holder for one in flow.hydrations()} == {None}
    assert len(flow.hydrations()) == len(flow.names) + 1
    name = f"backpressure_{flow.stream}"
    rows = flow.do("SELECT target, consistent FROM raw.backpressure_plan ORDER BY 1")
    assert rows == [("raw.a", True), ("raw.b", True), (f"raw.{name}", True), ("raw.c", True)]
    assert flow.with_run("run 10").plan() is None


@pytest.mark.long
def test_ranges_and_windows_are_carried_out_by_spark(flow: MySQLFlow, connect: Server) -> None:
    flow = replace(flow, spark=int(connect.url.rpartition(":")[2].partition("/")[0]))
    assert flow.run()
    flow.change("UPDATE a SET v = 7", "DELETE FROM b WHERE id < 9", "INSERT INTO c VALUES (500, 1, 'new')")
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}
    flow.change("ALTER TABLE b DROP COLUMN doc", "UPDATE b SET v = 60 WHERE id = 30", "UPDATE a SET v = 8")
    third = flow.with_run("run 3")
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- [^\n]*\.b: "):
        third.plan()
    with pytest.raises(AirflowFailException, match=r"\.b: "):
        third.hydrate(third.pushed)
    assert flow.differs("a", "c") == {}


@pytest.mark.statement("W1")
def test_the_log_is_sent_once_whatever_the_number_of_tables(
    mysql_database: Endpoint, database: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1: bytes of the events that the server sends for windows, beside those that it has written to its log."""
    names = tuple(f"t{number}" for number in range(8))
    flow = MySQLFlow.make_from(mysql_database, database, tmp_path, names=names)
    assert flow.run()
    before = binlog_bytes(flow)
    flow.change(*(f"UPDATE {name} SET v = 1" for name in names))
    written, sent, real = binlog_bytes(flow) - before, list[int](), event_stream._events

    def count(file):
        for event in real(file):
            sent.append(len(event.body))
            yield event

    monkeypatch.setattr(event_stream, "_events", count)
    assert flow.with_run("run 2").run()
    assert flow.differs() == {}
    assert 0.9 * written < sum(sent) < 1.1 * written


@pytest.mark.long
@pytest.mark.statement("W1")
def test_many_tables_cost_the_task_the_decoding_of_one(
    mysql_database: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """W1: CPU of the task for the same log, for eight tables that share it or that read it one after another."""
    names = [f"t{number}" for number in range(8)]
    run(mysql_database, *(TABLE.format(name) for name in names))
    sources = [MySQLSource(conn_id="m", table=name).open(mysql_database) for name in names]
    start = sources[0].log("h").begin()
    for number in range(20):
        rows = ", ".join(f"({number * 1000 + row}, 1, 'some text of a row')" for row in range(1000))
        run(mysql_database, *(f"INSERT INTO {name} VALUES {rows}" for name in names))
    (window,) = sources[0].log("h").windows(start, bytes=2**40)
    tables = []
    for source in sources:
        snapshot = source.snapshot(Consistency.CATCH_UP)
        write = WriteSpec(
            kind="postgres",
            conn_id="w",
            target="",
            columns=(),
            mode="upsert",
            key=("id",),
            plan_table="",
            commit_table="",
            fence=source.identity,
        )
        query = source.get_shared_log("h").query
        read = source.read_spec(snapshot)
        tables.append(StreamTable(plan_id="", epoch=1, query=query, read=read, write=write, since=str(start)))
    piece = sources[0].slice(tables[0].read, window, "0.0")

    def measure(read: Callable[[], int]) -> float:
        begun = time.process_time()
        assert read() == 160_000
        return time.process_time() - begun

    def together() -> int:
        found = mysql_log.stream_changes(mysql_database, tables, piece, "bp:plan:0.0:1")
        return sum(len(rows) for _, rows in found)

    def one_by_one() -> int:
        found = (
            mysql_log.changes(mysql_database, each.read, replace(piece, query=each.query), ("id",), "bp:plan:0.0:1")
            for each in tables
        )
        return sum(len(rows) for changes in found for rows in changes)

    figures = [(measure(together), measure(one_by_one)) for _ in range(3)]
    shared, alone = (min(column) for column in zip(*figures, strict=True))
    for source in sources:
        source.close()
    with capsys.disabled():
        print(f"\n8 tables of one log: {shared:.2f} s of the task's CPU together, {alone:.2f} s each by itself")
    assert shared < 0.7 * alone


@pytest.mark.statement("W3")
@pytest.mark.long
def test_a_transaction_over_tables_is_seen_whole(flow: MySQLFlow) -> None:
    """W3: a reader in a loop sees the same sum over all tables at every instant, in the target as in the source."""
    flow.change(*(f"UPDATE {name} SET v = 100" for name in flow.names))
    assert flow.run()
    total = " + ".join(f"(SELECT sum(v) FROM raw.{name})" for name in flow.names)
    sums: list[int] = []
    begun = threading.Event()

    def write(over: threading.Event) -> None:
        draw, end = random.Random(1), time.monotonic() + 8
        with connected(flow.server) as cursor:
            while not over.wait(0.002) and time.monotonic() < end:
                source, target = draw.sample(flow.names, 2)
                key, amount = draw.randint(1, 100), draw.randint(1, 9)
                cursor.execute(f"UPDATE {source} SET v = v - {amount} WHERE id = {key}")
                cursor.execute(f"UPDATE {target} SET v = v + {amount} WHERE id = {key}")
                cursor.execute("COMMIT")
                begun.set()

    def read(over: threading.Event) -> None:
        with connected_to_target(flow.database) as connection:
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


@pytest.mark.statement("W6")
@pytest.mark.long
def test_a_table_joins_leaves_and_returns(flow: MySQLFlow) -> None:
    """W6: nothing is skipped, and rows that were deleted meanwhile are gone."""
    assert flow.run()
    flow.make_table("d")
    flow.change("UPDATE a SET v = 1")
    wider = replace(flow.with_run("run 2"), names=("a", "b", "c", "d"))
    assert wider.run()
    assert wider.differs() == {}
    stream = flow.stream
    narrow = replace(flow.with_run("run 3"), names=("a", "c", "d"))
    flow.change("DELETE FROM b WHERE id < 50", "UPDATE c SET v = 3")
    assert narrow.run()
    assert narrow.differs() == {}
    flow.change("UPDATE b SET v = 4 WHERE id = 60", "UPDATE c SET v = 4")
    assert wider.with_run("run 4").run()
    assert wider.differs() == {}
    assert flow.stream == stream


@pytest.mark.statement("W4", "W6")
@pytest.mark.long
def test_a_table_joins_in_turns_with_windows(in_turns: MySQLFlow) -> None:
    """W4, W6: under a random writer over all tables, also that which joins."""
    flow = in_turns
    assert flow.run()
    flow.make_table("d")
    wider = replace(flow.with_run("run 2"), names=("a", "b", "c", "d"))
    with writing(wider, seed=1):
        assert wider.run()
    wider.with_run("run 3").run()
    assert wider.differs() == {}


@pytest.mark.statement("W6", "X6")
def test_what_a_log_shows_of_the_table_before_it_was_made_again_is_left_out(flow: MySQLFlow) -> None:
    """W6, X6: its ranges have read the new one, and the log has rows of the old one under the same name."""
    assert flow.run()
    flow.change("INSERT INTO b VALUES (500, 5, 'old')", "UPDATE a SET v = 1", "DROP TABLE b")
    flow.make_table("b")
    second = flow.with_run("run 2")
    tables = second.plan()
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- [^\n]*\.b: .*another table"):
        second.hydrate(tables)
    assert flow.differs("a", "c") == {}
    flow.change("UPDATE b SET v = 2 WHERE id < 9")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}


REFUSED = {
    "schema": ("ALTER TABLE b DROP COLUMN doc", "UPDATE b SET v = 2", "ALTER TABLE b ADD COLUMN doc longtext"),
    "partial": ("SET binlog_row_image = 'MINIMAL'", "UPDATE b SET v = 2 WHERE id = 3"),
    "xa": ("XA START 'x'", "UPDATE b SET v = 2", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"),
}
"""What one table cannot be followed through, with the log's word for it."""


@pytest.mark.statement("W6", "X6")
@pytest.mark.parametrize("what", mark_long(sorted(REFUSED), quick=["xa"]))
def test_a_table_whose_changes_are_refused_is_parked_and_returns(flow: MySQLFlow, what: str) -> None:
    """W6, X6: the others are followed in the same task, its cause is named, and the next run reads it again alone."""
    assert flow.run()
    before = {one.id: one.plan.plan_id for one in flow.hydrations() if one.plan and one.plan.stream}
    flow.change("UPDATE a SET v = 1", *REFUSED[what], "DELETE FROM b WHERE id > 90")
    second = flow.with_run("run 2")
    tables = second.plan()
    refused = r"1 of 3 tables have failed:\n- [^\n]*\.b: The log cannot be replayed into raw\.b: "
    with pytest.raises(AirflowFailException, match=refused):
        second.hydrate(tables)
    assert flow.differs("a", "c") == {}
    with pytest.raises(AirflowFailException, match=refused):
        second.verify(tables)
    flow.change("UPDATE c SET v = 2", "DELETE FROM b WHERE id < 5")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}
    after = {one.id: one.plan.plan_id for one in flow.hydrations() if one.plan and one.plan.stream}
    assert len({*before.values()} - {*after.values()}) == 1, "one was read again"


@pytest.mark.statement("W6")
@pytest.mark.long
def test_a_table_whose_target_refuses_a_row_is_parked_and_returns(flow: MySQLFlow) -> None:
    """W6: as from PostgreSQL."""
    assert flow.run()
    flow.do("ALTER TABLE raw.b ADD CHECK (v < 50)")
    flow.change("UPDATE b SET v = 60 WHERE id = 3", "UPDATE a SET v = 1", "DELETE FROM b WHERE id > 90")
    second = flow.with_run("run 2")
    tables = second.plan()
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- [^\n]*\.b: .*check constraint"):
        second.hydrate(tables)
    assert flow.differs("a", "c") == {}
    flow.do("ALTER TABLE raw.b DROP CONSTRAINT b_v_check")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}


@pytest.mark.statement("W6")
def test_a_statement_in_the_log_stops_all_tables_until_a_restart(flow: MySQLFlow) -> None:
    """W6: by a trigger or a view it may have changed any of them, so none is left out for it."""
    assert flow.run()
    flow.change("SET binlog_format = 'STATEMENT'", "UPDATE a SET v = 2")
    flow.change("UPDATE c SET v = 3")
    second = flow.with_run("run 2")
    with pytest.raises(AirflowFailException, match=r"3 of 3 tables have failed:\n[^\n]*in the log instead of its rows"):
        second.hydrate(second.plan())
    assert flow.with_run("run 3", backpressure="restart").run()
    assert flow.differs() == {}


@pytest.mark.statement("W4")
def test_windows_go_in_between_the_ranges_of_a_copy(in_turns: MySQLFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """W4: ranges that are read behind them keep what they have brought."""
    flow, places = in_turns, list[tuple[int, list[tuple[Any, ...]]]]()

    def look(unread: int) -> None:
        places.append((unread, frontier(flow)))
        flow.change(*(f"UPDATE {name} SET v = v + 1" for name in flow.names), "DELETE FROM b WHERE id IN (3, 77)")

    watch(monkeypatch, look)
    flow.run()
    assert len({str(place) for unread, place in places if unread}) >= 2
    monkeypatch.undo()
    flow.with_run("run 2").run()
    assert flow.differs() == {}


@pytest.mark.statement("W4", "X6")
def test_a_range_is_not_read_from_a_server_that_lacks_what_windows_have_brought(
    in_turns: MySQLFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4, X6: a replica behind the same address would take that back. It has all that the plan has seen."""
    flow, real, asked = in_turns, mysql_read.check_applied, list[tuple[str, int]]()

    def lag(ask, gtids, address):
        asked.append((str(gtids), len(frontier(flow))))
        if gtids.has(*late):
            raise SourceUnavailable("it lags behind another server of the same address")
        real(ask, gtids, address)

    late: tuple[str, int] = ("", 0)

    def look(unread: int) -> None:
        nonlocal late
        if late[0]:
            return
        flow.change("UPDATE a SET v = v + 1")
        (found,) = flow.change("SELECT @@GLOBAL.gtid_executed")[0]
        source, _, numbers = "".join(found.split()).split(",")[-1].partition(":")
        late = source, int(numbers.rpartition("-")[2])

    watch(monkeypatch, look)
    tables = flow.plan()
    with monkeypatch.context() as patch:
        patch.setattr(mysql_read, "check_applied", lag)
        with pytest.raises(TablesFailed, match="lags behind another server"):
            flow.hydrate(tables)
    flow.hydrate(tables)
    flow.verify(tables)
    assert flow.differs() == {}


@pytest.mark.statement("X6")
def test_a_log_that_was_reset_is_not_continued(flow: MySQLFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """X6: its transactions have the same numbers again. A restart reads all tables again."""
    assert flow.run()
    flow.change("RESET MASTER", *(f"UPDATE a SET v = {number}" for number in range(30)))
    with pytest.raises(AirflowFailException, match="3 of 3 tables have failed"):
        flow.with_run("run 2").plan()
    assert flow.with_run("run 3", backpressure="restart").run()
    flow.change("UPDATE b SET v = 9", "DELETE FROM c WHERE id < 9")
    assert flow.with_run("run 4").run()
    assert flow.differs() == {}


def await_plans(flow: MySQLFlow) -> None:
    """Wait until the ranges of all tables are cut: of one that is emptied before, there is no second one."""

    def planned() -> bool:
        return sum(one.plan is not None for one in flow.hydrations()) > len(flow.names)

    until(planned, timeout=200)


@pytest.mark.statement("X2")
@pytest.mark.parametrize("at", mark_long(list(Step), quick=[Step.AFTER_SINK_COMMIT]))
@pytest.mark.parametrize("what", mark_long(["range", "window"], quick=["window"]))
def test_a_task_that_is_killed_is_continued(flow: MySQLFlow, tmp_path: Path, what: str, at: Step) -> None:
    """X2: at a step of its second range of some table, or of a window."""
    points = tmp_path / "failpoints"
    points.mkdir()
    if what == "window":
        assert flow.run()
        flow = flow.with_run("run 2")
        with writing(flow, seconds=1.0):
            time.sleep(1.0)
    (points / "points").write_text(f"{at.value}=kill@{2 if what == 'range' else 1}")
    process = flow.process(tmp_path, **{VARIABLE: str(points)})
    await_plans(flow)
    with writing(flow, seconds=1.0):
        assert process.wait(timeout=500) == -9, (tmp_path / "flow.log").read_text()[-3000:]
    flow.hydrate(flow.pushed)
    flow.verify(flow.pushed)
    flow.with_run("run 3").run()
    assert flow.differs() == {}


@pytest.mark.long
@pytest.mark.statement("W4", "X2")
@pytest.mark.parametrize("at", list(Step))
@pytest.mark.parametrize("what", ["range", "window"])
def test_a_task_that_is_killed_in_its_turns_is_continued(
    in_turns: MySQLFlow, tmp_path: Path, what: str, at: Step
) -> None:
    """W4, X2: while ranges are read and windows go in between them."""
    flow, points = in_turns, tmp_path / "failpoints"
    points.mkdir()
    if what == "range":
        (points / "points").write_text(f"{at.value}=kill@2")
    process = flow.process(tmp_path, **{VARIABLE: str(points)})
    await_plans(flow)
    with writing(flow, seed=len(at), seconds=20.0):
        if what == "window":
            until(lambda: any(one.plan and one.plan.replays for one in flow.hydrations()), timeout=200)
            (points / "points").write_text(f"{at.value}=kill@1")
        assert process.wait(timeout=300) == -9, (tmp_path / "flow.log").read_text()[-3000:]
        flow.hydrate(flow.pushed)
    flow.verify(flow.pushed)
    flow.with_run("run 3").run()
    assert flow.differs() == {}
