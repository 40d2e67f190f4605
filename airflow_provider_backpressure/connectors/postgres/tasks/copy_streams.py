"""COPY as two streams of blocks, on libpq's own level: one message is one row, and nothing is decoded.

psycopg's ``Copy`` costs 2 µs a row; these loops cost 0.4 µs. Both ends wait in ``poll``, never inside libpq, and the
writing end passes one block at a time: while the sink is slow the loop waits in :meth:`CopyIn.put`, nothing is
read, TCP fills up and the source's server waits.
"""

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from struct import pack

import psycopg
from psycopg import errors, pq, sql

from airflow_provider_backpressure.connectors.postgres.errors import words
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.table_storage import (
    check_same_files,
    find_nullable,
    find_other_columns,
    lock_relations,
)
from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE, connect_source, end_attempts
from airflow_provider_backpressure.connectors.postgres.tasks.exported_snapshot import import_snapshot
from airflow_provider_backpressure.connectors.postgres.tasks.log_flush import await_flushed, write_message
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.exceptions import RESTART, PlanOutdated, SinkRefused, SourceRefused

BLOCK = 32 * 1024
"""Bytes collected before they are handed on: they and their messages stay in the processor's cache, and the memory of
each message is used again for a later one. With 256 KiB the same loop takes twice the CPU time."""


class CopyOut:
    """Messages of a ``COPY … TO STDOUT``, in lists of about :data:`BLOCK` bytes."""

    def __init__(self, connection: psycopg.Connection, statement: str) -> None:
        """Start the statement; psycopg's errors where the server refuses it."""
        self.rows = -1
        """Rows by the server's count, known at the end."""
        self.read_at = ""
        """Of a followed table: the log's position behind the rows, known when the stream is closed."""
        self.server_version = connection.info.server_version
        self._pgconn = connection.pgconn
        _start(self._pgconn, statement, pq.ExecStatus.COPY_OUT)

    def __iter__(self) -> Iterator[list[memoryview]]:
        """Yield non-empty lists of messages until the server has sent all."""
        get, wait = self._pgconn.get_copy_data, _Wait(self._pgconn)
        messages: list[memoryview] = []
        size = 0
        while True:
            length, message = get(1)
            if length > 0:
                messages.append(message)
                size += length
                if size >= BLOCK:
                    yield messages
                    messages, size = [], 0
            elif length == 0:
                wait.readable()
            else:
                break
        if messages:
            yield messages
        self.rows = _finish(self._pgconn, wait)


INFINITE_INTERVALS = 17_00_00
"""The first release with infinite intervals. Earlier ones take their binary form for another interval."""
_INFINITE = (pack(">iqii", 16, 2**63 - 1, 2**31 - 1, 2**31 - 1), pack(">iqii", 16, -(2**63), -(2**31), -(2**31)))


class CopyIn:
    """A ``COPY … FROM STDIN`` that is fed block by block."""

    def __init__(self, connection: psycopg.Connection, statement: str, *, source_version: int = 0) -> None:
        """Start the statement; waits for the target's lock. psycopg's errors where the server refuses it.

        ``source_version``: of the server whose rows are passed on as they are; 0: they are not.
        """
        self.rows = -1
        """Rows by the server's count, known after :meth:`end`."""
        self._is_older = connection.info.server_version < INFINITE_INTERVALS <= source_version
        self._pgconn = connection.pgconn
        _start(self._pgconn, statement, pq.ExecStatus.COPY_IN)
        self._wait = _Wait(self._pgconn)

    def put(self, block: bytes | memoryview) -> None:
        """Pass whole rows on; return when the operating system has taken all of them.

        ``SinkRefused`` where the server would take a value for another one.
        """
        if self._is_older and any(value in bytes(block) for value in _INFINITE):
            raise SinkRefused(
                "The source holds an infinite interval, and the target's server is older than PostgreSQL 17, which "
                "brought them: leave the column out, or list it in PostgresSource(as_text=...) for a column of text."
            )
        while self._pgconn.put_copy_data(block) == 0:
            self._wait.writable()
        self._flush()

    def end(self) -> None:
        """Say that this was all; psycopg's errors where the server refused a row."""
        while self._pgconn.put_copy_end(None) == 0:
            self._wait.writable()
        self._flush()
        self.rows = _finish(self._pgconn, self._wait)

    def _flush(self) -> None:
        while self._pgconn.flush():
            self._wait.writable()


