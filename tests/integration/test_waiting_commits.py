"""MySQL: a commit is in the binlog before readers see it, as one that waits for a semi-synchronous replica.

Ranges that are read meanwhile do not show it, so windows behind which they are read must not have brought it.
"""

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.connectors.mysql.tasks import changes as mysql_log
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.exceptions import TablesFailed
from airflow_provider_backpressure.sources import MySQLSource
from tests.support.marks import mark_long
from tests.support.mysql import run
from tests.support.mysql_flow import MySQLFlow, writing
from tests.support.waiting import beside, until
from tests.support.waiting_commits import (
    AFTER_COMMIT,
    AFTER_SYNC,
    DELAY,
    is_waiting,
    waiting,
    waiting_commits,
    waiting_now_and_then,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def in_turns(mysql_database: Endpoint, database: Endpoint, tmp_path: Path) -> MySQLFlow:
    """Each turn has one range of each table."""
    return replace(MySQLFlow.make_from(mysql_database, database, tmp_path), turn_seconds=0.0)


@pytest.mark.statement("W2", "W4")
@pytest.mark.parametrize("how", mark_long((DELAY, AFTER_SYNC), quick=[DELAY]))
def test_no_window_has_more_than_readers_see(mysql_database: Endpoint, how: str) -> None:
    """W2, W4: changes that windows have brought are never more than a counter shows that is read behind them."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0)")
    with closing(MySQLSource(conn_id="m", table="t").open(mysql_database)) as source:
        snapshot, log = source.snapshot(Consistency.CATCH_UP), source.log("h")
        start = log.begin()
        read, brought = replace(source.read_spec(snapshot), since=str(start)), 0

        def count(over: threading.Event) -> None:
            while not over.is_set():
                run(mysql_database, "UPDATE t SET v = v + 1")

        with waiting_now_and_then(mysql_database, how, seed=1), beside(count):
            for _ in range(6):
                until(lambda: is_waiting(mysql_database))
                for window in log.windows(start, bytes=2**40):
                    piece = source.slice(read, window, "0.0")
                    changes = mysql_log.changes(mysql_database, read, piece, snapshot.key, "bp:plan:0.0:1")
                    ((shown,),) = run(mysql_database, "SELECT v FROM t")
                    brought += sum(map(len, changes))
                    assert brought <= shown
                    start = window.end
        assert brought >= 3


@pytest.mark.long
@pytest.mark.statement("W4")
def test_a_commit_that_waits_for_long_is_in_the_window_behind_its_end(mysql_database: Endpoint) -> None:
    """W4: a range that is read meanwhile is consistent from its end on."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0)")
    with closing(MySQLSource(conn_id="m", table="t").open(mysql_database)) as source:
        snapshot, log = source.snapshot(Consistency.CATCH_UP), source.log("h")
        start = log.begin()
        with waiting_commits(mysql_database, AFTER_SYNC) as let_wait, waiting(mysql_database, "UPDATE t SET v = 1"):
            assert is_waiting(mysql_database)
            assert run(mysql_database, "SELECT v FROM t") == [(0,)]
            read_at = LogPosition.parse(mysql_log.position(mysql_database, "bp:plan:0.0:1"))
            assert read_at.at == start.at + 1
            assert log.windows(start, bytes=2**40, goal=read_at) == []
            let_wait(False)
        (window,) = log.windows(start, bytes=2**40, goal=read_at)
        assert window.end.at == read_at.at
        read = replace(source.read_spec(snapshot), since=str(start))
        piece = source.slice(read, window, "0.0")
        found = list(mysql_log.changes(mysql_database, read, piece, snapshot.key, "bp:plan:0.0:1"))
        assert sum(map(len, found)) == 1


@pytest.mark.long
@pytest.mark.statement("W2", "W4")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", [DELAY, AFTER_SYNC, AFTER_COMMIT])
def test_tables_copied_while_commits_wait_equal_their_sources(in_turns: MySQLFlow, how: str, seed: int) -> None:
    """W2, W4: under transactions over all tables, in turns of one range of each, and while they are followed."""
    flow = in_turns
    with waiting_now_and_then(flow.server, how, seed), writing(flow, seed=seed, seconds=10.0):
        flow.run()
        flow.with_run("run 2").run()
    flow.with_run("run 3").run()
    assert flow.differs() == {}


@pytest.mark.long
@pytest.mark.statement("W4")
def test_a_copy_goes_on_while_one_commit_waits_and_is_consistent_behind_it(in_turns: MySQLFlow) -> None:
    """W4: nothing of it is in the target before readers see it, and the task says why the tables are not yet done."""
    flow = in_turns
    tables = flow.plan()
    with waiting_commits(flow.server, AFTER_SYNC) as let_wait, waiting(flow.server, "UPDATE a SET v = 7 WHERE id > 50"):
        with pytest.raises(TablesFailed, match="log does not reach"):
            flow.hydrate(tables)
        assert {v for (v,) in flow.do("SELECT DISTINCT v FROM raw.a")} <= {0}
        let_wait(False)
    flow.hydrate(tables)
    flow.verify(tables)
    assert flow.differs() == {}
