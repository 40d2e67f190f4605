"""PostgreSQL's log as changes: peeked at through a replication slot over an ordinary connection, never moved on.

The server decodes a window into a file of its own and sends it from there. Here it is streamed: neither the window nor
a transaction of it is ever held in memory.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy
import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import AS_LOGIN
from airflow_provider_backpressure.connectors.postgres.key_operators import find_key_operators
from airflow_provider_backpressure.connectors.postgres.replication_slots import RESTORED, lsn, mark_of
from airflow_provider_backpressure.connectors.postgres.replication_slots import position as position_of
from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE, connect_source, end_attempts
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import (
    Reading,
    open_copy_out,
    print_as_text,
    reader_name,
)
from airflow_provider_backpressure.connectors.postgres.tasks.log_flush import await_flushed, write_message
from airflow_provider_backpressure.connectors.postgres.tasks.pgoutput_decoder import Decoder, TableSplitter, Type
from airflow_provider_backpressure.connectors.postgres.tasks.pgoutput_messages import Messages, measure
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import without_header
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, bounds_from_json
from airflow_provider_backpressure.core.snapshot.shared_log_table_errors import name_table
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice, StreamTable
from airflow_provider_backpressure.core.snapshot.transaction_snapshot import TransactionSnapshot
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LogLost, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.spark.change_rows import UPSERT, change
from airflow_provider_backpressure.spark.reader_timings import time_open

FREE_SECONDS = 30.0
"""Longest wait for the reader before to let go of the slot."""
YIELD_SECONDS = 10.0
"""How long a window waits for a comparison that reads the log."""
COMPARING = "verify-"
"""What the plan of a reader that only compares begins with, in its name."""
VISIBLE_SECONDS = 60.0
"""Longest wait for readers to see what is in the log: a commit may wait there for a standby."""
AGAIN_ROWS = 1000
BATCH_MESSAGES, BATCH_BYTES = 10_000, 2**20
"""Messages from which on they are decoded together, and their bytes: messages of wide rows are not gathered."""
MOST_BATCHES = 8
"""Most of such batches that are gathered at once, one for each table that shares the log."""
TEXT = "text"
_PAYLOAD = 6
"""Bytes before the only field of a row of COPY: the number of fields, and its length."""


def position(source: Endpoint, name: str) -> str:
    """See :class:`..changes.LogReader`. What rows were read was found to be safe by the session that has read them."""
    with SOURCE.translate_errors(source), connect_source(source, name=reader_name(name)) as connection:
        return str(await_flushed(connection, partial(write_message, connection)))


def changes(
    source: Endpoint, read: ReadSpec, piece: Slice, key: Sequence[str], name: str, *, since: str = ""
) -> "LogChanges":
    """See :class:`..changes.LogReader`. ``since``: a position before which the table's changes are left out."""
    bounds = bounds_from_json(dict(piece.bounds))
    if not isinstance(bounds, LogBounds):
        raise InvalidDeclaration("Only a piece of a log can be replayed.")
    found = LogChanges(source, read, bounds, json.loads(piece.query), key, name)
    if since:
        found.start = max(bounds.start, LogPosition.parse(since), key=lambda place: place.at)
    return found


