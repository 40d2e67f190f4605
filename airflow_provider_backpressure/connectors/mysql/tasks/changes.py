"""MySQL's binlog as changes: read as a replica reads it, from behind the transactions that a window begins with."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from struct import Struct
from uuid import uuid4

import pymysql

from airflow_provider_backpressure.connectors.mysql.binlog import event_stream as stream
from airflow_provider_backpressure.connectors.mysql.binlog.character_sets import charsets
from airflow_provider_backpressure.connectors.mysql.binlog.column_decoders import Row, Wanted, Wish
from airflow_provider_backpressure.connectors.mysql.binlog.event_stream import Event, Kind, gtid_of, xid_of
from airflow_provider_backpressure.connectors.mysql.binlog.window_reader import (
    NOTHING,
    UNNUMBERED,
    Change,
    Done,
    Walk,
    WalkedTable,
)
from airflow_provider_backpressure.connectors.mysql.binlog_position import Ask, Place, check_applied, seen, status
from airflow_provider_backpressure.connectors.mysql.connect import Connection, connect
from airflow_provider_backpressure.connectors.mysql.errors import code, words
from airflow_provider_backpressure.connectors.mysql.identifiers import TableName
from airflow_provider_backpressure.connectors.mysql.tasks.read import ATTEMPT, SOURCE, make_ask, reader_name
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, bounds_from_json
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.core.snapshot.shared_log_table_errors import name_table
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice, StreamTable
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    InvalidDeclaration,
    LogLost,
    SourceRefused,
    SourceUnavailable,
)
from airflow_provider_backpressure.spark.change_rows import DELETE, NULL, TRUNCATE, UPSERT, head

SOME, SOME_BYTES = 500, 512 * 1024
"""Changes handed on at a time, at the most, and bytes of them from which on no more wait for that."""
_OPERATIONS = {Done.WRITTEN: UPSERT, Done.DELETED: DELETE, Done.TRUNCATED: TRUNCATE}
_LENGTH = Struct(">i").pack
_PRIMARY = (
    "SELECT COLUMN_NAME FROM information_schema.STATISTICS"
    " WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {} AND INDEX_NAME = 'PRIMARY'"
)
_LOWER = "SELECT LOWER(CONVERT({} USING utf8mb3)), LOWER(CONVERT({} USING utf8mb3))"
_FATAL = 1236
"""The server cannot send what was asked for: among other reasons, since it has removed the file."""


def position(source: Endpoint, name: str) -> str:
    """See :class:`..changes.LogReader`. It has the log's end of that moment too, by which another log is noticed.

    The name is one of its own: the tasks of a range ask at once, and a server ends an older stream of the same name.
    """
    seen_from, name = source.for_executors(), f"{reader_name(name).rpartition(':')[0]}.{uuid4()}:1"
    connection = stream.open_stream(seen_from, SOURCE, name)
    try:
        with SOURCE.translate_errors(seen_from):
            ask = make_ask(connection)
            gtids, (file, at, *_) = seen(ask), status(ask)
            made = stream.find_maker(connection, name, str(file))
            return str(Place(gtids=gtids, file=str(file), at=int(at), made=made).position)
    finally:
        connection._force_close()


def changes(source: Endpoint, read: ReadSpec, piece: Slice, key: Sequence[str], name: str) -> "BinlogChanges":
    """See :class:`..changes.LogReader`."""
    table = FollowedTable(read, piece.query, key, since=read.since)
    return BinlogChanges(BinlogWindow(source.for_executors(), _bounds_of(piece), [table], reader_name(name)))


def stream_changes(source: Endpoint, tables: Sequence[StreamTable], piece: Slice, name: str) -> "StreamChanges":
    """See :class:`..changes.SharedLogReader`."""
    followed = [
        FollowedTable(each.read, each.query, each.write.key, since=each.since, joined=each.lacks_from)
        for each in tables
    ]
    return StreamChanges(BinlogWindow(source.for_executors(), _bounds_of(piece), followed, reader_name(name)), tables)


def _bounds_of(piece: Slice) -> LogBounds:
    bounds = bounds_from_json(dict(piece.bounds))
    if not isinstance(bounds, LogBounds):
        raise InvalidDeclaration("Only a piece of a log can be replayed.")
    return bounds


class FollowedTable:
    """A table whose changes a window brings, as a plan has it."""

    def __init__(self, read: ReadSpec, query: str, key: Sequence[str], *, since: str, joined: str = "") -> None:
        """``since``: position that every range has seen. ``joined``: position before which its changes are left out."""
        self.since = Place.from_position(LogPosition.parse(since)) if since else None
        self.joined = Place.from_position(LogPosition.parse(joined)).gtids if joined else NOTHING
        said = json.loads(query)
        self.name = TableName(database=str(said["database"]), name=str(said["table"]))
        as_text, null_zeros = said["as_text"], said["zero_dates"] == "null"
        self._types = {column.name: column.type for column in read.columns}
        wishes = {name: Wish(as_text=name in as_text, null_zero_dates=null_zeros) for name in self._types}
        self._key = tuple(key)
        self._wanted = Wanted(types=self._types, key=self._key, wishes=wishes, added=frozenset(read.added))
        self._none = NULL * (1 + len(self._key))
        self._fields = 3 + len(self._key) + len(self._types)

    def walk(self, ask: Ask, *, folds: bool) -> WalkedTable:
        """Return what is looked for in the log. ``folds``: whether the server has it under its name in lower case."""
        # A primary key that comes, goes or becomes another one stops the window that has it in its log.
        place = [_literal(part) for part in (self.name.database, self.name.name)]
        if folds:
            # By its own tables of letters, which are others than Python's.
            ((database, name),) = ask(_LOWER.format(*place))
            place = [_literal(part) for part in (database, name)]
        primary = {name for (name,) in ask(_PRIMARY.format(*place))}
        return WalkedTable(
            table=TableName(database=database, name=name) if folds else self.name,
            wanted=self._wanted,
            by_primary=primary == set(self._key),
            start=self.joined,
            begun=self.since.gtids if self.since else NOTHING,
            required=self.since.required if self.since else None,
        )

    def encode(self, seq: int, done: Done, values: Row) -> bytes:
        """Return a change as a row of a binary COPY."""
        parts = [head(seq, _OPERATIONS[done], self._fields), self._none]
        for value in values:
            if value is None:
                parts.append(NULL)
            else:
                parts += (_LENGTH(len(value)), value)
        return b"".join(parts)


class BinlogChanges:
    """Implements :class:`..changes.Changes`. Rows are in the log as a whole, so none is ever read again."""

    def __init__(self, window: "BinlogWindow | None" = None) -> None:
        """``window``: of one table; ``None`` for one of several, whose changes come together."""
        self.read_at = ""
        self.xids: Collection[int] = ()
        self._window = window

    def __iter__(self) -> Iterator[list[bytes]]:
        """See :meth:`..changes.Changes.__iter__`. ``LogLost`` where the server no longer has all of the window."""
        assert self._window is not None, "several tables are read together"
        for _, rows in self._window.rows():
            yield rows

    def again(self, keys: Sequence[Sequence[str]]) -> Iterator[list[bytes]]:
        raise InvalidDeclaration(f"{len(keys)} rows are to be read again, and the binlog has all of every row.")

    def await_seen(self) -> None:
        """Do nothing: no row is read again, and followed tables of MySQL are not compared by value."""


class StreamChanges:
    """Implements :class:`..changes.SharedChanges`: one window of a binlog, read once for several tables."""

    def __init__(self, window: "BinlogWindow", specs: Sequence[StreamTable]) -> None:
        """``specs``: the tables as the window has them, for the names in errors."""
        self.tables = [BinlogChanges() for _ in specs]
        self._window, self._specs = window, specs

    def __iter__(self) -> Iterator[tuple[int, list[bytes]]]:
        """See :meth:`..changes.SharedChanges.__iter__`; errors about one table name it."""
        try:
            yield from self._window.rows()
        except BackpressureError:
            if self._window.refused is None:
                raise
            with name_table(self._specs[self._window.refused]):
                raise

    def await_visible(self, numbers: Collection[int]) -> None:
        """See :meth:`..changes.SharedChanges.await_visible`.

        The server that sends a window has committed all of it, which is checked before, and shows what it has
        committed. A range that is read later checks that its own server has it too (``ReadSpec.replayed``).
        """


class BinlogWindow:
    """One window of the binlog, for the tables that are followed by it."""

    def __init__(self, source: Endpoint, bounds: LogBounds, tables: Sequence[FollowedTable], name: str) -> None:
        """``name``: that of the attempt, under which the server is asked."""
        self._source, self._name, self._tables = source, name, tables
        self._start, self._end = Place.from_position(bounds.start), Place.from_position(bounds.end)
        self._walk: Walk | None = None
        self._searched: dict[tuple[str, str], bool] = {}

    @property
    def refused(self) -> int | None:
        """The number of the table that an error was about; ``None``: the log."""
        return self._walk.refused if self._walk is not None else None

    def rows(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield rows of a binary COPY, some of one table at a time, with the number of the table.

        ``LogLost`` where the server no longer has all of the window.
        """
        with self._open() as connection:
            self._walk = self._begin(make_ask(connection))
            yield from self._encode(self._walk.changes(self._events(connection)))

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

    def _begin(self, ask: Ask) -> Walk:
        with SOURCE.translate_errors(self._source):
            known = charsets(ask)
            ((folding, server),) = ask("SELECT @@GLOBAL.lower_case_table_names, @@GLOBAL.server_uuid")
            self._start = self._start.seen_by(server)
            tables = [table.walk(ask, folds=bool(folding)) for table in self._tables]
        return Walk(
            tables=tables,
            charsets=known,
            start=self._start.gtids,
            end=self._end.gtids,
            folding=int(folding),
            is_prepared=self._is_prepared,
        )

    def _is_prepared(self, xid: str, number: int) -> bool:
        """Whether the log shows the XA transaction's PREPARE since a table's start and before this window."""
        since = self._tables[number].since
        assert since is not None, "asked where the start is known"
        key = xid, str(since.gtids)
        if key not in self._searched:
            self._searched[key] = self._search_files(xid, since.gtids)
        return self._searched[key]

    def _search_files(self, xid: str, since: GtidSet) -> bool:
        """Search what is before the window for an XA transaction's PREPARE.

        It is mostly near, and files are many: they are searched from the window's start back, twice as many each time.
        """
        connection = connect(self._source, errors=SOURCE, name=self._name)
        with closing(connection), SOURCE.translate_errors(self._source):
            names = [str(row[0]) for row in make_ask(connection)("SHOW BINARY LOGS")]
        last = names.index(self._start.file) + 1 if self._start.file in names else len(names)
        back, found = 1, None
        while found is None:
            found = self._search_prepare(xid, names[max(0, last - back)], since)
            if found is None and back >= last:
                return False
            back *= 2
        return found

    def _search_prepare(self, xid: str, file: str, since: GtidSet) -> bool | None:
        """Search the log from a file on; ``None`` where that begins behind the table's start and does not have it."""
        within, found = False, None
        # Under the attempt's own name the server would end the stream that is being read.
        name = f"{ATTEMPT}{uuid4()}:1"
        with self._open(name) as connection:
            for event in self._sent(connection, Place(gtids=GtidSet({}), file=file), name):
                if event.kind == Kind.GTID:
                    gtid = gtid_of(event.body)
                    if not self._start.gtids.has(*gtid):
                        break
                    within = not since.has(*gtid)
                    found = found if within else False
                elif within and event.kind == Kind.XA_PREPARE and xid_of(event.body) == xid:
                    return True
        return found

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
            rest = None if begun or not self._start.is_readable else self._find_rest()
            if rest is None:
                raise
        with self._open() as another:
            yield from self._sent(another, rest)

    def _find_rest(self) -> Place | None:
        """Return where the log continues if the file of the start was removed; ``None`` where it was not.

        By itself the server begins at the newest file that will do, and passes over those before it, in which there may
        be transactions without a GTID. Files of another server cannot be compared.
        """
        connection = connect(self._source, errors=SOURCE, name=self._name)
        with closing(connection), SOURCE.translate_errors(self._source):
            ask = make_ask(connection)
            files = [str(row[0]) for row in ask("SHOW BINARY LOGS")]
            ((server, purged),) = ask("SELECT @@GLOBAL.server_uuid, @@GLOBAL.gtid_purged")
        if self._start.made.partition("/")[0] != server:
            return Place(gtids=self._start.gtids)
        gone = self._start.file not in files and GtidSet.parse(str(purged or "")).within(self._start.gtids)
        return Place(gtids=self._start.gtids, file=files[0]) if gone else None

    def _sent(self, connection: Connection, start: Place, name: str = "") -> Iterator[Event]:
        try:
            with SOURCE.translate_errors(self._source):
                place = (start.file, start.at) if start.is_readable else ()
                yield from stream.sent(connection, name or self._name, start.gtids, *place)
        except SOURCE.refused as error:
            raise _lost(error, self._source) from error

    def _encode(self, changes: Iterator[Change]) -> Iterator[tuple[int, list[bytes]]]:
        """Yield rows by table, each table's in the log's order; errors of the source leave here as they are."""
        rows: dict[int, list[bytes]] = {}
        count = size = 0
        for seq, (number, done, values) in enumerate(changes):
            row = self._tables[number].encode(seq, done, values)
            rows.setdefault(number, []).append(row)
            count, size = count + 1, size + len(row)
            if count == SOME or size >= SOME_BYTES:
                yield from rows.items()
                rows, count, size = {}, 0, 0
        yield from rows.items()


def _literal(name: str) -> str:
    """Return a name as a text that no setting of the session reads otherwise."""
    return f"CONVERT(X'{name.encode().hex()}' USING utf8mb4)"


def _lost(error: Exception, source: Endpoint) -> Exception:
    cause = error.__cause__
    if not isinstance(cause, pymysql.Error) or code(cause) != _FATAL:
        return error
    if stream.is_about_unnumbered(cause):
        return SourceRefused(UNNUMBERED)
    if "same server_uuid" in words(cause):
        return SourceUnavailable(f"Another attempt reads the binlog of MySQL at {source.address} in this one's place.")
    return LogLost(
        f"MySQL at {source.address} no longer has the binlog from where replaying is to continue, or cannot send it "
        f'({words(cause)}): trigger the DAG with {{"backpressure": "restart"}} to read the table again.'
    )
