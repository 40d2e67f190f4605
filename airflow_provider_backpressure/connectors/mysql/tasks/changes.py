"""MySQL's binlog as changes: read as a replica reads it, from behind the transactions that a window begins with."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from struct import Struct
from uuid import uuid4

import pymysql

from airflow_provider_backpressure.connectors.mysql.binlog import dump_stream as stream
from airflow_provider_backpressure.connectors.mysql.binlog.dump_stream import Event, Kind, gtid_of, xid_of
from airflow_provider_backpressure.connectors.mysql.binlog.row_decoder import Wanted, Wish
from airflow_provider_backpressure.connectors.mysql.binlog.values import charsets
from airflow_provider_backpressure.connectors.mysql.binlog.window_reader import Change, Done, Walk
from airflow_provider_backpressure.connectors.mysql.binlog_position import Ask, Place, check_applied, seen
from airflow_provider_backpressure.connectors.mysql.connect import Connection, connect
from airflow_provider_backpressure.connectors.mysql.errors import code, words
from airflow_provider_backpressure.connectors.mysql.identifiers import TableName
from airflow_provider_backpressure.connectors.mysql.tasks.read import ATTEMPT, SOURCE, make_ask, reader_name
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, bounds_from_json
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.core.snapshot.messages import ReadSpec, Slice
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LogLost, SourceUnavailable
from airflow_provider_backpressure.spark.change_rows import DELETE, NULL, TRUNCATE, UPSERT, head

SOME, SOME_BYTES = 500, 512 * 1024
"""Changes handed on at a time, at the most, and bytes of them from which on no more wait for that."""
_OPERATIONS = {Done.WRITTEN: UPSERT, Done.DELETED: DELETE, Done.TRUNCATED: TRUNCATE}
_LENGTH = Struct(">i").pack
_PRIMARY = (
    "SELECT COLUMN_NAME FROM information_schema.STATISTICS"
    " WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {} AND INDEX_NAME = 'PRIMARY'"
)
_FATAL = 1236
"""The server cannot send what was asked for: among other reasons, since it has removed the file."""


def position(source: Endpoint, name: str) -> str:
    """See :class:`..changes.LogReader`."""
    seen_from = source.for_executors()
    connection = connect(seen_from, errors=SOURCE, name=reader_name(name))
    try:
        with SOURCE.translate_errors(seen_from):
            return str(Place(gtids=seen(make_ask(connection))).position)
    finally:
        connection.close()


def changes(source: Endpoint, read: ReadSpec, piece: Slice, key: Sequence[str], name: str) -> "BinlogChanges":
    """See :class:`..changes.LogReader`."""
    bounds = bounds_from_json(dict(piece.bounds))
    if not isinstance(bounds, LogBounds):
        raise InvalidDeclaration("Only a piece of a log can be replayed.")
    return BinlogChanges(source.for_executors(), read, bounds, json.loads(piece.query), key, reader_name(name))


class BinlogChanges:
    """Implements :class:`..changes.Changes`. Rows are in the log as a whole, so none is ever read again."""

    def __init__(
        self,
        source: Endpoint,
        read: ReadSpec,
        bounds: LogBounds,
        said: dict[str, object],
        key: Sequence[str],
        name: str,
    ) -> None:
        self.read_at = ""
        self._source, self._name, self._said = source, name, said
        self._start, self._end = Place.from_position(bounds.start), Place.from_position(bounds.end)
        self._since = Place.from_position(LogPosition.parse(read.since)) if read.since else None
        self._types = {column.name: column.type for column in read.columns}
        self._added = frozenset(read.added)
        self._key = tuple(key)

    def __iter__(self) -> Iterator[list[bytes]]:
        """See :meth:`..changes.Changes.__iter__`. ``LogLost`` where the server no longer has all of the window."""
        with self._open() as connection:
            walk = self._walk(make_ask(connection))
            yield from self._encode(walk.changes(self._events(connection)))

    def again(self, keys: Sequence[Sequence[str]]) -> Iterator[list[bytes]]:
        raise InvalidDeclaration(f"{len(keys)} rows are to be read again, and the binlog has all of every row.")

    def await_seen(self) -> None:
        """Do nothing: no row is read again, and followed tables of MySQL are not compared by value."""

    @contextmanager
    def _open(self, name: str = "") -> Iterator[Connection]:
        connection = stream.open_stream(self._source, SOURCE, name or self._name)
        try:
            with SOURCE.translate_errors(self._source):
                check_applied(make_ask(connection), self._end.gtids, self._source.address)
            yield connection
        finally:
            # Closing it politely would wait behind what the server is still sending.
            connection._force_close()

    def _walk(self, ask: Ask) -> Walk:
        said = self._said
        table = TableName(database=str(said["database"]), name=str(said["table"]))
        as_text, zero_dates = said["as_text"], said["zero_dates"]
        assert isinstance(as_text, list), "a plan names them in a list"
        wishes = {name: Wish(as_text=name in as_text, null_zero_dates=zero_dates == "null") for name in self._types}
        with SOURCE.translate_errors(self._source):
            known = charsets(ask)
            ((folded,),) = ask("SELECT @@GLOBAL.lower_case_table_names")
            # A primary key that comes, goes or becomes another one stops the window that has it in its log.
            primary = {name for (name,) in ask(_PRIMARY.format(*map(_literal, (table.database, table.name))))}
        return Walk(
            table=table,
            wanted=Wanted(types=self._types, key=self._key, wishes=wishes, added=self._added),
            charsets=known,
            start=self._start.gtids,
            end=self._end.gtids,
            folded=bool(folded),
            by_primary=primary == set(self._key),
            required=self._since.required if self._since else None,
            is_prepared=self._is_prepared,
        )

    def _is_prepared(self, xid: str) -> bool:
        """Whether the log shows the XA transaction's PREPARE since the plan's start and before this window.

        It is mostly near, and files are many: they are searched from the window's start back, twice as many each time.
        """
        connection = connect(self._source, errors=SOURCE, name=self._name)
        with closing(connection), SOURCE.translate_errors(self._source):
            names = [str(row[0]) for row in make_ask(connection)("SHOW BINARY LOGS")]
        last = names.index(self._start.file) + 1 if self._start.file in names else len(names)
        back, found = 1, None
        while found is None:
            found = self._search_prepare(xid, names[max(0, last - back)])
            if found is None and back >= last:
                return False
            back *= 2
        return found

    def _search_prepare(self, xid: str, file: str) -> bool | None:
        """Search the log from a file on; ``None`` where that begins behind the plan's start and does not have it."""
        assert self._since is not None, "asked where the start is known"
        within, since = False, None
        # Under the attempt's own name the server would end the stream that is being read.
        name = f"{ATTEMPT}{uuid4()}:1"
        with self._open(name) as connection:
            for event in self._sent(connection, Place(gtids=GtidSet({}), file=file), name):
                if event.kind == Kind.GTID:
                    gtid = gtid_of(event.body)
                    if not self._start.gtids.has(*gtid):
                        break
                    within = not self._since.gtids.has(*gtid)
                    since = since if within else False
                elif within and event.kind == Kind.XA_PREPARE and xid_of(event.body) == xid:
                    return True
        return since

    def _events(self, connection: Connection) -> Iterator[Event]:
        """Yield the server's events, from the file on that is known, or from the one that the server finds."""
        begun = False
        try:
            for event in self._sent(connection, self._start):
                begun = True
                yield event
            return
        except LogLost:
            # The content of that file may have been replayed before it was removed.
            if begun or not self._start.is_readable:
                raise
        with self._open() as another:
            yield from self._sent(another, Place(gtids=self._start.gtids))

    def _sent(self, connection: Connection, start: Place, name: str = "") -> Iterator[Event]:
        try:
            with SOURCE.translate_errors(self._source):
                place = (start.file, start.at) if start.is_readable else ()
                yield from stream.sent(connection, name or self._name, start.gtids, *place)
        except SOURCE.refused as error:
            raise _lost(error, self._source) from error

    def _encode(self, changes: Iterator[Change]) -> Iterator[list[bytes]]:
        """Yield rows of a binary COPY; errors of the source leave here as they are."""
        none = NULL * (1 + len(self._key))
        fields = 3 + len(self._key) + len(self._types)
        rows: list[bytes] = []
        size = 0
        for seq, (done, values) in enumerate(changes):
            parts = [head(seq, _OPERATIONS[done], fields), none]
            for value in values:
                if value is None:
                    parts.append(NULL)
                else:
                    parts += (_LENGTH(len(value)), value)
            rows.append(b"".join(parts))
            size += len(rows[-1])
            if len(rows) == SOME or size >= SOME_BYTES:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows


def _literal(name: str) -> str:
    """Return a name as a text that no setting of the session reads otherwise."""
    return f"CONVERT(X'{name.encode().hex()}' USING utf8mb4)"


def _lost(error: Exception, source: Endpoint) -> Exception:
    cause = error.__cause__
    if not isinstance(cause, pymysql.Error) or code(cause) != _FATAL:
        return error
    if "same server_uuid" in words(cause):
        return SourceUnavailable(f"Another attempt reads the binlog of MySQL at {source.address} in this one's place.")
    return LogLost(
        f"MySQL at {source.address} no longer has the binlog from where replaying is to continue, or cannot send it "
        f'({words(cause)}): trigger the DAG with {{"backpressure": "restart"}} to read the table again.'
    )