class _Wait:
    """Waits until a connection's socket can be read or written."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._reading, self._writing = select.poll(), select.poll()
        self._reading.register(pgconn.socket, select.POLLIN)
        self._writing.register(pgconn.socket, select.POLLIN | select.POLLOUT)

    def readable(self) -> None:
        """Wait for input and take it in."""
        self._reading.poll()
        self._pgconn.consume_input()

    def writable(self) -> None:
        """Wait for room; input is taken in too, or a server that reports something would never read on."""
        for _, events in self._writing.poll():
            if events & ~select.POLLOUT:
                self._pgconn.consume_input()


def _start(pgconn: pq.abc.PGconn, statement: str, expected: pq.ExecStatus) -> None:
    result = pgconn.exec_(statement.encode())
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise _error(pgconn, result)
    if result.status != expected:
        raise psycopg.ProgrammingError(f"The server answered {pq.ExecStatus(result.status).name} to a COPY.")


def _finish(pgconn: pq.abc.PGconn, wait: _Wait) -> int:
    """Take the statement's results and return the row count; the first error is raised."""
    rows, failed = 0, None
    while True:
        while pgconn.is_busy():
            wait.readable()
        result = pgconn.get_result()
        if result is None:
            break
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failed = failed or result
        else:
            rows = result.command_tuples or 0
    if failed is not None:
        raise _error(pgconn, failed)
    return rows


def _error(pgconn: pq.abc.PGconn, result: pq.abc.PGresult) -> psycopg.Error:
    """Return the error of a failed result.

    Where the server went away without a word it has no SQLSTATE: taken as it is, it would not look like a loss.
    """
    error = errors.error_from_result(result)
    if error.sqlstate is None and pgconn.status == pq.ConnStatus.BAD:
        return psycopg.OperationalError(str(error))
    return error


Heed = Callable[[psycopg.errors.Diagnostic], None]
WAY_OUT = f"ranges that are committed stay; {RESTART}"
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
    storage: TableStorage | None = None
    """How the table was stored when it was planned; its files matter to a snapshot only."""
    blocks: BlockBounds | None = None
    """The file that must still be the table's."""
    compared: bool = False
    """Read as :func:`comparable` has it."""
    every_row: bool = False
    """Row security that would hide rows is an error."""
    repeatable: bool = False
    """Several statements see the same rows."""
    columns: tuple[Column, ...] = ()
    """What the statement has to give, as far as a type is PostgreSQL's own; empty where anything will do."""
    followed: bool = False
    """The log is replayed over the rows: they are given only if what they show is safe on the server's disk."""
    before: str = ""
    """A statement that is run first, such as one for the session's settings."""

    @classmethod
    def from_slice(cls, read: ReadSpec, piece: Slice, name: str) -> "Reading":
        """Return the reading of a slice; ``name``: the attempt's tag, or another where nothing is written."""
        bounds = bounds_from_json(dict(piece.bounds)) if piece.bounds else None
        return cls(
            query=piece.query,
            name=reader_name(name),
            snapshot=read.snapshot,
            storage=read.storage,
            blocks=bounds if isinstance(bounds, BlockBounds) else None,
            every_row=read.tells_position or read.every_row,
            followed=read.tells_position,
            columns=read.columns,
        )


@contextmanager
def open_copy_out(
    source: Endpoint,
    what: Reading,
    *,
    options: str = "FORMAT binary",
    heed: Heed | None = None,
) -> Iterator[CopyOut]:
    """Give the rows as a COPY stream; errors as for :func:`open_reading`.

    ``heed`` is called with the server's notices meanwhile. Behind the last row of a followed table the log is waited
    for: a server that crashes between a row and its position may have forgotten the row.
    """
    with open_reading(source, what, heed=heed) as connection:
        with SOURCE.translate_errors(source):
            rows = comparable(connection, what.query) if what.compared else what.query
            stream = CopyOut(connection, f"COPY ({rows}) TO STDOUT ({options})")
        yield stream
        if what.followed:
            with SOURCE.translate_errors(source):
                stream.read_at = str(await_flushed(connection, partial(_hurry_flush, source, what.name)))


