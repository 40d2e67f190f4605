"""Every type of PostgreSQL 18: what is carried arrives in a target of identical types, the rest is refused by name."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.exceptions import SinkRefused, SourceRefused
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from tests import types_postgres as typed
from tests.support import type_page
from tests.support.postgres import connected, run
from tests.support.reading import MANY_BYTES

pytestmark = pytest.mark.integration

Open = Callable[..., Source]


@pytest.fixture
def opened(database: Endpoint) -> Iterator[Open]:
    """Open sources in the database; all are closed in the end."""
    with ExitStack() as stack:

        def open_(table: str, **declared: Any) -> Source:
            return stack.enter_context(closing(PostgresSource(conn_id="s", table=table, **declared).open(database)))

        yield open_


@pytest.fixture
def sink(other: Endpoint) -> Iterator[Sink]:
    """Open a sink into ``raw.every`` of the other database."""
    with closing(PostgresSink(conn_id="sink", table="raw.every").open(other)) as sink:
        yield sink


@pytest.fixture
def other(database: Endpoint) -> Iterator[Endpoint]:
    """A second database, in which the user's own types get other numbers than in the first."""
    name = f"{database.database}_sink"
    run(database, f"CREATE DATABASE {name}")
    endpoint = replace(database, database=name)
    run(endpoint, "CREATE TYPE shift AS ENUM ('other', 'numbers')")
    yield endpoint
    run(database, f"DROP DATABASE {name} WITH (FORCE)")


def spelled(endpoint: Endpoint, table: str) -> list[tuple[str, str]]:
    """Return columns and types of a table as the server spells them."""
    return run(
        endpoint,
        "SET search_path TO ''",
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute"
        f" WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum",
    )


def test_the_table_of_types_leaves_none_out(database: Endpoint) -> None:
    """X4: whatever type this server has is either in the table of all types or among those that are refused."""
    with connected(database) as connection:
        typed.define_types(connection)
        typed.create_table(connection, "public.every", rows=False)
    refused = ", ".join(f"'{name}'" for name in typed.REFUSED)
    left_out = run(
        database,
        "SELECT t.typname::text FROM pg_type t WHERE t.typnamespace = 'pg_catalog'::regnamespace"
        " AND t.typtype IN ('b', 'r', 'm') AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)"
        " AND t.oid NOT IN (SELECT atttypid FROM pg_attribute WHERE attrelid = 'public.every'::regclass)"
        f" AND t.typname <> ALL (ARRAY[{refused}])",
    )
    assert left_out == []


@pytest.mark.statement("X4")
def test_every_type_arrives_as_it_left(database: Endpoint, other: Endpoint, opened: Open, sink: Sink) -> None:
    """X4: planned, fitted, created with identical types; and each value, sent binary, is read back the same."""
    for endpoint in (database, other):
        with connected(endpoint) as connection:
            typed.define_types(connection)
    with connected(database) as connection:
        typed.create_table(connection, "public.every")
    source = opened("public.every")
    snapshot = source.snapshot()
    write = sink.fit(snapshot.columns, mode="upsert", key=snapshot.key)
    sink.prepare(write)
    assert sink.fit(snapshot.columns, mode="upsert", key=snapshot.key) == write, "it fits what it has made itself"
    assert spelled(other, "raw.every") == spelled(database, "public.every")
    assert [(column.name, column.type) for column in write.columns] == spelled(database, "public.every")
    assert snapshot.total == typed.row_count()

    read, moved = source.read_spec(snapshot), 0
    for piece in source.ranges(snapshot, rows=4, bytes=MANY_BYTES):
        query = source.slice(read, piece.bounds, "0.0").query
        with (
            connected(database) as reader,
            connected(other) as writer,
            reader.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()) as out,
            writer.cursor().copy(f"COPY {write.target} FROM STDIN (FORMAT binary)".encode()) as into,
        ):
            for block in out:
                into.write(block)
        there = sink.slice_query(write, piece.bounds)
        assert _as_text(other, there) == _as_text(database, query)
        moved += len(_as_text(other, there))
    assert moved == typed.row_count()
    found = {
        type_: _values(other, "raw.every", name) == _values(database, "public.every", name)
        for name, (type_, _) in typed.COLUMNS.items()
    }
    assert all(found.values())
    text = type_page.page(found, typed.REFUSED)
    assert type_page.keep(text) == text, f"the page is another one: set {type_page.WRITE}=1 to write it again"


@pytest.mark.statement("X4", "X5")
def test_types_that_cannot_be_carried_are_refused_by_column(database: Endpoint, opened: Open) -> None:
    """X4, X5: or the plan refuses the column by name; as text it can be had all the same."""
    columns = {f"c_{name}": name for name in typed.REFUSED}
    columns |= {f"a_{name}": f"{name}[]" for name in typed.REFUSED if not name.startswith("pg_")}
    run(
        database,
        "SET allow_system_table_mods = on",
        f"CREATE TABLE refused (id int PRIMARY KEY, {', '.join(' '.join(column) for column in columns.items())})",
        "INSERT INTO refused (id, c_regclass) VALUES (1, 'pg_class')",
    )
    source = opened("refused")
    with pytest.raises(SourceRefused) as raised:
        source.snapshot()
    for column, type_ in columns.items():
        assert f"{column} ({type_}: {typed.REFUSED[type_.removesuffix('[]')]})" in str(raised.value)
    source = opened("refused", as_text=tuple(columns))
    snapshot = source.snapshot()
    assert {column.type for column in snapshot.columns} == {"integer", "text"}
    (piece,) = source.ranges(snapshot, rows=10, bytes=MANY_BYTES)
    assert "pg_class" in run(database, source.slice(source.read_spec(snapshot), piece.bounds, "0.0").query)[0]


@pytest.mark.statement("X4", "X5")
def test_types_that_the_sink_lacks_are_refused_by_column(database: Endpoint, opened: Open, sink: Sink) -> None:
    """X4, X5: enums, domains, composites, ranges, extensions: each by its column."""
    with connected(database) as connection:
        typed.define_types(connection)
        typed.create_table(connection, "public.every", rows=False)
    source = opened("public.every")
    snapshot = source.snapshot()
    with pytest.raises(SinkRefused) as raised:
        sink.fit(snapshot.columns, mode="append", key=snapshot.key)
    named = [
        column for column in snapshot.columns if f"column {column.name} has type {column.type}," in str(raised.value)
    ]
    assert named == [column for column in snapshot.columns if column.type.startswith(f"{typed.SCHEMA}.")]
    assert len(named) >= 10


def _values(endpoint: Endpoint, table: str, column: str) -> list[tuple[str]]:
    return run(endpoint, f"SELECT {column}::text FROM {table} ORDER BY id")


def _as_text(endpoint: Endpoint, query: str) -> list[tuple[str]]:
    return run(endpoint, f"SET search_path TO {typed.SCHEMA}, public", f"SELECT q::text FROM ({query}) q ORDER BY q.id")
