"""Reading from PostgreSQL inside a task: one statement on one connection, streamed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_provider_backpressure.core.bounds import BlockBounds, bounds_from_json
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.messages import ReadSpec, Slice
from airflow_provider_backpressure.exceptions import SnapshotLost
from airflow_provider_backpressure.postgres.errors import is_lost, words
from airflow_provider_backpressure.postgres.names import QualifiedName
from airflow_provider_backpressure.spark.connections import SOURCE, connect_source, end_attempts
from airflow_provider_backpressure.spark.streams import CopyOut

FIRST_OWN_TYPE = 16384
"""Lowest number of a type that is not PostgreSQL's own; below it, a number means the same in every database."""


def reader_name(tag: str) -> str:
    """Return the ``application_name`` under which an attempt reads; the attempt's own name is the writer's."""
    return tag.replace("bp:", "bp-read:", 1)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One statement to be read, and under what it may be."""

    query: str
    name: str
    """``application_name``; where it is an attempt's, the connections of earlier attempts are ended first."""
    snapshot: str | None = None
    """The exported snapshot in which it is read."""
    blocks: BlockBounds | None = None
    """The file that must still be the table's."""
    compared: bool = False
    """Read as :func:`comparable` has it."""

    @classmethod
    def of(cls, read: ReadSpec, piece: Slice, name: str) -> "Reading":
        """Return the reading of a slice; ``name``: the attempt's tag, or another where nothing is written."""
        bounds = bounds_from_json(dict(piece.bounds)) if piece.bounds else None
        return cls(
            query=piece.query,
            name=reader_name(name),
            snapshot=read.snapshot,
            blocks=bounds if isinstance(bounds, BlockBounds) else None,
        )


@contextmanager
def reading(source: Endpoint, what: Reading, *, options: str = "FORMAT binary") -> Iterator[CopyOut]:
    """Give the rows as a COPY stream.

    Raises ``SourceRefused`` where the statement cannot be run, ``SourceUnavailable`` where the source does not answer
    or breaks off, ``SnapshotLost`` where the snapshot or the file is no longer there.
    """
    connection = connect_source(source, name=what.name)
    try:
        with SOURCE.translated(source):
            if what.name.startswith("bp-read:"):
                end_attempts(connection, what.name, below=int(what.name.rpartition(":")[2]))
            _enter(connection, what)
            rows = comparable(connection, what.query) if what.compared else what.query
            stream = CopyOut(connection, f"COPY ({rows}) TO STDOUT ({options})")
        yield stream
    finally:
        # Closing also ends a COPY that was given up half-way, which no other statement could.
        connection.close()


def _enter(connection: psycopg.Connection, what: Reading) -> None:
    """Begin the transaction in which rows are seen as the plan has them; it ends with the connection."""
    if what.snapshot is None and what.blocks is None:
        return
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    if what.snapshot is not None:
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(what.snapshot)))
        except psycopg.Error as error:
            if is_lost(error):
                raise
            raise SnapshotLost(f"The snapshot in which ranges are read is gone: {words(error)}.") from error
    if what.blocks is not None:
        _same_file(connection, what.blocks)


def _same_file(connection: psycopg.Connection, blocks: BlockBounds) -> None:
    """Lock the table against rewrites, and see that there was none since the plan: nothing in the log would say so."""
    table = QualifiedName.parse(blocks.table)
    connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(sql.SQL(table.sql)))
    found = connection.execute("SELECT pg_relation_filenode(%s::regclass)", (table.sql,)).fetchone()
    if found is None or found[0] != blocks.file:
        raise SnapshotLost(
            f"{blocks.table} was rewritten since its blocks were counted (VACUUM FULL, CLUSTER, TRUNCATE or the like)."
        )


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