def _hurry_flush(source: Endpoint, name: str) -> None:
    """Let the server bring its log to its disk, by a session of its own: the rows' one is in a transaction."""
    with connect_source(source, name=name) as connection:
        write_message(connection)


@contextmanager
def open_reading(source: Endpoint, what: Reading, *, heed: Heed | None = None) -> Iterator[psycopg.Connection]:
    """Give a connection, in the transaction in which the statement may be run.

    Raises ``SourceRefused`` where the statement cannot be run, ``SourceUnavailable`` where the source does not answer
    or breaks off, ``SnapshotLost`` where the snapshot is gone, ``PlanOutdated`` where the file is.
    """
    connection = connect_source(source, name=what.name, every_row=what.every_row)
    if heed is not None:
        connection.add_notice_handler(heed)
    try:
        with SOURCE.translate_errors(source):
            if what.name.startswith("bp-read:"):
                end_attempts(connection, what.name, below=int(what.name.rpartition(":")[2]))
            if what.before:
                connection.execute(what.before.encode())
            _enter(connection, what)
            _check_columns(connection, what)
        yield connection
    finally:
        # Closing also ends a COPY that was given up half-way, which no other statement could.
        connection.close()


def _enter(connection: psycopg.Connection, what: Reading) -> None:
    """Begin the transaction in which rows are seen as the plan has them; it ends with the connection."""
    if what.snapshot is None and what.blocks is None and not what.repeatable:
        if what.columns:
            connection.execute("BEGIN READ ONLY")
        return
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    if what.snapshot is not None:
        import_snapshot(connection, what.snapshot)
    if what.storage is not None and what.snapshot is not None:
        with _same_names():
            check_same_files(what.storage, lock_relations(connection, what.storage.table, what.storage.lock))
    if what.blocks is not None:
        _same_file(connection, what.blocks)


@contextmanager
def _same_names() -> Iterator[None]:
    """Raise ``SourceRefused`` where a table or a column that is planned no longer exists."""
    try:
        yield
    except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable) as error:
        raise SourceRefused(f"The source has changed since its plan: {words(error)}; {WAY_OUT}.") from error


def _same_file(connection: psycopg.Connection, blocks: BlockBounds) -> None:
    """Lock the table against rewrites, and see that there was none since the plan: nothing in the log would say so."""
    table = QualifiedName.parse(blocks.table)
    connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(sql.SQL(table.sql)))
    found = connection.execute("SELECT pg_relation_filenode(%s::regclass)", (table.sql,)).fetchone()
    if found is None or found[0] != blocks.file:
        raise PlanOutdated(
            f"{blocks.table} was rewritten since its blocks were counted (VACUUM FULL, CLUSTER, TRUNCATE or the like)."
        )


def _check_columns(connection: psycopg.Connection, what: Reading) -> None:
    """Raise ``SourceRefused`` where the table has changed since its plan; until the rows are read it no longer can.

    A binary number of another type would be taken for one of the plan's, and nothing would say so.
    """
    if not what.columns:
        return
    with _same_names():
        cursor = connection.execute(sql.SQL("SELECT * FROM ({}) AS q LIMIT 0").format(sql.SQL(what.query)))
    result, numbers = cursor.pgresult, range(len(what.columns))
    assert result is not None, "a statement was run"
    given = [(result.ftype(number), result.fmod(number), what.columns[number].base_type) for number in numbers]
    types, mods, planned = (list(each) for each in zip(*given, strict=True))
    values = {"types": types, "mods": mods, "planned": planned, "own": FIRST_OWN_TYPE}
    for number, now in connection.execute(_CHANGED, values).fetchall():
        column = what.columns[number - 1]
        if _find_type(connection, column.base_type) == given[number - 1][:2]:
            continue  # The plan spells it as it was declared, or as a domain that came with the server.
        raise SourceRefused(
            f"The source has changed since its plan: column {column.name} was {column.type} and is {now}; {WAY_OUT}."
        )
    _check_own_types(connection, what)
    _check_numbers(connection, what)


