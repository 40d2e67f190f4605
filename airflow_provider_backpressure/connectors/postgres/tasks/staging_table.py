"""A temporary table of the target's own types, in which rows are looked at before they go into the target."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.tasks.copy_hash import RowSum
from airflow_provider_backpressure.connectors.postgres.tasks.copy_out import comparable
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import CopyIn, CopyOut
from airflow_provider_backpressure.core.snapshot.messages import Column, WriteSpec

STAGE = sql.Identifier("pg_temp", "backpressure_stage")


@contextmanager
def open_copy_in(
    connection: psycopg.Connection, table: sql.Composable, columns: Sequence[Column], options: str
) -> Iterator[CopyIn]:
    """Give a COPY into ``table`` and end it; where the block raises, the connection is closed: nothing of it stays."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN ({})").format(table, names(columns), sql.SQL(options))
    copy = CopyIn(connection, statement.as_string(connection))
    try:
        yield copy
    except BaseException:
        connection.close()
        raise
    copy.end()


def make_stage(connection: psycopg.Connection, write: WriteSpec) -> None:
    """Create the empty stage with the target's own types; it is gone with the transaction."""
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            sql.Identifier("backpressure_stage"), names(write.columns), sql.SQL(write.target)
        )
    )


def hash_stage(connection: psycopg.Connection, write: WriteSpec) -> tuple[RowSum, str]:
    """Return count, size and checksum of what the target's types made of the rows."""
    query = sql.SQL("SELECT {} FROM {}").format(names(write.columns), STAGE).as_string(connection)
    total = RowSum()
    stream = CopyOut(connection, f"COPY ({comparable(connection, query)}) TO STDOUT (FORMAT binary)")
    for messages in stream:
        total.update(messages)
    return total, total.finish(stream.rows)


def move_stage(connection: psycopg.Connection, write: WriteSpec, rows: sql.Composable = STAGE) -> None:
    """Put the stage's rows into the target as the mode says: added, or in the place of those with their key.

    ``rows``: those of them that are meant.
    """
    every = names(write.columns)
    statement = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
        sql.SQL(write.target), every, every, rows
    )
    if write.mode == "upsert":
        rest = [column.name for column in write.columns if column.name not in write.key]
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest)
        action = sql.SQL("UPDATE SET {}").format(changes) if rest else sql.SQL("NOTHING")
        key = sql.SQL(", ").join(map(sql.Identifier, write.key))
        statement += sql.SQL(" ON CONFLICT ({}) DO {}").format(key, action)
    connection.execute(statement)


def names(columns: Sequence[Column]) -> sql.Composed:
    """Return the columns' quoted names, separated by commas."""
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
