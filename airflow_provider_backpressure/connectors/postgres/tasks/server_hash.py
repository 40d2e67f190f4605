"""A checksum of rows that the server itself adds up, so that none of them travels.

Hashed is what a binary COPY sends of each value. Both sides of a mirror have to agree on it: PostgreSQL keeps these
functions as they are from one version to the next, since the partition of a row depends on them. A server with another
byte order hashes otherwise: its ranges are taken for changed ones, never for equal ones.

Since PostgreSQL 18 bytes can be hashed where they are, without an array around them, in three quarters of the time.
Older servers know the array only, so each checksum begins with the name of its algorithm.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import (
    FIRST_OWN_TYPE,
    CopyOut,
    Reading,
    open_reading,
    print_as_text,
)
from airflow_provider_backpressure.core.endpoints import Endpoint

BY_ARRAY = "pgsend-hash64"
BY_VALUE = "pgvalue-hash64"
_BY_VALUE_SINCE = 180000
_MODULUS = 2**64


@dataclass(frozen=True, kw_only=True)
class HashedRows:
    """Count and checksum of rows."""

    rows: int
    checksum: str
    """``<algorithm>:<16 hex digits>``: sum modulo 2^64 of row hashes."""


def is_server_hash(checksum: str) -> bool:
    """Whether a marker's checksum was added up by a server; otherwise rows have to be read to be compared with it."""
    return algorithm_of(checksum) in (BY_ARRAY, BY_VALUE)


def algorithm_of(checksum: str) -> str:
    """Return the name of the algorithm that a checksum begins with."""
    return checksum.partition(":")[0]


def choose_algorithm(*versions: int) -> str:
    """Return the fastest algorithm that servers of these versions all know; versions as libpq has them."""
    return BY_VALUE if min(versions) >= _BY_VALUE_SINCE else BY_ARRAY


@contextmanager
def open_hash(source: Endpoint, what: Reading, algorithm: str) -> Iterator[tuple[psycopg.Connection, HashedRows]]:
    """Give what a server says of the rows of a reading, and the connection; errors as those of :func:`.open_reading`.

    A server that does not know the algorithm takes the one that all know.
    """
    with open_reading(source, what) as connection:
        with SOURCE.translate_errors(source):
            found = hash_on_server(connection, sql.SQL(what.query), algorithm)
        yield connection, found


def hash_on_server(connection: psycopg.Connection, rows: sql.Composable, algorithm: str) -> HashedRows:
    """Let the server hash the rows of a query, in the transaction that is open."""
    query = _make_query(connection, rows.as_string(connection), algorithm=algorithm)
    return _read_answer(CopyOut(connection, f"COPY ({query}) TO STDOUT ({_OPTIONS})"))


def hash_alike(*servers: psycopg.Connection) -> bool:
    """Whether servers hash alike: those of another byte order do not."""
    return len({server.execute(_KNOWN).fetchone() for server in servers}) == 1


def _make_query(connection: psycopg.Connection, query: str, *, algorithm: str) -> str:
    """Return the query for algorithm, count and sum of hashes of another query's rows.

    Columns of the database's own types count as their text, see :func:`.comparable`, and so do those that borrow the
    binary form of another type.
    """
    connection.execute(_ALONE)
    version = connection.info.server_version
    by_value = algorithm == BY_VALUE and choose_algorithm(version) == BY_VALUE
    as_stored = by_value and connection.info.parameter_status("server_encoding") == "UTF8"
    types = _list_types(connection, query)
    sends: dict[int, str] = dict(connection.execute(_SENDS, ([oid for _, oid in types],)).fetchall())
    values: list[sql.Composable] = []
    for number, (name, oid) in enumerate(types, start=1):
        place: sql.Composable = sql.Identifier("q", name)
        if as_stored and oid in _TEXTS:
            values.append(sql.SQL(_TEXT_HASH).format(value=place, number=sql.Literal(number)))
            continue
        send = None if oid >= FIRST_OWN_TYPE else sends.get(oid)
        value = print_as_text(place) if send is None else place
        sent = sql.SQL("{}({})").format(sql.Identifier("pg_catalog", send or "textsend"), value)
        values.append(sql.SQL(_BYTES_HASH).format(value=sent, number=sql.Literal(number)) if by_value else sent)
    row = _combine(values) if by_value else sql.SQL(_ARRAY_HASH).format(values=sql.SQL(", ").join(values))
    used = sql.Literal(BY_VALUE if by_value else BY_ARRAY)
    return sql.SQL(_HASH).format(algorithm=used, row=row, query=sql.SQL(query)).as_string(connection)


def _combine(hashes: Sequence[sql.Composable]) -> sql.Composable:
    """Return the exclusive or of hashes, as a tree: in a row, 1,600 of them would exceed the server's stack."""
    if len(hashes) == 1:
        return hashes[0]
    half = len(hashes) // 2
    return sql.SQL("({} OPERATOR(pg_catalog.#) {})").format(_combine(hashes[:half]), _combine(hashes[half:]))


def _list_types(connection: psycopg.Connection, query: str) -> list[tuple[str, int]]:
    cursor = connection.execute(sql.SQL("SELECT * FROM ({}) AS q LIMIT 0").format(sql.SQL(query)))
    return [(column.name, column.type_code) for column in cursor.description or ()]


def _read_answer(stream: CopyOut) -> HashedRows:
    text = b"".join(bytes(message) for messages in stream for message in messages).decode()
    algorithm, rows, total = text.strip().split(",")
    return HashedRows(rows=int(rows), checksum=f"{algorithm}:{int(total) % _MODULUS:016x}")


_OPTIONS = "FORMAT csv"
_KNOWN = "SELECT pg_catalog.hashtextextended('backpressure', 1), pg_catalog.hashint8extended(1, 1)"
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
# Each column has a seed of its own, or two columns could exchange their values unnoticed.
_BYTES_HASH = "coalesce(pg_catalog.hashbyteaextended({value}, {number}), {number})"
# The same bytes as textsend has in a database of UTF-8, and the same hash, without a copy of them.
_TEXT_HASH = 'coalesce(pg_catalog.hashtextextended({value} COLLATE pg_catalog."C", {number}), {number})'
_TEXTS = (25, 1043)  # text, varchar
_ARRAY_HASH = "pg_catalog.hash_array_extended(ARRAY[{values}]::pg_catalog.bytea[], 0)"
# A hash of an array is linear in those of its elements, and so would be their sum: two rows could exchange values
# unnoticed. So the hash of each row is mixed once more.
_HASH = """
    SELECT {algorithm}, pg_catalog.count(*), coalesce(pg_catalog.sum(pg_catalog.hashint4extended(0, {row})), 0)
    FROM ({query}) AS q
"""
