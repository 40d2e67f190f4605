"""``catch_up`` into tables that Spark's own connectors write: ranges, then windows of changes by MERGE."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import COMPACTED, Kind, Note
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import open_table
from airflow_provider_backpressure.connectors.lake.tasks import spark_write_changes
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.progress.summary import held_back
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.core.stage_metrics import Stage
from airflow_provider_backpressure.exceptions import LedgerRefused, PlanSuperseded, SinkRefused
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.runners.session_settings import TIME_ZONE
from dev.lake_connectors import SMALL, make_connector_conf
from dev.services import Services
from tests import types_mysql
from tests.integration.test_catch_up import killed_at
from tests.integration.test_lakes import SALES, source_rows
from tests.support import mysql_catching_up
from tests.support.catching_up import FILL, TABLE, Writer
from tests.support.composed import IN_PROCESS, Composed
from tests.support.lakes import Cluster
from tests.support.lakes_catching_up import FollowedTable, follow
from tests.support.mysql_catching_up import MySQLWriter

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def runner(lake_cluster: Cluster, logins: dict[str, Endpoint]) -> Iterator[ConnectRunner]:
    """One session for all tests of the module, as a lane has one for all ranges."""
    with closing(ConnectRunner(lake_cluster.url, logins, ui_url=lake_cluster.ui_url)) as runner:
        yield runner


@pytest.fixture(params=["delta", "iceberg"])
def followed(
    request: pytest.FixtureRequest,
    database: Endpoint,
    ledger_url: str,
    lake_cluster: Cluster,
    logins: dict[str, Endpoint],
    runner: ConnectRunner,
) -> FollowedTable:
    """``public.t`` into a new table of each format."""
    into = lake_cluster.place(request.param, f"t_{uuid.uuid4().hex[:8]}", maintain_every=0)
    here = Composed(source=database, sink=database, ledger_url=ledger_url, remote=IN_PROCESS)
    return follow(here, lake_cluster, into, runner, logins)


def list_notes(followed: FollowedTable) -> list[Note]:
    """Return the notes of the table's own log."""
    place = followed.composed.into
    with closing(SqlSession(replace(NOWHERE, password=followed.cluster.url))) as session:
        table: Any = open_table(session.get(), place["format"], place["table"])
        table.state()
        notes = table._notes if place["format"] == "iceberg" else [each.note for each in table._commits]
    return [note for note in notes if note is not None]


def check_commits(followed: FollowedTable) -> None:
    """Fail where a window or a range was committed twice."""
    tokens = [note.token for note in list_notes(followed) if note.kind is Kind.MARK]
    assert tokens
    assert len(tokens) == len(set(tokens))


@pytest.mark.statement("K2", "T8")
def test_a_table_that_changes_while_it_is_read_has_caught_up_in_the_end(followed: FollowedTable) -> None:
    """K2, T8: inserts, updates, deletes and keys that change, between the ranges and after them."""
    followed.source(TABLE, FILL.format(600), "ANALYZE t")
    planned = followed.plan()
    assert planned.verdict is Verdict.PLANNED
    with followed.ports() as ports:
        ports.hydrator().run()
        followed.source("UPDATE t SET v = 1 WHERE id <= 300", "DELETE FROM t WHERE id > 550")
        followed.source("UPDATE t SET id = id + 100000 WHERE id BETWEEN 400 AND 420")
        with pytest.raises(LedgerRefused, match="consistent from"):
            followed.finish()
        assert ports.planner().follow()
        ports.hydrator().run()
        assert not ports.planner().follow()
    assert followed.finish().phase is Phase.STEADY_STATE
    assert followed.differs() == (0, 0)
    followed.source(
        "INSERT INTO t VALUES (20000, 7, NULL, '')", "DELETE FROM t WHERE id = 1", "UPDATE t SET v = 9 WHERE id = 2"
    )
    assert followed.go().verdict is Verdict.PLANNED
    assert followed.differs() == (0, 0)
    check_commits(followed)


LONG = ("ALTER TABLE t ALTER doc SET STORAGE EXTERNAL", "UPDATE t SET doc = repeat(md5(id::text), 90)")


