"""Followed tables of a MySQL server into tables of Spark's catalog: one binlog, a commit for each table and window."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.connectors.lake.tasks import spark_write_shared_log
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from tests.support.lake_flow import check_windows, list_windows, plans, write_everything
from tests.support.lakes import Cluster
from tests.support.ledgers import new_ledger
from tests.support.mysql_flow import connected, writing
from tests.support.mysql_lake_flow import MySQLLakeFlow

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(params=["iceberg", "delta"])
def flow(
    request: pytest.FixtureRequest, mysql_database: Endpoint, lake_cluster: Cluster, tmp_path: Path
) -> Iterator[MySQLLakeFlow]:
    name = f"m{uuid.uuid4().hex[:8]}"
    made = MySQLLakeFlow.make_into(request.param, lake_cluster, mysql_database, tmp_path, name, server=mysql_database)
    assert isinstance(made, MySQLLakeFlow)
    yield made
    made.close()


@pytest.mark.statement("K2", "W1", "W2")
def test_all_tables_equal_their_sources_at_one_frontier(flow: MySQLLakeFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """K2, W1, W2: by one reader of the binlog, under transactions over all of them that empty tables, too."""
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
    assert {one.phase for one in flow.hydrations()} == {Phase.STEADY_STATE}
    assert {one.holder for one in flow.hydrations()} == {None}
    assert len(flow.hydrations()) == len(flow.names) + 1
    check_windows(flow)
    assert flow.with_run("run 3").plan() is None


@pytest.mark.statement("W2", "X1", "X2")
@pytest.mark.fault(3)
def test_a_killed_lane_and_a_lost_ledger_bring_each_window_once(flow: MySQLLakeFlow, tmp_path: Path) -> None:
    """W2, X1, X2: one table has the window, and the others get it.

    An XA transaction over another table is prepared in the window that was killed, and committed behind it.
    """
    flow.change("CREATE TABLE other (id int PRIMARY KEY)")
    assert flow.run()
    before = plans(flow)
    points = tmp_path / "failpoints"
    points.mkdir()
    (points / "points").write_text(f"{Step.AFTER_SINK_COMMIT.value}=kill@1")
    write_everything(flow, 1)
    with connected(flow.server) as cursor:
        for each in ("XA START 'x'", "INSERT INTO other VALUES (1)", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(each)
        second = flow.with_run("run 2")
        process = second.process(tmp_path, **{VARIABLE: str(points)})
        assert process.wait(timeout=900) == -9, (tmp_path / "flow.log").read_text()[-3000:]
        assert len(flow.differs()) == 2
        cursor.execute("XA COMMIT 'x'")
    write_everything(flow, 2)
    new_ledger(tmp_path / "fresh.db")
    fresh = replace(flow.with_run("run 3"), ledger=str(tmp_path / "fresh.db"))
    assert fresh.run()
    fresh.with_run("run 4").run()
    assert fresh.differs() == {}
    assert plans(fresh) == before
    check_windows(fresh)


@pytest.mark.statement("W6")
def test_a_table_that_is_refused_is_left_out_and_returns(flow: MySQLLakeFlow) -> None:
    """W6: the others are followed, and only it is read again."""
    assert flow.run()
    before = plans(flow)
    write_everything(flow, 1)
    flow.change("ALTER TABLE b MODIFY v varchar(20)", "UPDATE b SET v = 'x' WHERE id = 50", "UPDATE a SET v = 8")
    second = flow.with_run("run 2")
    tables: Any = None
    with pytest.raises(AirflowFailException, match=r"1 of 3 tables have failed:\n- [^\n]*\.b: "):
        tables = second.plan()
    with pytest.raises(AirflowFailException, match=r"\.b: "):
        second.hydrate(tables or second.pushed)
    assert flow.differs("a", "c") == {}
    flow.change("DELETE FROM b WHERE id < 20 OR id = 50", "ALTER TABLE b MODIFY v int", "UPDATE c SET v = 9")
    assert flow.with_run("run 3").run()
    assert flow.differs() == {}
    after = plans(flow)
    assert {name for name in after if after[name] != before[name]} == {"b"}
    check_windows(replace(flow, names=("a", "c")))
