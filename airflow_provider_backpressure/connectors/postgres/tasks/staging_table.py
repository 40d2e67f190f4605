"""A temporary table of the target's own types, in which rows are looked at before they go into the target."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql
from xxhash import xxh3_64_intdigest

from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import CopyIn, CopyOut, comparable
from airflow_provider_backpressure.connectors.postgres.tasks.trigger_checks import execute_alone
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import list_marks_of
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused

ALGORITHM = "pgcopy-xxh3"
SIGNATURE = b"PGCOPY\n\xff\r\n\0"
HEADER = struct.Struct("!11sII")
"""Signature, flags, length of the header extension that follows."""
END = -1
"""Field count that stands for the end of the stream."""

_count = struct.Struct("!h").unpack_from
_length = struct.Struct("!i").unpack_from

Buffer = bytes | memoryview


def split_rows(block: Buffer) -> Iterator[Buffer]:
    """Yield the rows of whole messages without header, up to the stream's end if that is among them."""
    at = 0
    while at < len(block):
        start = at
        (fields,) = _count(block, at)
        at += 2
        if fields == END:
            return
        for _ in range(fields):
            (length,) = _length(block, at)
            at += 4 + max(length, 0)
        yield block[start:at]


class RowSum:
    """Counts and hashes the rows of one stream, fed with its messages in the server's own cut.

    PostgreSQL sends each row as one message; the header comes with the first and the end may come with the last, so
    those two are taken apart field by field and all between are hashed as they are. :meth:`finish` compares with the
    server's own count, so that a server which packs several rows into a message is noticed.
    """

    def __init__(self, *, hashes: bool = True) -> None:
        """Begin with no rows. ``hashes``: whether the checksum is asked for; otherwise it stays that of no rows."""
        self._hashes = hashes
        self.rows = 0
        self.bytes = 0
        self._sum = 0
        self._begun = False
        self._last: Buffer = b""

    def update(self, messages: Sequence[Buffer]) -> None:
        """Add the next messages of the stream; one is held back, since it may be the last."""
        self.take(messages)

    def take(self, messages: Sequence[Buffer]) -> list[Buffer]:
        """Add the next messages, and return the rows that were added by that."""
        if not messages:
            return []
        rows: list[Buffer] = []
        if not self._begun:
            self._begun = True
            rows += split_rows(without_header(messages[0]))
            messages = messages[1:]
        elif self._last:
            rows.append(self._last)
        if messages:
            self._last = messages[-1]
            rows += messages[:-1]
        self.add(rows)
        return rows

    def take_last(self) -> list[Buffer]:
        """Add what was held back, and return the rows of it."""
        rows = list(split_rows(self._last))
        self._last = b""
        self.add(rows)
        return rows

    def finish(self, server_rows: int) -> str:
        """Return the checksum; :class:`RangeFailed` unless exactly ``server_rows`` rows were seen."""
        self.take_last()
        if self.rows != server_rows:
            raise RangeFailed(f"The stream held {self.rows} rows where the server counted {server_rows}.")
        return str(self)

    def __str__(self) -> str:
        """Return ``<algorithm>:<16 hex digits>``."""
        return f"{ALGORITHM}:{self._sum:016x}"

    def add(self, rows: Sequence[Buffer]) -> None:
        """Add rows that are known to be such: without a stream's header and end."""
        self.rows += len(rows)
        self.bytes += sum(map(len, rows))
        if self._hashes:
            self._sum = (self._sum + sum(map(xxh3_64_intdigest, rows))) & 0xFFFF_FFFF_FFFF_FFFF


def without_header(message: Buffer) -> Buffer:
    """Return what follows a stream's header; ``RangeFailed`` where there is none."""
    signature, _, extension = HEADER.unpack_from(message)
    if signature != SIGNATURE:
        raise RangeFailed("The server's stream does not begin as binary COPY does.")
    return message[HEADER.size + extension :]


MIRROR = "mirror"
STAGED = frozenset({"upsert", MIRROR})
"""Modes under which rows are compared with those of the target."""
STAGE = sql.Identifier("pg_temp", "backpressure_stage")
# Of most types equal values may be different ones, as 1.0 and 1.00 are, also of all that are made of other types, and
# of text where its collation ignores something. An identity column cannot be set, but has none of them.
_OF_SEVERAL_FORMS = """
    SELECT a.attname::text
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
    WHERE a.attrelid = %s::text::regclass AND a.attname = ANY (%s::text[]) AND NOT (
        t.typnamespace = 'pg_catalog'::regnamespace AND coalesce(c.collisdeterministic, true)
        AND t.typname IN ('int2', 'int4', 'int8', 'bool', 'date', 'timestamp', 'timestamptz', 'time', 'uuid', 'bytea',
                          'oid', 'text', 'varchar', 'name')
    )
"""