@pytest.mark.statement("K2", "T8")
def test_values_that_the_log_leaves_out_are_kept(followed: FollowedTable) -> None:
    """K2, T8: long values that did not change: of a row, and of one whose key changed, once and twice."""
    followed.source(TABLE, FILL.format(200), *LONG, "ANALYZE t")
    followed.plan()
    followed.source("UPDATE t SET v = 1 WHERE id <= 20", "UPDATE t SET id = id + 1000 WHERE id BETWEEN 11 AND 30")
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)

    followed.source(
        "UPDATE t SET v = v + 1",
        "UPDATE t SET doc = repeat('x', 3000) WHERE id BETWEEN 40 AND 50",
        "UPDATE t SET v = v + 1 WHERE id BETWEEN 45 AND 60",
        "UPDATE t SET id = id + 2000 WHERE id BETWEEN 48 AND 70",
        "UPDATE t SET id = id + 3000, v = -1 WHERE id BETWEEN 2050 AND 2060",
        "DELETE FROM t WHERE id BETWEEN 80 AND 90",
        "INSERT INTO t VALUES (85, 5, repeat('y', 4000), NULL), (86, 6, NULL, 'n')",
        "UPDATE t SET v = 50 WHERE id = 85",
        "UPDATE t SET doc = NULL WHERE id = 91",
    )
    assert followed.go().verdict is Verdict.PLANNED
    assert followed.differs() == (0, 0)


@pytest.mark.statement("K2", "T8", "X2")
@pytest.mark.fault(3)
def test_a_table_that_is_truncated_is_emptied_also_without_the_ledger(followed: FollowedTable, tmp_path: Path) -> None:
    """K2, T8, X2: with rows before and behind it in one window, with none, and a window that changes nothing."""
    followed.source(TABLE, FILL.format(50), *LONG, "ANALYZE t")
    followed.go()
    followed.source("UPDATE t SET v = 3 WHERE id = 1", "TRUNCATE t", f"INSERT INTO t VALUES (1, 1, {BIG}, 'a')")
    followed.source("INSERT INTO t VALUES (2, 1, 'b', 'b')", "UPDATE t SET v = 2", "DELETE FROM t WHERE id = 2")
    followed = followed.without_ledger(tmp_path)
    followed.go()
    followed.go()
    assert followed.differs() == (0, 0)
    assert [row[:2] for row in followed.rows()] == [(1, 2)]

    followed.source("INSERT INTO t VALUES (7, 1, NULL, NULL)", "DELETE FROM t WHERE id = 7", "TRUNCATE t")
    followed.go()
    assert followed.rows() == []
    followed.source("INSERT INTO t VALUES (8, 1, NULL, NULL)", "DELETE FROM t WHERE id = 8")
    assert followed.go().verdict is Verdict.PLANNED
    assert followed.rows() == []


BIG = "repeat('z', 5000)"


@pytest.mark.statement("K2", "X3")
def test_a_table_that_was_set_back_between_two_runs_is_refused_until_a_restart(followed: FollowedTable) -> None:
    """K2, X3: to before the last window, so that its changes would be lost in silence."""
    followed.source(TABLE, FILL.format(50), "ANALYZE t")
    followed.go()
    ended = followed.cluster.find_version(followed.composed.into)
    followed.source("UPDATE t SET v = 1 WHERE id <= 10", "DELETE FROM t WHERE id = 20")
    planned = followed.plan()
    begun = followed.cluster.find_version(followed.composed.into)
    followed.drain()
    followed.finish()
    assert planned.verdict is Verdict.PLANNED
    assert followed.differs() == (0, 0)
    followed.source("UPDATE t SET v = v + 2 WHERE id > 40")
    for version in (begun, ended):
        followed.cluster.set_back(followed.composed.into, version)
        with pytest.raises((SinkRefused, LedgerRefused), match=r"no longer has the commit|from an older backup"):
            followed.plan()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


