"""Reading from PostgreSQL inside a task: one statement on one connection, streamed."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.spark.connections import SOURCE, connect_source, end_attempts
from airflow_provider_backpressure.spark.streams import CopyOut

FIRST_OWN_TYPE = 16384
"""Lowest number of a type that is not PostgreSQL's own; below it, a number means the same in every database."""


def reader_name(tag: str) -> str:
    """Return the ``application_name`` under which an attempt reads; the attempt's own name is the writer's."""
    return tag.replace("bp:", "bp-read:", 1)


@contextmanager
def reading(
    source: Endpoint, query: str, *, name: str, options: str = "FORMAT binary", compared: bool = False
) -> Iterator[CopyOut]:
    """Give the rows of ``query`` as a COPY stream; ``compared``: as :func:`comparable` has them.

    Where ``name`` is an attempt's, the connections of earlier attempts are ended first. Raises ``SourceRefused`` where
    the statement cannot be run, ``SourceUnavailable`` where the source does not answer or breaks off.
    """
    connection = connect_source(source, name=name)
    try:
        with SOURCE.translated(source):
            if name.startswith("bp-read:"):
                end_attempts(connection, name, below=int(name.rpartition(":")[2]))
            rows = comparable(connection, query) if compared else query
            stream = CopyOut(connection, f"COPY ({rows}) TO STDOUT ({options})")
        yield stream
    finally:
        # Closing also ends a COPY that was given up half-way, which no other statement could.
        connection.close()


def own_types(connection: psycopg.Connection, query: str) -> dict[str, bool]:
    """Return for each column of a query whether its type was made in this database; runs nothing of the query."""
    cursor = connection.execute(sql.SQL("SELECT * FROM ({}) AS q LIMIT 0").format(sql.SQL(query)))
    return {column.name: column.type_code >= FIRST_OWN_TYPE for column in cursor.description or ()}


def comparable(connection: psycopg.Connection, query: str) -> str:
    """Return the query such that its rows have the same binary form in every database.

    Arrays and composites name the types they hold by this database's own numbers. So columns of types that are not
    PostgreSQL's own are taken as text.
    """
    own = own_types(connection, query)
    if not any(own.values()):
        return query
    columns = [sql.SQL("q.{}::text" if own[name] else "q.{}").format(sql.Identifier(name)) for name in own]
    return sql.SQL("SELECT {} FROM ({}) AS q").format(sql.SQL(", ").join(columns), sql.SQL(query)).as_string(connection)