class LogChanges:
    """Implements :class:`..changes.Changes`.

    How the table is stored is compared when windows are planned, not here. What a window shows was fixed with its end,
    and the server decodes it by the columns of its time. A row that is asked for again may be of later, but its
    position moves the goal: more windows have to be planned, and what altered the table is found then.
    """

    def __init__(
        self, source: Endpoint, read: ReadSpec, bounds: LogBounds, said: dict[str, str], key: Sequence[str], name: str
    ) -> None:
        self.read_at = ""
        self.start = bounds.start
        """Where the changes begin; the slot has to show the whole window all the same."""
        self._source, self._read, self._bounds, self._name = source, read, bounds, name
        self._slot, self._table, self._key = said["slot"], (said["schema"], said["table"]), tuple(key)
        self._lost: list[str] = []
        self.seen: TransactionSnapshot | None = None
        """Changes of other transactions are left out; ``None``: none are."""
        self.xids: Collection[int] = ()
        """Transactions whose changes were returned."""

    def __iter__(self) -> Iterator[Sequence[bytes]]:
        """See :meth:`..changes.Changes.__iter__`. ``LogLost`` where the slot is gone, or was moved past the window."""
        (decoder,) = self.open_decoders([self])
        for messages in self.messages():
            if rows := decoder.rows(messages):
                yield rows

    def open_decoders(
        self, tables: Sequence["LogChanges"], names: Sequence[Callable[[], AbstractContextManager[None]]] = ()
    ) -> list[Decoder]:
        """See that the slot shows the window, and return the decoders of tables that share it.

        ``names``: what lets errors name each of them.
        """
        name = reader_name(self._name)
        with SOURCE.translate_errors(self._source), connect_source(self._source, name=name) as connection:
            self._check(connection, name)
            decoders = []
            for table, naming in zip(tables, names or [nullcontext] * len(tables), strict=True):
                with naming():
                    decoders.append(table._decoder(table._types(connection)))
            return decoders

    def _decoder(self, types: dict[str, Type]) -> Decoder:
        decoder = Decoder(
            table=self._table,
            columns=[column.name for column in self._read.columns],
            key=self._key,
            start=self.start,
            end=self._bounds.end,
            types=types,
            added=self._read.added,
            number=self._number(),
            storage=self._read.storage,
            seen=self.seen,
        )
        self.xids = decoder.xids
        return decoder

    def messages(self, batches: int = 1) -> Iterator[Messages]:
        """Yield the log's messages of the window; ``LogLost`` where the slot does not show every change.

        Each time at least :data:`BATCH_MESSAGES` or :data:`BATCH_BYTES`, multiplied by ``batches``; fewer in the end.
        """
        what = Reading(query=self._query(), name=reader_name(self._name), every_row=True, before=_ENOUGH_MEMORY)
        with time_open(open_copy_out(self._source, what, heed=self._handle_notice)) as stream:
            for messages in _read_messages(SOURCE.translate_blocks(stream, self._source), batches):
                if self._lost:
                    break
                yield messages
        if self._lost:
            raise LogLost(f"The slot {self._slot} does not show every change: {self._lost[0]}.")

    def _number(self) -> int | None:
        """Return the table's number, which it keeps when it is renamed; ``None`` in plans of earlier releases."""
        storage = self._read.storage
        return storage.relations[0][0] if storage is not None and storage.relations else None

    def again(self, keys: Sequence[Sequence[str]]) -> Iterator[list[bytes]]:
        """See :meth:`..changes.Changes.again`. The rows are read when every transaction of the window is seen."""
        types = {column.name: column.type for column in self._read.columns}
        query = sql.SQL("SELECT {} FROM {} AS t JOIN unnest({}) AS w({}) ON {}").format(
            sql.SQL(", ").join(print_as_text(sql.Identifier("t", name)) for name in types),
            sql.Identifier(*self._table),
            sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(self._key)),
            sql.SQL(", ").join(map(sql.Identifier, self._key)),
            # One by one: an array of arrays would be taken apart to their elements.
            sql.SQL(" AND ").join(
                sql.SQL("t.{0} = CAST(w.{0} AS {1})").format(sql.Identifier(name), sql.SQL(types[name]))
                for name in self._key
            ),
        )
        nothing, name = [None] * len(self._key), reader_name(self._name)
        with (
            SOURCE.translate_errors(self._source),
            connect_source(self._source, name=name, every_row=True) as connection,
        ):
            # Before that, a row of the window would be taken for one that was deleted since.
            _await_visible(connection, self.xids)
            table = sql.Identifier(*self._table).as_string(connection)
            find_key_operators(connection, table, self._key, for_session=True)
            for at in range(0, len(keys), AGAIN_ROWS):
                some = keys[at : at + AGAIN_ROWS]
                found = connection.execute(query, [list(values) for values in zip(*some, strict=True)])
                yield [
                    change(0, UPSERT, [None if value is None else value.encode() for value in row], nothing)
                    for row in found
                ]
            self.read_at = str(await_flushed(connection, partial(write_message, connection)))

    def await_seen(self) -> None:
        """See :meth:`..changes.Changes.await_seen`."""
        self.await_visible(self.xids)

    def await_visible(self, xids: Collection[int]) -> None:
        """Wait until readers see these transactions; ``SourceUnavailable`` where that takes too long."""
        if xids:
            name = reader_name(self._name)
            with SOURCE.translate_errors(self._source), connect_source(self._source, name=name) as connection:
                _await_visible(connection, xids)

    def _query(self) -> str:
        """Return what shows the window: the server stops behind the first record that reaches its end."""
        query = sql.SQL("SELECT data FROM pg_logical_slot_peek_binary_changes({}, {}::pg_lsn, NULL, {})")
        options = ("proto_version", "1", "publication_names", f'"{self._slot}"')
        return query.format(
            sql.Literal(self._slot),
            sql.Literal(lsn(self._bounds.end.at).text),
            sql.SQL(", ").join(map(sql.Literal, options)),
        ).as_string(None)

    def _check(self, connection: psycopg.Connection, name: str) -> None:
        """See that the slot still shows the window from its start: the server silently passes over what it does not.

        Attempts before this one are ended first, since a slot has one reader at a time.
        """
        end_attempts(connection, name, below=int(name.rpartition(":")[2]))
        compares, clock = name.startswith(reader_name(f"bp:{COMPARING}")), SystemClock()
        late = clock.monotonic() + YIELD_SECONDS

        def free() -> tuple[Any, ...] | None:
            row = connection.execute(_SLOT, (self._slot,)).fetchone()
            if row is None or row[-1] is None:
                return row or (None, None)
            if not compares and clock.monotonic() >= late:
                # It may be of a process that is frozen, and the source keeps its log until windows go in.
                connection.execute(_END_COMPARING, (self._slot, reader_name(f"bp:{COMPARING}")))
            return None

        found = PollPolicy().until(free, timeout=FREE_SECONDS, clock=clock)
        if found is None:
            raise SourceUnavailable(f"Somebody else reads the replication slot {self._slot}, which has one reader.")
        self._check_shown(found)

    def check_kept(self) -> None:
        """Raise ``LogLost`` where the slot does not show the window any more: it may have been moved while it was read.

        A window that is committed needs no such check, since only its commit moves the slot.
        """
        name = reader_name(self._name)
        with SOURCE.translate_errors(self._source), connect_source(self._source, name=name) as connection:
            self._check_shown(connection.execute(_SLOT, (self._slot,)).fetchone() or (None, None))

    def _check_shown(self, row: tuple[Any, ...]) -> None:
        """Raise ``LogLost`` where the slot does not show the window, or the server was restored since it was planned.

        Positions alone say nothing of that: a server that was restored reaches them again.
        """
        confirmed, token = position_of(row[0]) if row[0] else None, mark_of(self._bounds.end)[1]
        if confirmed is None or confirmed > self._bounds.start:
            what = "is gone or invalid" if confirmed is None else f"was moved on to {confirmed.text}"
            raise LogLost(
                f"The replication slot {self._slot} {what}: the log from {lsn(self._bounds.start.at).text} on is lost."
            )
        if token and token not in str(row[1] or "").split():
            raise LogLost(
                f"The publication {self._slot} does not have the comment that was left when the window was planned: "
                f"{RESTORED}."
            )

    def _types(self, connection: psycopg.Connection) -> dict[str, Type]:
        """Return the types that columns must have in the log: those of the table now, which are the planned ones.

        But of those that are read as text: any other's text is one too.
        """
        planned = {column.name: column.type for column in self._read.columns if column.type != TEXT}
        with connection.transaction():
            connection.execute("SET LOCAL search_path TO ''")
            found = connection.execute(_TYPES, self._table).fetchall()
        retyped = [
            f"{name} was {planned[name]} and is {now}" for name, _, _, now in found if planned.get(name, now) != now
        ]
        if retyped:
            raise SourceRefused(
                f"{'.'.join(self._table)} has changed: {', '.join(retyped)}. Trigger the DAG with "
                '{"backpressure": "restart"} to plan again.'
            )
        return {name: (oid, modifier) for name, oid, modifier, _ in found if name in planned}

    def _handle_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        """A publication that is not there at some point of the log is a warning to the server, and a loss to us."""
        if "publication" in (diagnostic.message_primary or ""):
            self._lost.append(diagnostic.message_primary or "")