@pytest.mark.statement("K2", "X1", "X2")
@pytest.mark.fault(3)
def test_a_lane_that_is_killed_around_its_commit_brings_each_window_once(
    followed: FollowedTable, tmp_path: Path
) -> None:
    """K2, X1, X2: before the commit of the window, and behind it; then without the ledger."""
    followed.source(TABLE, FILL.format(200), "ANALYZE t")
    followed.go()
    for number, step in enumerate((Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT), 1):
        followed.source(f"UPDATE t SET v = {number}", f"DELETE FROM t WHERE id = {number}")
        followed.source(f"UPDATE t SET id = id + 1000 WHERE id = {number + 50}")
        followed.plan()
        before = followed.rows()
        killed_at(followed, tmp_path, step)
        assert (followed.rows() == before) is (step is Step.BEFORE_SINK_COMMIT)
        again = followed.without_ledger(tmp_path) if step is Step.AFTER_SINK_COMMIT else followed
        assert again.plan().verdict is Verdict.RESUMED
        again.drain()
        again.finish()
        assert again.differs() == (0, 0)
    check_commits(followed)


@pytest.mark.statement("K2", "X1")
@pytest.mark.fault(13)
def test_a_late_window_is_refused(followed: FollowedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """K2, X1: a lane wakes up before its commit when its window is in, and another when its plan has a newer epoch."""
    followed.source(TABLE, FILL.format(100), "ANALYZE t")
    followed.go()
    publish = spark_write_changes.publish_changes
    held: list[Any] = []

    def hold(*arguments: Any) -> None:
        held.append(arguments)
        publish(*arguments)

    monkeypatch.setattr(spark_write_changes, "publish_changes", hold)
    followed.source("UPDATE t SET v = 1", "DELETE FROM t WHERE id = 1")
    followed.go()
    followed.source("UPDATE t SET v = 2", "INSERT INTO t VALUES (1, 2, NULL, 'back')")
    followed.go()
    for late in held:
        publish(*late)
    assert followed.differs() == (0, 0)
    check_commits(followed)

    def overtake(*arguments: Any) -> None:
        with followed.ports() as ports:
            ports.sink.renew(ports.plan.plan_id)
        publish(*arguments)

    monkeypatch.setattr(spark_write_changes, "publish_changes", overtake)
    followed.source("UPDATE t SET v = 3")
    before = followed.rows()
    followed.plan()
    with pytest.raises(PlanSuperseded):
        followed.drain()
    assert followed.rows() == before
    monkeypatch.undo()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


def maintain(followed: FollowedTable, every: int) -> FollowedTable:
    """Return the hydration with maintenance after so many windows, from its next run on."""
    into = {**followed.composed.into, "maintain_every": every}
    return replace(followed, composed=replace(followed.composed, into=into))


def keep_nothing_old(followed: FollowedTable) -> None:
    """Let the table's own properties ask for no old version at all."""
    delta = followed.composed.into["format"] == "delta"
    name = "delta.deletedFileRetentionDuration" if delta else "history.expire.max-snapshot-age-ms"
    value = "interval 0 hours" if delta else "1"
    with closing(SqlSession(replace(NOWHERE, password=followed.cluster.url))) as session:
        table = followed.composed.into["table"]
        session.get().sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{name}' = '{value}')").collect()


def describe(followed: FollowedTable) -> tuple[int, int, set[str], dict[str, str]]:
    """Return the numbers of files and of deletes of the present version, what is left of old ones, our properties.

    What is left: files of the table's folder, or snapshots.
    """
    place = followed.composed.into
    with closing(SqlSession(replace(NOWHERE, password=followed.cluster.url))) as session:
        table: Any = open_table(session.get(), place["format"], place["table"])
        properties = table.properties()
        if place["format"] == "iceberg":
            files = [row["content"] for row in table.ask(f"SELECT content FROM {table.quoted}.files")]
            left = {str(row["snapshot_id"]) for row in table.ask(f"SELECT snapshot_id FROM {table.quoted}.snapshots")}
            assert set(files) <= {0, 1}, "no equality deletes"
            return files.count(0), files.count(1), left, properties
    folder = followed.cluster.find_folder(place)
    adds = DeltaTable(folder).get_add_actions(flatten=True)
    vectors = [name for name in adds.schema.names if name.startswith("deletionVector")]
    deletes = sum(row is not None for name in vectors[:1] for row in adds.column(name).to_pylist())
    return adds.num_rows, deletes, {path.name for path in folder.glob("*.parquet")}, properties


@pytest.mark.statement("K3", "X3")
def test_a_table_is_compacted_and_its_old_versions_go_and_nothing_that_a_plan_needs(
    followed: FollowedTable, tmp_path: Path
) -> None:
    """K3, X3: after every second window, in its attempt; then another run goes on without the ledger."""
    followed.source(TABLE, FILL.format(60), "ANALYZE t")
    followed.go()
    keep_nothing_old(followed)
    _, _, first, _ = describe(followed)
    followed.source("UPDATE t SET v = 1 WHERE id <= 10", "DELETE FROM t WHERE id = 60")
    followed.go()
    files, deletes, before, properties = describe(followed)
    assert files > 1 or followed.composed.into["format"] == "delta"
    assert COMPACTED not in properties, "it is switched off"
    followed = maintain(followed, 2)
    followed.source("UPDATE t SET v = 2 WHERE id BETWEEN 5 AND 15")
    followed.go()
    assert followed.differs() == (0, 0)
    files, deletes, left, properties = describe(followed)
    assert (files, deletes) == (1, 0)
    assert COMPACTED in properties
    assert not first & left, "versions of the first run are kept"
    if followed.composed.into["format"] == "iceberg":
        ended = before - first
        assert len(ended & left) == 1, "only the snapshot at the end of the run before is kept"
        assert Kind.MARK in {note.kind for note in list_notes(followed)}
    with followed.ports() as ports:
        spent = ports.ledger.flow(ports.hydration.id, seconds=600)[Stage.MAINTENANCE]
        assert spent.busy > 0.1
        assert "maintenance" in held_back({Stage.MAINTENANCE: spent})
    followed.source("UPDATE t SET id = id + 100 WHERE id = 3", "INSERT INTO t VALUES (500, 1, NULL, NULL)")
    followed = followed.without_ledger(tmp_path)
    followed.go()
    followed.go()
    assert followed.differs() == (0, 0)
    check_commits(followed)


@pytest.mark.statement("K3", "X1", "X2")
@pytest.mark.fault(3)
def test_a_lane_that_is_killed_in_the_maintenance_leaves_it_to_a_later_window(
    followed: FollowedTable, tmp_path: Path
) -> None:
    """K3, X1, X2: between the compaction and the removal of old versions; then without the ledger."""
    followed.source(TABLE, FILL.format(60), "ANALYZE t")
    followed.go()
    keep_nothing_old(followed)
    followed.source("UPDATE t SET v = 1 WHERE id <= 10")
    followed.go()
    followed = maintain(followed, 2)
    followed.source("UPDATE t SET v = 2 WHERE id <= 20", "DELETE FROM t WHERE id = 60")
    followed.plan()
    killed_at(followed, tmp_path, Step.AFTER_SINK_COMMIT, 2)
    assert followed.differs() == (0, 0)
    files, deletes, _, properties = describe(followed)
    assert (files, deletes) == (1, 0)
    assert COMPACTED not in properties
    followed = followed.without_ledger(tmp_path)
    assert followed.plan().verdict is Verdict.RESUMED
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)
    followed.source("UPDATE t SET v = 3 WHERE id <= 30")
    followed.go()
    assert followed.differs() == (0, 0)
    files, deletes, _, properties = describe(followed)
    assert (files, deletes) == (1, 0)
    assert COMPACTED in properties
    check_commits(followed)


