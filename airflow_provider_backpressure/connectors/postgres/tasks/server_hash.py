"""A checksum of rows that the server itself adds up, so that none of them travels.

Hashed is what a binary COPY sends of each value. Both sides of a mirror have to agree on it: PostgreSQL keeps these
functions as they are from one version to the next, since the partition of a row depends on them. A server with another
byte order hashes otherwise: its ranges are taken for changed ones, never for equal ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import (
    FIRST_OWN_TYPE,
    CopyOut,
    Reading,
    open_copy_out,
    print_as_text,
)
from airflow_provider_backpressure.core.endpoints import Endpoint

ALGORITHM = "pgsend-hash64"
_MODULUS = 2**64


@dataclass(frozen=True, kw_only=True)
class HashedRows:
    """Count and checksum of rows."""

    rows: int
    checksum: str
    """``<algorithm>:<16 hex digits>``: sum modulo 2^64 of row hashes."""


def is_server_hash(checksum: str) -> bool:
    """Whether a marker's checksum was added up by a server; otherwise rows have to be read to be compared with it."""
    return checksum.partition(":")[0] == ALGORITHM


@contextmanager
def open_hash(source: Endpoint, what: Reading) -> Iterator[HashedRows]:
    """Give what a server says of the rows of a reading; errors as those of :func:`.open_copy_out`."""
    with open_copy_out(source, what, options=_OPTIONS, wrap=_make_query) as stream:
        with SOURCE.translate_errors(source):
            found = _read_answer(stream)
        yield found


def hash_on_server(connection: psycopg.Connection, rows: sql.Composable) -> HashedRows:
    """Let the server hash the rows of a query, in the transaction that is open."""
    query = _make_query(connection, rows.as_string(connection))
    return _read_answer(CopyOut(connection, f"COPY ({query}) TO STDOUT ({_OPTIONS})"))


def _make_query(connection: psycopg.Connection, query: str) -> str:
    """Return the query for count and sum of hashes of another query's rows.

    A hash of an array is linear in those of its elements, and so would be their sum: two rows could exchange values
    unnoticed. So each array's hash is mixed once more. Columns of the database's own types count as their text, see
    :func:`.comparable`, and so do those that borrow the binary form of another type.
    """
    connection.execute(_ALONE)
    types = _list_types(connection, query)
    sends: dict[int, str] = dict(connection.execute(_SENDS, ([oid for _, oid in types],)).fetchall())
    values = []
    for name, oid in types:
        place: sql.Composable = sql.Identifier("q", name)
        send = None if oid >= FIRST_OWN_TYPE else sends.get(oid)
        value = print_as_text(place) if send is None else place
        values.append(sql.SQL("{}({})").format(sql.Identifier("pg_catalog", send or "textsend"), value))
    return sql.SQL(_HASH).format(values=sql.SQL(", ").join(values), query=sql.SQL(query)).as_string(connection)


def _list_types(connection: psycopg.Connection, query: str) -> list[tuple[str, int]]:
    cursor = connection.execute(sql.SQL("SELECT * FROM ({}) AS q LIMIT 0").format(sql.SQL(query)))
    return [(column.name, column.type_code) for column in cursor.description or ()]


def _read_answer(stream: CopyOut) -> HashedRows:
    text = b"".join(bytes(message) for messages in stream for message in messages).decode()
    rows, total = (int(value) for value in text.split(","))
    return HashedRows(rows=rows, checksum=f"{ALGORITHM}:{total % _MODULUS:016x}")


_OPTIONS = "FORMAT csv"
# One process of the server for each range, as the budget has it; compiling the sum costs more than it saves.
_ALONE = """
    SELECT set_config('max_parallel_workers_per_gather', '0', false), set_config('jit', 'off', false)
"""
_SENDS = """
    SELECT t.oid::bigint, p.proname::text
    FROM pg_catalog.pg_type AS t JOIN pg_catalog.pg_proc AS p ON p.oid = t.typsend
    JOIN pg_catalog.pg_type AS a ON a.oid = p.proargtypes[0]
    WHERE t.oid = ANY (%s::bigint[]) AND (a.oid = t.oid OR a.typtype = 'p')
"""
_HASH = """
    SELECT pg_catalog.count(*), coalesce(pg_catalog.sum(pg_catalog.hashint4extended(0,
        pg_catalog.hash_array_extended(ARRAY[{values}]::pg_catalog.bytea[], 0))), 0)
    FROM ({query}) AS q
"""
