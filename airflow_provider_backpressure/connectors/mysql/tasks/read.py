"""Rows of a MySQL statement as typed Arrow batches: the server makes the text, and a block of it is parsed at once."""

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow
import pymysql

from airflow_provider_backpressure.connectors.mysql.binlog.event_stream import stream_rows
from airflow_provider_backpressure.connectors.mysql.binlog_position import Ask, Place, check_applied
from airflow_provider_backpressure.connectors.mysql.connect import Connection, connect
from airflow_provider_backpressure.connectors.mysql.errors import TEXT_REMEDY, Errors, code, words
from airflow_provider_backpressure.connectors.relational.csv_blocks import parse, pieces
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice
from airflow_provider_backpressure.exceptions import RESTART, RangeFailed, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.spark.column_types import carrier

SOURCE = Errors(refused=SourceRefused, unavailable=SourceUnavailable)


ATTEMPT = "bp-read:"


def reader_name(tag: str) -> str:
    """Return the name under which an attempt reads; the attempt's own name is the writer's."""
    return tag.replace("bp:", ATTEMPT, 1)


def make_ask(connection: Connection) -> Ask:
    """Return what runs a statement on this connection and returns its rows."""

    def ask(query: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    return ask


def end_attempts(connection: Connection, name: str) -> None:
    """End the statements of earlier attempts at the same slice, as far as our account sees them and may.

    They would only cost: what they read is refused by the sink.
    """
    if not name.startswith(ATTEMPT):
        return
    slice_, _, attempt = name.rpartition(":")
    with connection.cursor() as cursor:
        cursor.execute("SHOW FULL PROCESSLIST")
        running = [(int(row[0]), str(row[7] or "")) for row in cursor.fetchall()]
        for number, statement in running:
            other, _, rest = statement.removeprefix("/* ").partition(" */")[0].rpartition(":")
            if other == slice_ and rest.isdecimal() and int(rest) < int(attempt):
                with contextlib.suppress(pymysql.Error):
                    cursor.execute(f"KILL {number}")


_DATES = ("date", "timestamp")
_GONE = frozenset({1054, 1146})
"""Codes of a column and of a table that do not exist."""
_TWO_ROWS = 1242
"""Code of a value that would be made of two rows, see :func:`..source.query.build_schema_guard`."""


def read(source: Endpoint, read: ReadSpec, piece: Slice, name: str) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a slice. See :class:`..spark.readers_and_writers.Reader`.

    Raises ``SourceRefused`` for a statement that cannot be run and for a value that its column's counterpart in Spark
    cannot hold, ``SourceUnavailable`` where the source does not answer or breaks off.
    """
    seen, rows, named = source.for_executors(), 0, reader_name(name)
    connection = connect(seen, errors=SOURCE, name=named)
    try:
        with SOURCE.translate_errors(seen):
            end_attempts(connection, named)
            for position in filter(None, (read.since, read.replayed)):
                place = Place.from_position(LogPosition.parse(position))
                check_applied(make_ask(connection), place.required, seen.address)
            # The statement carries its attempt's name: everybody sees their own statements, and nothing else of them.
            with _check_planned():
                stream = stream_rows(connection, f"/* {named} */ {piece.query}")
        for text in pieces(SOURCE.translate_blocks(_check_blocks(stream), seen)):
            for batch in parse(text, read.columns, way_out, bits=True).to_batches():
                rows += batch.num_rows
                yield batch
        if rows != stream.rows:
            raise RangeFailed(f"{rows} rows were understood where the source sent {stream.rows}.")
    finally:
        _close(connection)


@contextmanager
def _check_planned() -> Iterator[None]:
    """Raise ``SourceRefused`` where a table or a column that is planned no longer exists, or has another type."""
    try:
        yield
    except pymysql.Error as error:
        if code(error) in _GONE:
            what = words(error)
        elif code(error) == _TWO_ROWS:
            what = "a column has another type, or may be NULL by now (or where= compares with several rows)"
        else:
            raise
        raise SourceRefused(
            f"The source has changed since its plan: {what}. What is committed stays; {RESTART}."
        ) from error


def _check_blocks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what arrives; errors as those of the statement itself."""
    with _check_planned():
        yield from blocks


def _close(connection: Connection) -> None:
    """Close the connection, which also ends a statement that was given up half-way."""
    if connection.open:
        connection.close()


def way_out(column: Column) -> str:
    if column.type.startswith(_DATES):
        return (
            '(a zero date or one that no calendar has): read such dates as NULL, with zero_dates="null" on the source, '
            f'or carry the column as text, with as_text=("{column.name}",).'
        )
    if carrier(column.type)[0] == pyarrow.string():
        return f"hold, since it has no counterpart in Unicode: {TEXT_REMEDY}"
    return f'hold: carry it as text, with as_text=("{column.name}",) on the source.'