@pytest.mark.statement("K2", "X2")
@pytest.mark.parametrize("followed", ["iceberg"], indirect=True)
def test_a_writer_at_random_and_the_target_is_the_source_when_it_pauses(followed: FollowedTable) -> None:
    """K2, X2: inserts, updates, deletes, keys that change, long values, long transactions and rollbacks."""
    followed.source(TABLE, FILL.format(1_000), "ANALYZE t")
    with Writer(followed.composed.source, seed=7, keys=1_000, every=0.01).writing() as writer:
        followed.plan()
        with followed.ports() as ports:
            ports.hydrator().run()
            assert ports.planner().follow()
            ports.hydrator().run()
    followed.drain()
    followed.finish()
    # What was written behind the last window comes with the next run.
    followed.go()
    assert writer.changes > 50
    assert followed.differs() == (0, 0)
    with Writer(followed.composed.source, seed=8, keys=1_000, every=0.01).writing():
        followed.plan()
        followed.drain()
    followed.go()
    assert followed.differs() == (0, 0)


@pytest.mark.statement("K2", "X4")
@pytest.mark.parametrize("followed", ["delta"], indirect=True)
def test_every_type_is_replayed_as_it_is_read(followed: FollowedTable) -> None:
    """K2, X4: the same rows by ranges and by the log, each value the one written down."""
    database = followed.composed.source
    followed = replace(followed, composed=replace(followed.composed, table="public.sales"))
    followed.source(*SALES.split(";"))
    followed.go()
    assert followed.rows() == source_rows(database)
    followed.source("UPDATE sales SET id = -id", "UPDATE sales SET shop = 7 WHERE id > -100")
    followed.go()
    assert followed.rows() == source_rows(database)


