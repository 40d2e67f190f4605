"""MySQL's binlog as what one hydration replays: nothing is made in the server, and it keeps what its settings say."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import uuid4

import pymysql

from airflow_provider_backpressure.connectors.mysql.binlog import event_stream as stream
from airflow_provider_backpressure.connectors.mysql.binlog.event_stream import Kind
from airflow_provider_backpressure.connectors.mysql.binlog.window_reader import UNNUMBERED
from airflow_provider_backpressure.connectors.mysql.binlog_position import (
    SETTLED_SECONDS,
    Place,
    read_current_place,
    read_executed_gtids,
    seen,
    shorten,
)
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.errors import Errors, code
from airflow_provider_backpressure.connectors.mysql.identifiers import TableName, literal
from airflow_provider_backpressure.connectors.mysql.source.checks import check_complete
from airflow_provider_backpressure.connectors.mysql.source.prepared_transactions import await_prepared
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy, SystemClock
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.core.snapshot.replay_window import TRANSACTIONS
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice
from airflow_provider_backpressure.core.snapshot.table_alterations import StoredColumn, TableStorage
from airflow_provider_backpressure.exceptions import LogLost, SourceRefused, SourceUnavailable

ERRORS = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
RESTART = 'trigger the DAG with {"backpressure": "restart"} to read the table again'
_HEAD = 4
"""The offset of a file's first event."""
_FIRST_EVENTS = 5
"""Events at the head of a file among which is the one that lists the transactions in earlier files."""
_NO_EVENT = 1220
"""No event begins at that place of the file, or the file ends before."""
_BETWEEN = frozenset({"Format_desc", "Previous_gtids", "Gtid", "Rotate", "Stop"})
"""Events that follow a place between two transactions."""
_GTIDS = re.compile(r"^[0-9a-f-]{36}:", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """A place between two transactions, and the bytes of log before it, from the first place on."""

    place: Place
    bytes: int


class MySQLLog:
    """Implements :class:`..core.ports.ChangeLog` for one table, or without one for a log that several share."""

    unit = TRANSACTIONS

    def __init__(
        self, endpoint: Endpoint, hydration_id: str, table: TableName | None = None, *, clock: Clock | None = None
    ) -> None:
        self.stream = f"binlog_{hydration_id}"
        self._table = table
        self._clock = clock or SystemClock()
        self._session = Session(endpoint, errors=ERRORS)

    def begin(self) -> LogPosition:
        """See :meth:`..core.ports.ChangeLog.begin`.

        Rows of an XA transaction are logged when it is prepared, and seen when it is committed. So those that are
        prepared before the start are waited for, and every range has to see their commits.
        """
        start = self._read_place()
        if await_prepared(self._session, self._clock):
            with ERRORS.translate_errors(self._session.endpoint):
                start = replace(start, settled=read_current_place(self._session.raw).gtids)
        return start.position

    def windows(
        self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
    ) -> list[LogBounds]:
        """See :meth:`..core.ports.ChangeLog.windows`. Bytes are the log's, of all tables together.

        Windows end where files do, and between them where one server's transactions follow each other without a gap.
        """
        first, now = Place.from_position(start), self._read_place()
        self._check(first.gtids, now.gtids)
        self._check_same_log(first)
        check_complete(self._session)
        if goal is not None and not start.has_reached(goal):
            self._check_goal(goal, now.gtids)
        # What is known as executed never shrinks, but a later start may know of more.
        if now.gtids.count <= start.at:
            self._check_numbered(first, now)
            return []
        cuts = [_Cut(place=first, bytes=0), *self._cuts(first.seen_by(self._server()), now, bytes)]
        return [
            LogBounds(stream=self.stream, start=before.place.position, end=after.place.position)
            for before, after in pairwise(_wide_enough(cuts, bytes))
        ]

    def check(self, position: LogPosition) -> None:
        """See :class:`..core.ports.ChecksPosition`. ``SourceRefused`` where what follows cannot be replayed."""
        place, now = Place.from_position(position), self._read_place()
        self._check(place.gtids, now.gtids)
        self._check_same_log(place)
        self._check_numbered(place, now)

    def storage(self, read: ReadSpec) -> TableStorage:
        """See :meth:`..core.ports.ChangeLog.storage`. The binlog has every statement that alters a table.

        But windows pass over the values of columns that their plan leaves out. The names show later which these were.
        """
        assert self._table is not None, "a log that several share has no columns"
        place = f"TABLE_SCHEMA = {literal(self._table.database)} AND TABLE_NAME = {literal(self._table.name)}"
        names = self._session.rows(f"SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE {place}")
        columns = tuple(StoredColumn(name=str(name), number=0, version="", filled=False) for (name,) in names)
        return TableStorage(table=str(self._table), lock="", relations=(), columns=columns)

    def release(self, upto: LogPosition) -> None:
        """See :meth:`..core.ports.ChangeLog.release`. The server removes its files by age, with or without readers."""

    def guard(self, *, replaying: bool | None) -> None:
        """See :meth:`..core.ports.ChangeLog.guard`. The server keeps nothing for us that could endanger it."""

    def drop(self) -> None:
        """See :meth:`..core.ports.ChangeLog.drop`. Nothing was made."""

    def close(self) -> None:
        """Give the connection back; idempotent."""
        self._session.close()

    def _read_executed(self) -> GtidSet:
        with ERRORS.translate_errors(self._session.endpoint):
            return read_executed_gtids(self._session.raw)

    def _read_place(self) -> Place:
        with ERRORS.translate_errors(self._session.endpoint):
            place = read_current_place(self._session.raw)
        return replace(place, made=self._made(place.file)) if place.file else place

    def _made(self, file: str) -> str:
        """Return which server began a file, and when."""
        endpoint, name = self._session.endpoint, f"{self.stream}:{uuid4()}:1"
        connection = stream.open_stream(endpoint, ERRORS, name)
        try:
            with ERRORS.translate_errors(endpoint):
                return stream.find_maker(connection, name, file)
        finally:
            connection._force_close()

    def _server(self) -> str:
        return str(self._session.value("SELECT @@GLOBAL.server_uuid"))

    def _check_same_log(self, place: Place) -> None:
        if not self._is_same_log(place):
            raise LogLost(
                f"MySQL at {where(self._session.endpoint)} has another binlog than the one that was read up to "
                f"{place.file}:{place.at}: it was reset or restored; {RESTART}."
            )

    def _is_same_log(self, place: Place) -> bool:
        """Whether a place is in the log that it was in, as far as this server's files show; another's cannot."""
        if place.made.partition("/")[0] != self._server():
            return True
        sizes = {str(row[0]): int(row[1]) for row in self._session.rows("SHOW BINARY LOGS")}
        if place.file not in sizes:
            return _number(place.file) < min(map(_number, sizes))
        if sizes[place.file] < place.at or place.made != self._made(place.file):
            return False
        return not place.is_readable or sizes[place.file] == place.at or self._begins_event(place)

    def _check_numbered(self, first: Place, now: Place) -> None:
        """Raise ``SourceRefused`` where transactions without a GTID follow, which the set of GTIDs does not show."""
        if (now.file, now.at) == (first.file, first.at) or first.made.partition("/")[0] != self._server():
            return
        names = [str(row[0]) for row in self._session.rows("SHOW BINARY LOGS")]
        place = (first.file, first.at) if first.is_readable and first.file in names else (names[0],)
        endpoint, name = self._session.endpoint, f"{self.stream}:{uuid4()}:1"
        connection = stream.open_stream(endpoint, ERRORS, name)
        try:
            found = any(event.kind == Kind.ANONYMOUS for event in stream.sent(connection, name, first.gtids, *place))
        except pymysql.Error as error:
            if not stream.is_about_unnumbered(error):
                raise ERRORS.translate(error, endpoint) from error
            found = True
        finally:
            connection._force_close()
        if found:
            raise SourceRefused(UNNUMBERED)

    def _begins_event(self, place: Place) -> bool:
        """Whether a file continues at a place as it does between two transactions."""
        try:
            rows = self._session.raw(f"SHOW BINLOG EVENTS IN {literal(place.file)} FROM {place.at} LIMIT 1")
        except pymysql.Error as error:
            if code(error) == _NO_EVENT:
                return False
            raise ERRORS.translate(error, self._session.endpoint) from error
        return all(int(row[1]) == place.at and str(row[2]) in _BETWEEN for row in rows)

    def _check(self, start: GtidSet, now: GtidSet) -> None:
        """Raise ``LogLost`` where the server has not all that was replayed, or no longer what has to be."""
        at = f"MySQL at {where(self._session.endpoint)}"
        self._check_present(start, now)
        purged = GtidSet.parse(str(self._session.value("SELECT @@GLOBAL.gtid_purged") or ""))
        lost = purged.minus(start)
        if lost.sources:
            raise LogLost(
                f"{at} has removed {shorten(lost)} from its binlog before they were replayed: let it keep its files "
                f"longer (binlog_expire_logs_seconds), and {RESTART}."
            )

    def _check_present(self, start: GtidSet, now: GtidSet) -> None:
        """Raise ``LogLost`` where the server has not all that was replayed."""
        strange = start.minus(now)
        if strange.sources:
            raise LogLost(
                f"MySQL at {where(self._session.endpoint)} does not have {shorten(strange)}, which were replayed "
                f"already: it was restored or reset, or is another server; {RESTART}."
            )

    def _check_goal(self, goal: LogPosition, now: GtidSet) -> None:
        """Raise ``LogLost`` where rows of the target show transactions that the server does not have.

        A range counts transactions that were being committed. If it will be seen, that takes moments. A server that was
        restored may have the same numbers again, with other changes: its files are others than those at that time.
        """
        missing = (goal.transactions or GtidSet({})).minus(now)

        def is_known() -> bool | None:
            return True if missing.within(seen(self._session.rows)) else None

        known = not missing.sources or PollPolicy().until(is_known, timeout=SETTLED_SECONDS, clock=self._clock)
        if not known:
            raise LogLost(
                f"MySQL at {where(self._session.endpoint)} does not have {shorten(missing)}, which ranges have read "
                f"already: another server that lacks them took its place, or it was restored; {RESTART}."
            )
        for file, at in goal.places.items():
            self._check_same_log(Place.from_position(LogPosition(at=0, text=f"@{file}:{at}")))

    def _cuts(self, first: Place, now: Place, size: int) -> Iterator[_Cut]:
        """Yield places behind ``first`` up to ``now``, at most about so many bytes apart."""
        before, done = first, 0
        for after, length in self._files(first, now):
            yield from _within(before, after, done, length, size)
            before, done = after, done + length
            yield _Cut(place=after, bytes=done)

    def _files(self, first: Place, now: Place) -> Iterator[tuple[Place, int]]:
        """Yield where each file begins that follows what is known, then ``now``, with the bytes of log before it."""
        files = [(str(row[0]), int(row[1])) for row in self._session.rows("SHOW BINARY LOGS")]
        names = [name for name, _ in files]
        if not now.is_readable or now.file not in names:
            yield now, 0
            return
        files = files[: names.index(now.file) + 1]
        known = names.index(first.file) if first.is_readable and first.file in names[: len(files)] else None
        if known is None:
            known = self._find_file(files, first.gtids)
            behind = _HEAD
        else:
            behind = first.at
        for (_, length), (name, _) in pairwise(files[known:]):
            after = Place(gtids=self._before(name).union(first.gtids), file=name, made=self._made(name))
            yield after, max(0, length - behind)
            behind = _HEAD
        yield now, max(0, now.at - behind)

    def _find_file(self, files: list[tuple[str, int]], gtids: GtidSet) -> int:
        """Return the number of the last file that begins with nothing but these transactions before it."""
        for number in range(len(files) - 1, 0, -1):
            if self._before(files[number][0]).within(gtids):
                return number
        return 0

    def _before(self, file: str) -> GtidSet:
        """Return the transactions in the files before one."""
        events = self._session.rows(f"SHOW BINLOG EVENTS IN {literal(file)} LIMIT {_FIRST_EVENTS}")
        said = next((str(row[5]) for row in events if row[2] == "Previous_gtids"), "")
        return GtidSet.parse(said) if _GTIDS.match(said) else GtidSet({})


def window_slice(
    bounds: LogBounds, table: TableName, *, slice_id: str, as_text: tuple[str, ...], zero_dates: str
) -> Slice:
    """Return the slice of a window: of which table, and how its columns are read. Positions are in the bounds."""
    query = table_query(table, as_text=as_text, zero_dates=zero_dates)
    return Slice(slice_id=slice_id, query=query, bounds=bounds.to_json())


def table_query(table: TableName, *, as_text: tuple[str, ...], zero_dates: str) -> str:
    """Return what a task needs to know of a table whose changes it brings."""
    query = {"database": table.database, "table": table.name, "as_text": list(as_text), "zero_dates": zero_dates}
    return json.dumps(query)


def _within(before: Place, after: Place, done: int, length: int, size: int) -> Iterator[_Cut]:
    """Yield places within one piece of a file, by the number of its transactions, taken for equally large.

    Only one server's, without a gap, are sure to be there in their order.
    """
    new = after.gtids.minus(before.gtids)
    number = -(-length // size)
    if number < 2 or len(new.sources) != 1 or any(len(each) != 1 for each in new.sources.values()):
        return
    so_far = before.gtids
    pieces = list(new.pieces(-(-new.count // number)))
    for at, piece in enumerate(pieces[:-1], start=1):
        so_far = so_far.union(piece)
        place = replace(before, gtids=so_far)
        yield _Cut(place=place, bytes=done + length * at // len(pieces))


def _wide_enough(cuts: list[_Cut], size: int) -> list[_Cut]:
    """Return the cuts without those between which as many bytes would fit with the next."""
    kept = [cuts[0]]
    for cut, following in pairwise([*cuts[1:], cuts[-1]]):
        new = cut.place.gtids.count > kept[-1].place.gtids.count
        if new and (cut is cuts[-1] or following.bytes - kept[-1].bytes > size):
            kept.append(cut)
    return kept


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