@contextmanager
def open_copy_in(
    connection: psycopg.Connection,
    table: sql.Composable,
    columns: Sequence[Column],
    options: str,
    *,
    source_version: int = 0,
) -> Iterator[CopyIn]:
    """Give a COPY into ``table`` and end it; where the block raises, the connection is closed: nothing of it stays.

    ``source_version``: as :class:`CopyIn` has it.
    """
    statement = sql.SQL("COPY {} ({}) FROM STDIN ({})").format(table, names(columns), sql.SQL(options))
    copy = CopyIn(connection, statement.as_string(connection), source_version=source_version)
    try:
        yield copy
    except BaseException:
        connection.close()
        raise
    copy.end()


def stage_columns(write: WriteSpec) -> tuple[Column, ...]:
    """Return the columns of the stage: the target's, and of an ordered plan its marks."""
    return (*write.columns, *list_marks_of(write))


def make_stage(connection: psycopg.Connection, write: WriteSpec) -> None:
    """Create the empty stage with the target's own types; it is gone with the transaction."""
    marks = sql.SQL("").join(
        sql.SQL(", NULL::{} AS {}").format(sql.SQL(column.type), sql.Identifier(column.name))
        for column in list_marks_of(write)
    )
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {}{} FROM {} WITH NO DATA").format(
            sql.Identifier("backpressure_stage"), names(write.columns), marks, sql.SQL(write.target)
        )
    )


def hash_stage(connection: psycopg.Connection, write: WriteSpec) -> tuple[RowSum, str]:
    """Return count, size and checksum of what the target's types made of the rows."""
    return hash_rows(connection, select_stage(write))


def select_stage(write: WriteSpec) -> sql.Composed:
    """Return the query for the staged rows."""
    return sql.SQL("SELECT {} FROM {}").format(names(stage_columns(write)), STAGE)


def hash_rows(connection: psycopg.Connection, rows: sql.Composed) -> tuple[RowSum, str]:
    """Return count, size and checksum of a query's rows, in a form that is the same in every database."""
    query, total = rows.as_string(connection), RowSum()
    stream = CopyOut(connection, f"COPY ({comparable(connection, query)}) TO STDOUT (FORMAT binary)")
    for messages in stream:
        total.update(messages)
    return total, total.finish(stream.rows)


def move_stage(
    connection: psycopg.Connection,
    write: WriteSpec,
    rows: sql.Composable = STAGE,
    *,
    alone: bool = False,
    exact: bool = True,
) -> int:
    """Put the stage's rows into the target as the mode says: added, or in the place of those with their key.

    Return how many were added or changed.

    ``rows``: those of them that are meant. ``alone``: whether nothing else may change the target's rows, see
    :func:`.execute_alone`, also for ``exact``.
    """
    every = names(write.columns)
    statement = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
        sql.SQL(write.target), every, every, rows
    )
    if write.mode == "upsert":
        rest = list_changing(connection, write)
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest)
        action = sql.SQL("UPDATE SET {}").format(changes) if rest else sql.SQL("NOTHING")
        key = sql.SQL(", ").join(map(sql.Identifier, write.key))
        statement += sql.SQL(" ON CONFLICT ({}) DO {}").format(key, action)
    try:
        if alone:
            return execute_alone(connection, write, statement, exact=exact)
        return connection.execute(statement).rowcount
    except psycopg.errors.CardinalityViolation:
        # Without its cause, which has values of the rows.
        raise SinkRefused(
            f"A range holds several rows of one key ({', '.join(write.key)}), and {write.fence} can hold only one of "
            "them. Remove the others from the source or in the transform, or give the sink a key= that is unique there."
        ) from None


def list_changing(connection: psycopg.Connection, write: WriteSpec) -> list[str]:
    """Return the columns that change with their row: of the key only those of which equal values may be different."""
    found = connection.execute(_OF_SEVERAL_FORMS, (write.target, list(write.key))).fetchall()
    kept = set(write.key) - {name for (name,) in found}
    return [column.name for column in write.columns if column.name not in kept]


def names(columns: Sequence[Column]) -> sql.Composed:
    """Return the columns' quoted names, separated by commas."""
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