ODD = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
"""Settings of a server by which Spark writes other times than it is given."""


@pytest.fixture
def odd_cluster(services: Services) -> Iterator[Cluster]:
    """A server with :data:`ODD`."""
    folder, name = services.guest("odd"), "connect:odd"
    conf = {**SMALL, **make_connector_conf(folder), **ODD}
    server = services.up(name, jars=(), driver_memory="1g", spark_conf=conf)[name]
    yield Cluster(url=server.url, ui_url=server.ui_url, folder=folder)
    services.down(name)


@pytest.mark.statement("K2", "X4")
def test_settings_of_a_server_change_no_time(odd_cluster: Cluster, database: Endpoint, ledger_url: str) -> None:
    """K2, X4: neither of a range nor of a window; read without Spark, which undoes some of what it did.

    The last two are one hour apart, and have one text in the server's zone.
    """
    logins: dict[str, Endpoint] = {}
    here = Composed(source=database, sink=database, ledger_url=ledger_url, remote=IN_PROCESS)
    rows = [
        (1, date(1500, 3, 1), datetime(2024, 1, 1, 0, 0, 0, 123456, UTC), datetime(2024, 3, 10, 2, 30, 0, 7)),
        (2, date(1, 1, 1), datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, 0, 0, 0, 1)),
        (3, date(9999, 12, 31), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), datetime(1582, 10, 10)),
        (4, date(2024, 11, 3), datetime(2024, 11, 3, 5, 30, tzinfo=UTC), datetime(2024, 11, 3, 1, 30)),
        (5, date(2024, 11, 3), datetime(2024, 11, 3, 6, 30, tzinfo=UTC), datetime(2024, 11, 3, 1, 30)),
    ]
    place = odd_cluster.place("delta", "odd")
    columns = "id INT, d DATE, at TIMESTAMP_LTZ, here TIMESTAMP_NTZ"
    odd_cluster.sql(f"CREATE TABLE {place['table']} ({columns}) USING delta PARTITIONED BY (at)")
    with closing(ConnectRunner(odd_cluster.url, logins, ui_url=odd_cluster.ui_url)) as runner:
        followed = follow(here, odd_cluster, place, runner, logins)
        followed.source("CREATE TABLE t (id int PRIMARY KEY, d date, at timestamptz, here timestamp)")
        for id_, *values in rows:
            quoted = ", ".join(f"'{value.isoformat()}'" for value in values)
            followed.source(f"INSERT INTO t VALUES ({id_}, {quoted})")
        followed.go()
        assert followed.rows() == rows
        followed.source("UPDATE t SET id = id + 10")
        assert followed.go().verdict is Verdict.PLANNED
        assert followed.rows() == [(id_ + 10, *values) for id_, *values in rows]
        assert runner._open().conf.get(TIME_ZONE) == "UTC"
        runner._set_zone(runner._open(), Transform(sql="SELECT 1"))
        assert runner._open().conf.get(TIME_ZONE) == ODD[TIME_ZONE], "as an earlier release has planned"


