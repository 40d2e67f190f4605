"""Which tables a pattern means in a real PostgreSQL and a real MySQL."""

import logging
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import build_columns_query, find, place
from airflow_provider_backpressure.connectors.postgres.connect import READ_ONLY, Session, Settings, keep_connections
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.predicates import Cursor
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import PREPARING
from airflow_provider_backpressure.connectors.postgres.source import catalog_lookup_batch
from airflow_provider_backpressure.connectors.postgres.source.catalog_lookup_batch import expect, find_expected
from airflow_provider_backpressure.connectors.postgres.source.refused_types import find_uncarried
from airflow_provider_backpressure.connectors.postgres.source.snapshot_keeper import SnapshotKeeper
from airflow_provider_backpressure.connectors.postgres.source.table import ERRORS
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import MySQLSource, PostgresSource
from tests.support import mysql, postgres
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements that sessions run, as they run them."""
    found: list[str] = []
    execute = Cursor.execute

    def note(self: Cursor, query: Any, *args: Any, **options: Any) -> Cursor:
        text = query.as_string(None) if isinstance(query, sql.Composable) else query
        text = text.decode() if isinstance(text, bytes) else text
        # A session's own settings are set by each connection.
        if "set_config" not in text:
            found.append(text)
        return execute(self, query, *args, **options)

    monkeypatch.setattr(Cursor, "execute", note)
    return found


def test_tables_of_postgresql(database: Endpoint) -> None:
    """Plain and partitioned tables that the role may read, as SQL spells them; no partitions, views, none of ours."""
    postgres.run(
        database,
        "CREATE TABLE orders (id int)",
        'CREATE TABLE "Odd Orders" (id int)',
        "CREATE TABLE parts (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        "CREATE VIEW seen AS SELECT 1 AS id",
        "CREATE TABLE backpressure_plan (id int)",
        "CREATE SCHEMA raw CREATE TABLE orders (id int)",
    )
    source = PostgresSource(conn_id="shop", tables="public.*")
    assert [table.spelled for table in source.found(database)] == [
        'public."Odd Orders"',
        "public.orders",
        "public.parts",
    ]
    everywhere = PostgresSource(conn_id="shop", tables="*.orders").found(database)
    assert [table.spelled for table in everywhere] == ["public.orders", "raw.orders"]


def test_tables_of_mysql(mysql_database: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """Tables of any engine; no views, and no tables of the server or of this package. The log names the latter."""
    caplog.set_level(logging.INFO)
    mysql.run(
        mysql_database,
        "CREATE TABLE orders (id int)",
        "CREATE TABLE `odd orders` (id int)",
        "CREATE VIEW seen AS SELECT 1 AS id",
        "CREATE TABLE backpressure_plan (id int)",
    )
    name = mysql_database.database
    found = MySQLSource(conn_id="shop", tables=f"{name}.*").found(mysql_database)
    assert [table.spelled for table in found] == [f"{name}.`odd orders`", f"{name}.orders"]
    assert f"this package's own: {name}.backpressure_plan." in caplog.text
    everywhere = {table.schema for table in MySQLSource(conn_id="shop", tables="*").found(mysql_database)}
    assert name in everywhere
    assert everywhere.isdisjoint({"mysql", "sys", "information_schema", "performance_schema"})


def test_sessions_of_many_tables_take_over_connections(database: Endpoint) -> None:
    """One after the other uses the same; other settings have another, and one that was lost is opened again."""
    pid, count = sql.SQL("SELECT pg_backend_pid()"), sql.SQL("SELECT count(*) FROM pg_stat_activity WHERE pid = %s")

    def ask(settings: Settings | None = None) -> int:
        with closing(Session(database, errors=ERRORS, settings=settings)) as session:
            return int(session.value(pid))

    assert ask() != ask(), "kept by nobody"
    with keep_connections():
        first, other = ask(), ask(READ_ONLY)
        assert (ask(), ask(READ_ONLY)) == (first, other)
        assert first != other
        postgres.run(database, f"SELECT pg_terminate_backend({first})")
        again = ask()
        assert again != first
        assert ask() == again
    with closing(Session(database, errors=ERRORS)) as session:
        until(lambda: session.value(count, (again,)) == 0, 10)
        assert session.value(count, (other,)) == 0


@pytest.mark.statement("L3")
def test_what_a_server_is_called_is_asked_once_for_many_tables(database: Endpoint, statements: list[str]) -> None:
    """It is asked again once a connection was lost: what answers then may be another server."""

    def ask() -> tuple[str | None, int]:
        before = len(statements)
        with closing(Session(database, errors=ERRORS)) as session:
            return place(session, 7), len(statements) - before

    with keep_connections():
        (name, asked), again = ask(), ask()
        assert asked == 2
        assert again == (name, 0)
        postgres.run(
            database,
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name = 'backpressure control' AND datname = current_database()",
        )
        with closing(Session(database, errors=ERRORS)) as session:
            assert session.value(sql.SQL("SELECT 1")) == 1
        assert ask() == (name, 2)
    assert ask() == (name, 2)


@pytest.mark.statement("L3")
def test_questions_about_a_target_take_no_transaction(database: Endpoint, statements: list[str]) -> None:
    """BEGIN and COMMIT were two of the four round trips of each."""
    columns = (Column(name="id", type="bigint", nullable=False),)
    with closing(PostgresSink(conn_id="warehouse", table="raw.t").open(database)) as sink:
        sink.prepare(sink.fit(columns, mode="append", key=("id",)))
        with in_transactions() as begun:
            assert sink.held() is None
            assert not sink.holds_rows()
            assert sink.epoch("p") is None
            assert sink.markers("p") == {}
    assert begun == []


@contextmanager
def in_transactions() -> Iterator[list[str]]:
    """Give the list of transactions that psycopg begins meanwhile."""
    begun: list[str] = []
    transaction = psycopg.Connection.transaction

    def note(self: psycopg.Connection[Any], *args: Any, **options: Any) -> Any:
        begun.append(self.info.dbname)
        return transaction(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "transaction", note)
        yield begun


def test_snapshots_of_many_tables_take_over_connections(database: Endpoint) -> None:
    """A keeper and its count give theirs to those of the next table; one that was lost is opened again."""
    name = "SELECT pid FROM pg_stat_activity WHERE application_name = 'backpressure keeper' ORDER BY 1"

    def keep() -> list[int]:
        keeper = SnapshotKeeper(database, errors=ERRORS, rows=sql.SQL("SELECT 7"))
        assert keeper.count() == 7
        keeper.check()
        keeper.close()
        return [pid for (pid,) in postgres.run(database, name)]

    with keep_connections():
        first = keep()
        assert len(first) == 2
        assert keep() == first
        postgres.run(database, f"SELECT pg_terminate_backend({first[0]}, 10000)")
        assert len(set(first) | set(keep())) >= 3
    until(lambda: not postgres.run(database, name), 10)


def test_a_plan_looks_a_table_up_once(database: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue answers a question of many joins, and a plan used to ask it four times."""
    postgres.run(
        database, "CREATE TABLE t (id bigint PRIMARY KEY, code text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )
    asked: list[object] = []
    monkeypatch.setattr(catalog_lookup_batch, "find", lambda session, name: asked.append(name) or find(session, name))
    with closing(PostgresSource(conn_id="shop", table="t").open(database)) as source:
        snapshot = source.snapshot()
        source.read_spec(snapshot)
        assert [planned.rows for planned in source.ranges(snapshot, rows=10, bytes=10**9)] == [2]
        assert len(asked) == 1
        source.snapshot()
        assert len(asked) == 2, "each snapshot looks again"


@pytest.mark.statement("L3")
def test_tables_that_are_looked_up_together_are_those_that_are_looked_up_alone(
    database: Endpoint, statements: list[str]
) -> None:
    """With keys, indexes, rights, users' own types, and the columns that cannot be carried; some are not there."""
    postgres.run(
        database,
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        'CREATE TABLE a (id bigint PRIMARY KEY, feels mood, at regclass, word text COLLATE "C" UNIQUE)',
        "CREATE TABLE b (id int, more int[] NOT NULL, path tsquery, UNIQUE (id) DEFERRABLE)",
        "CREATE TABLE c (gone int, there int)",
        "ALTER TABLE c DROP COLUMN gone",
        "CREATE VIEW d AS SELECT * FROM a",
    )
    names = [QualifiedName.parse(name) for name in ("a", "b", "no", "c", "d")]
    with closing(Session(database, errors=ERRORS)) as session:
        alone = [find(session, name) for name in names]
        before = len(statements)
        with expect(names):
            together = [find_expected(session, name) for name in names]
        asked = len(statements) - before
        assert [None if each is None else replace(each, uncarried=None) for each in together] == alone
        for one, other in zip(alone, together, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                columns = [*one.columns]
                assert find_uncarried(session, one, columns) == find_uncarried(session, other, columns)
        found = [find_uncarried(session, each, [*each.columns]) for each in together if each is not None]
    assert [[column.name for column, _ in each] for each in found] == [["at"], ["path"], [], ["at"]]
    # A look of four for all of them, and one for the table that is not there.
    assert asked <= 5, statements[before:]


def test_columns_are_looked_up_without_the_collations_of_the_server(database: Endpoint) -> None:
    """A server has hundreds: only those of the table are read."""
    (collations,) = postgres.run(database, "SELECT count(*) FROM pg_collation")[0]
    postgres.run(database, 'CREATE TABLE t (id bigint PRIMARY KEY, code text COLLATE "C")')
    with closing(Session(database, errors=ERRORS)) as session:
        (oid,) = session.rows(sql.SQL("SELECT 't'::regclass::oid::bigint"))[0]
        query = build_columns_query(session.server_version)
        plan = session.rows(sql.SQL("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ") + query, ([oid],))
    lines = [line for (line,) in plan if "Scan" in line and "pg_collation" in line]
    read = [float(rows) for line in lines for rows in re.findall(r"rows=([\d.]+) loops", line)]
    assert read
    assert max(read) < min(collations, 100)


@pytest.mark.statement("L3")
def test_many_targets_of_a_schema_look_at_its_plan_and_marker_tables_once(
    database: Endpoint, statements: list[str]
) -> None:
    """Each asked the catalogue for three tables, four statements each, and waited for the one before it to create."""
    columns = (Column(name="id", type="bigint", nullable=False),)

    def plan(table: str) -> int:
        before = len(statements)
        with closing(PostgresSink(conn_id="warehouse", table=table).open(database)) as sink:
            sink.prepare(sink.fit(columns, mode="append", key=("id",)))
        return len(statements) - before

    with keep_connections():
        counts = [plan(f"raw.t{number}") for number in range(3)]
    assert counts[2] <= 10, statements[sum(counts[:2]) :]
    assert counts[2] < counts[0]
    last = statements[sum(counts[:2]) :]
    assert not [text for text in last if f"pg_advisory_xact_lock({PREPARING})" in text]
    assert plan("raw.t3") > counts[2], "what was found is forgotten with the connections"