def _check_own_types(connection: psycopg.Connection, what: Reading) -> None:
    """Raise ``SourceRefused`` where a column of a type that was made in this database is of another type by now.

    A domain arrives as what it is made of. Inside a snapshot the catalogue is as old as the snapshot, but what a query
    is made of is not: the type of an expression that gives no row.
    """
    own = [column for column in what.columns if column.definition is not None]
    if not own:
        return
    asked = sql.SQL("pg_typeof((SELECT {} FROM ({}) AS q LIMIT 0))::oid::bigint")
    types = [asked.format(sql.Identifier("q", column.name), sql.SQL(what.query)) for column in own]
    given = connection.execute(sql.SQL("SELECT ARRAY[{}]").format(sql.SQL(", ").join(types))).fetchone()
    assert given is not None, "one row of types"
    values = {"types": given[0], "planned": [column.type for column in own]}
    for number, now in connection.execute(_CHANGED_OWN, values).fetchall():
        column = own[number - 1]
        raise SourceRefused(
            f"The source has changed since its plan: column {column.name} was {column.type} and is {now}; {WAY_OUT}."
        )


def _find_type(connection: psycopg.Connection, type_: str) -> tuple[int, int]:
    """Return number and modifier of what a column of a type arrives as."""
    result = connection.execute(sql.SQL("SELECT NULL::{}").format(sql.SQL(type_))).pgresult
    assert result is not None, "a statement was run"
    return result.ftype(0), result.fmod(0)


def _check_numbers(connection: psycopg.Connection, what: Reading) -> None:
    """Raise where a planned name is that of another column by now, whose values would be taken for the planned ones."""
    if what.storage is None:
        return
    with _same_names():
        others = find_other_columns(connection, what.storage)
    others = others or find_nullable(connection, what.storage)
    if not others:
        return
    changed = ", ".join(others)
    if what.snapshot is not None:
        raise PlanOutdated(f"{what.storage.table} has changed since its plan: {changed}.")
    raise SourceRefused(f"The source has changed since its plan: {changed}; {WAY_OUT}.")


def own_types(connection: psycopg.Connection, query: str) -> dict[str, bool]:
    """Return for each column of a query whether its type was made in this database; runs nothing of the query."""
    cursor = connection.execute(sql.SQL("SELECT * FROM ({}) AS q LIMIT 0").format(sql.SQL(query)))
    return {column.name: column.type_code >= FIRST_OWN_TYPE for column in cursor.description or ()}


def print_as_text(column: sql.Composable) -> sql.Composed:
    """Return a column as the text that its type prints, from which it is read again: a cast may say less, or another.

    A cast of ``bpchar`` cuts blanks off. A composite of nothing but NULL is no NULL.
    """
    return sql.SQL("CASE WHEN pg_catalog.num_nulls({0}) = 0 THEN pg_catalog.concat({0}) END").format(column)


def comparable(connection: psycopg.Connection, query: str) -> str:
    """Return the query changed so that its rows have the same binary form in every database.

    Arrays and composites name the types they hold by this database's own numbers. So columns of types that are not
    PostgreSQL's own are taken as text.
    """
    own = own_types(connection, query)
    if not any(own.values()):
        return query
    places = {name: sql.Identifier("q", name) for name in own}
    columns = [print_as_text(place) if own[name] else place for name, place in places.items()]
    return sql.SQL("SELECT {} FROM ({}) AS q").format(sql.SQL(", ").join(columns), sql.SQL(query)).as_string(connection)


# A domain's type is the one that it is made of. Types of the database's own making are compared by their names.
_CHANGED = """
    SELECT n, format_type(type, mod)
    FROM unnest(%(types)s::oid[], %(mods)s::int[], %(planned)s::text[]) WITH ORDINALITY AS c (type, mod, planned, n)
    WHERE to_regtype(planned)::oid < %(own)s AND format_type(type, mod) <> planned
    ORDER BY n
"""
_CHANGED_OWN = """
    SELECT n, format_type(type, NULL)
    FROM unnest(%(types)s::oid[], %(planned)s::text[]) WITH ORDINALITY AS c (type, planned, n)
    WHERE to_regtype(planned)::oid IS DISTINCT FROM type
    ORDER BY n
"""