@pytest.fixture(params=["delta", "iceberg"])
def followed_mysql(
    request: pytest.FixtureRequest,
    mysql_database: Endpoint,
    ledger_url: str,
    lake_cluster: Cluster,
    logins: dict[str, Endpoint],
    runner: ConnectRunner,
) -> FollowedTable:
    """``t`` of MySQL into a new table of each format."""
    into = lake_cluster.place(request.param, f"m_{uuid.uuid4().hex[:8]}")
    here = Composed(source=mysql_database, sink=mysql_database, ledger_url=ledger_url, remote=IN_PROCESS)
    return follow(replace(here, kind="mysql", table="t"), lake_cluster, into, runner, logins)


@pytest.mark.statement("K2", "T8", "X2")
def test_a_table_of_mysql_is_followed_also_without_the_ledger(followed_mysql: FollowedTable, tmp_path: Path) -> None:
    """K2, T8, X2: inserts, updates, deletes, keys that change, and a truncate, by the binlog."""
    followed = followed_mysql
    followed.source(mysql_catching_up.TABLE, mysql_catching_up.FILL.format(600), "ANALYZE TABLE t")
    assert followed.plan().verdict is Verdict.PLANNED
    followed.source("UPDATE t SET v = 2 WHERE id > 500")
    with followed.ports() as ports:
        ports.hydrator().run()
        followed.source("UPDATE t SET v = 1 WHERE id <= 300", "DELETE FROM t WHERE id > 550")
        followed.source("UPDATE t SET id = id + 100000 WHERE id BETWEEN 400 AND 420")
        assert ports.planner().follow()
        ports.hydrator().run()
        assert not ports.planner().follow()
    assert followed.finish().phase is Phase.STEADY_STATE
    assert followed.differs() == (0, 0)

    followed.source("UPDATE t SET v = 3", "TRUNCATE TABLE t", "INSERT INTO t VALUES (1, 1, NULL, ''), (2, 2, 'b', 'n')")
    followed.source("REPLACE INTO t VALUES (1, 5, 'x', NULL)", "DELETE FROM t WHERE id = 2")
    followed.plan()
    before = followed.rows()
    killed_at(followed, tmp_path, Step.AFTER_SINK_COMMIT)
    assert followed.rows() != before
    followed = followed.without_ledger(tmp_path)
    followed.go()
    assert followed.differs() == (0, 0)
    assert [row[:2] for row in followed.rows()] == [(1, 5)]
    check_commits(followed)


@pytest.mark.statement("K2", "X2")
@pytest.mark.parametrize("followed_mysql", ["delta"], indirect=True)
def test_a_writer_in_mysql_at_random_and_the_target_is_the_source_when_it_pauses(followed_mysql: FollowedTable) -> None:
    """K2, X2: inserts, updates, deletes, keys that change, REPLACE, long transactions and rollbacks."""
    followed = followed_mysql
    followed.source(mysql_catching_up.TABLE, mysql_catching_up.FILL.format(1_000), "ANALYZE TABLE t")
    with MySQLWriter(followed.composed.source, seed=7, keys=1_000, every=0.01).writing() as writer:
        followed.plan()
        with followed.ports() as ports:
            ports.hydrator().run()
            assert ports.planner().follow()
            ports.hydrator().run()
    followed.drain()
    followed.finish()
    followed.go()
    assert writer.changes > 50
    assert followed.differs() == (0, 0)


@pytest.mark.statement("K2", "X4")
@pytest.mark.parametrize("followed_mysql", ["iceberg"], indirect=True)
def test_every_type_of_mysql_is_replayed_as_it_is_read(followed_mysql: FollowedTable) -> None:
    """K2, X4: the rows that ranges bring are those that the log brings."""
    followed_mysql.source(*types_mysql.statements("t"))
    followed_mysql.go()
    read = followed_mysql.rows()
    followed_mysql.source("UPDATE t SET id = id + 1000")
    followed_mysql.go()
    replayed = followed_mysql.rows()
    assert len(read) > 5
    assert [row[1:] for row in replayed] == [row[1:] for row in read]
    assert [row[0] for row in replayed] == [row[0] + 1000 for row in read]