def _await_visible(connection: psycopg.Connection, xids: Collection[int]) -> None:
    """Wait until readers see transactions; ``SourceUnavailable`` where that takes too long."""
    left = xids

    def seen() -> bool | None:
        nonlocal left
        row = connection.execute(_SNAPSHOT).fetchone()
        assert row is not None, "a SELECT of functions has a row"
        left = TransactionSnapshot.parse(row[0]).list_unseen(left)
        return None if left else True

    if PollPolicy().until(seen, timeout=VISIBLE_SECONDS, clock=SystemClock()) is None:
        raise SourceUnavailable(
            f"{len(left)} transactions that are in the log of the source are not seen by its readers after "
            f"{VISIBLE_SECONDS:g} s: a commit may wait for a standby (synchronous_standby_names). A later attempt "
            "reads the rows."
        )


class StreamChanges:
    """Implements :class:`..changes.SharedChanges`: one window of a slot, read once for several tables."""

    def __init__(self, tables: Sequence[LogChanges], specs: Sequence[StreamTable]) -> None:
        """``specs``: the tables as the window has them, for the names in errors."""
        self.tables, self._specs = tables, specs

    def __iter__(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """See :meth:`..changes.SharedChanges.__iter__`; errors as those of one table, which they name."""
        first = self.tables[0]
        decoders = first.open_decoders(self.tables, [partial(name_table, spec) for spec in self._specs])
        splitter = TableSplitter([NamedDecoder(*each) for each in zip(decoders, self._specs, strict=True)])
        # So many that those of each table are enough to be decoded together.
        share = min(len(self.tables), MOST_BATCHES)
        for messages in first.messages(share):
            yield from splitter.rows(messages)

    def await_visible(self, numbers: Collection[int]) -> None:
        """See :meth:`..changes.SharedChanges.await_visible`."""
        self.tables[0].await_visible({xid for number in numbers for xid in self.tables[number].xids})


@dataclass(frozen=True)
class NamedDecoder:
    """The decoder of a table that shares the log: its errors name the table."""

    decoder: Decoder
    table: StreamTable

    def rows(self, messages: Sequence[bytes]) -> Sequence[bytes]:
        """See :meth:`..pgoutput.Decoder.rows`."""
        with name_table(self.table):
            return self.decoder.rows(messages)

    def has_table(self, number: int) -> bool:
        """See :meth:`..pgoutput.Decoder.has_table`."""
        return self.decoder.has_table(number)


def stream_changes(source: Endpoint, tables: Sequence[StreamTable], piece: Slice, name: str) -> StreamChanges:
    """See :class:`..changes.SharedLogReader`."""
    each = [
        changes(
            source,
            table.read,
            replace(piece, query=table.query),
            table.write.key,
            name,
            since=table.lacks_from,
        )
        for table in tables
    ]
    return StreamChanges(each, tables)


def _read_messages(blocks: Iterable[Sequence[bytes | memoryview]], batches: int) -> Iterator[Messages]:
    """Yield what a COPY of one column of bytes holds, see :meth:`LogChanges.messages`."""
    parts, sizes, count, size, first = list[bytes](), list[numpy.ndarray](), 0, 0, True
    for block in blocks:
        if first:
            block, first = [without_header(block[0]), *block[1:]], False
        # At once: the memory of each message is used again for a later one.
        parts.append(b"".join(block))
        sizes.append(measure(block))
        count, size = count + len(block), size + len(parts[-1])
        if count >= BATCH_MESSAGES * batches or size >= BATCH_BYTES * batches:
            yield Messages(b"".join(parts), numpy.concatenate(sizes), before=_PAYLOAD)
            parts, sizes, count, size = [], [], 0, 0
    if parts:
        yield Messages(b"".join(parts), numpy.concatenate(sizes), before=_PAYLOAD)


def _value(connection: psycopg.Connection, query: str) -> str:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    return str(row[0])


_ENOUGH_MEMORY = """
    SELECT set_config(name, '262144', false) FROM pg_settings
    WHERE name = 'logical_decoding_work_mem' AND setting::bigint < 262144
"""
"""Lets the server keep 256 MiB of transactions that it decodes before it writes them to its disk.

By its own 64 MiB, 500,000 updates of one transaction took it 2.5 times the CPU time and three times as long.
"""
_SNAPSHOT = "SELECT pg_current_snapshot()::text"
_TYPES = """
    SELECT a.attname::text, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
_END_COMPARING = sql.SQL(
    """
    SELECT pg_terminate_backend(a.pid)
    FROM {}, pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
    WHERE s.slot_name = %s AND starts_with(a.application_name, %s) AND a.usename = session_user
    """
).format(AS_LOGIN)
_SLOT = """
    SELECT s.confirmed_flush_lsn::text, obj_description(p.oid, 'pg_publication'), s.active_pid
    FROM pg_replication_slots s LEFT JOIN pg_publication p ON p.pubname = s.slot_name
    WHERE s.slot_name = %s AND s.restart_lsn IS NOT NULL
"""
