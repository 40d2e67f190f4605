"""A walk over the events of a window: what changed in its tables, transaction by transaction, and where to stop.

Several tables may share a walk. What cannot be replayed is then about one of them, or about the log.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_backpressure.connectors.mysql.binlog.column_decoders import Charsets, Row, RowReader, Wanted
from airflow_provider_backpressure.connectors.mysql.binlog.ddl import Effect, Followed, effect, lower
from airflow_provider_backpressure.connectors.mysql.binlog.event_stream import (
    Event,
    Kind,
    gtid_of,
    statement_of,
    unpack_transaction,
    xid_of,
)
from airflow_provider_backpressure.connectors.mysql.binlog.table_map import table_name, table_number, table_of
from airflow_provider_backpressure.connectors.mysql.identifiers import TableName
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.exceptions import LogLost, SourceRefused

_RESTART = 'trigger the DAG with {"backpressure": "restart"}'
UNNUMBERED = f"The binlog has transactions without a GTID, or with a tag: {_RESTART} once all have one."
_USUAL = (b"\0BEGIN", b"\0COMMIT")
_XA_COMMIT = "XA COMMIT "
_AS_WRITTEN = 2
_OLD = (Kind.OLD_WRITE, Kind.OLD_UPDATE, Kind.OLD_DELETE, Kind.PARTIAL_UPDATE)


class Done(Enum):
    """What was done to a row."""

    WRITTEN = "written"
    DELETED = "deleted"
    TRUNCATED = "truncated"
    """All rows are gone; the row is empty."""


Change = tuple[int, Done, Row]
"""The number of the table, what was done, and to which row."""
NOTHING = GtidSet({})
Readers = list[tuple[int, RowReader]]
"""Of one event's rows: a reader for each followed table of that name, with the table's number."""


@dataclass(kw_only=True)
class WalkedTable:
    """A table whose changes are looked for."""

    table: TableName
    wanted: Wanted
    by_primary: bool = True
    """Whether the key is the table's primary key."""
    start: GtidSet = NOTHING
    """Transactions that are left out: what was of this name then may be another table, and every range has seen them.
    """
    begun: GtidSet = NOTHING
    """Transactions of before the table was followed. Its target may have more, since windows come one table after
    another: then ``start`` has more, too."""
    required: GtidSet | None = None
    """Transactions that every range has seen; ``None`` in plans of earlier releases, which do not know them."""

    def __post_init__(self) -> None:
        """Find the columns of the key."""
        self.key = [place for place, name in enumerate(self.wanted.types) if name in self.wanted.key]


@dataclass(kw_only=True)
class Walk:
    """The transactions of ``end`` without those of ``start``, in the log's order.

    Raises ``LogLost`` where the log ends before all of them were seen, and ``SourceRefused`` for what cannot be
    replayed. Rows are handed on before their transaction is over: what follows may still raise.
    """

    tables: Sequence[WalkedTable]
    charsets: Charsets
    start: GtidSet
    end: GtidSet
    folding: int = 0
    """How the server treats case in the names of tables, as its ``lower_case_table_names``: 0 distinguishes it, 1 has
    names in lower case, 2 as they were written. Otherwise than by 0, the names of ``tables`` are in lower case."""
    is_prepared: Callable[[str, int], bool] = field(default=lambda xid, number: False)
    """Whether an XA transaction was prepared, since a table's start, in a part of the log of earlier windows."""
    refused: int | None = None
    """The number of the table that an error is about; ``None``: the log."""
    _prepared: dict[str, set[int]] = field(default_factory=dict)
    """XA transactions that were prepared in this window and changed no table, with the tables not followed by then."""
    _left: int = field(init=False)
    _readers: dict[int, tuple[bytes, Readers]] = field(default_factory=dict)
    _touched: set[int] = field(default_factory=set)
    """Tables that this transaction has changed."""
    _skipping: set[int] = field(default_factory=set)
    """Tables that leave this transaction out."""
    _gtid: str = ""

    def __post_init__(self) -> None:
        """Count what there is to be seen."""
        new = self.end.minus(self.start)
        self._left = new.count
        self._skipped = {
            number: left_out
            for number, each in enumerate(self.tables)
            if (left_out := new.minus(new.minus(each.start))).sources
        }
        self._named: dict[tuple[str, str], list[int]] = {}
        for number, each in enumerate(self.tables):
            self._named.setdefault(each.table.parts, []).append(number)
        self._followed = [
            Followed(table=each.table, folded=bool(self.folding), by_primary=each.by_primary) for each in self.tables
        ]

    def changes(self, events: Iterable[Event]) -> Iterator[Change]:
        """Yield what changed, and stop at the first transaction that is not in the window, or at the log's end."""
        for event in events:
            if event.kind in (Kind.GTID, Kind.ANONYMOUS, Kind.TAGGED):
                if not self._goes_on(event):
                    return
            elif not self._gtid and event.kind != Kind.INCIDENT:
                raise LogLost(f"The place from which the binlog is read is within a transaction: {_RESTART}.")
            elif event.kind == Kind.PAYLOAD:
                for inner in unpack_transaction(event.body):
                    yield from self._read_event(inner)
                    self.refused = None
            else:
                yield from self._read_event(event)
            # What is raised until the next event is taken apart is about the log.
            self.refused = None
        if self._left:
            raise LogLost(
                f"The binlog ended {self._left} transactions before {self.end}, which the server had: {_RESTART}."
            )

    def _goes_on(self, event: Event) -> bool:
        """Begin a transaction; ``False`` where it is behind the window."""
        if event.kind != Kind.GTID:
            raise SourceRefused(UNNUMBERED)
        source, number = gtid_of(event.body)
        self._gtid, self._touched = f"{source}:{number}", set()
        self._skipping = {at for at, left_out in self._skipped.items() if left_out.has(source, number)}
        if self.end.has(source, number):
            self._left -= 1
            return True
        if self._left:
            raise SourceRefused(
                f"Transaction {self._gtid} is in the binlog before {self._left} that were committed earlier: let "
                "binlog_order_commits, and on a replica replica_preserve_commit_order, be ON."
            )
        return False

    def _read_event(self, event: Event) -> Iterator[Change]:
        """Yield what an event within a transaction changed."""
        take = _TAKEN.get(event.kind)
        if take is not None:
            for number, reader in self._find_readers(event.body):
                yield from take(self, number, reader, event.body)
        elif event.kind == Kind.TABLE_MAP:
            self._read_table_map(event.body)
        elif event.kind in (Kind.QUERY, Kind.LOAD):
            yield from self._read_statement(event)
        elif event.kind in _OLD:
            self._refuse_old(event)
        elif event.kind == Kind.XA_PREPARE:
            self._read_prepare(event.body)
        elif event.kind == Kind.INCIDENT:
            raise LogLost(f"The server says that its binlog lacks changes (an incident event): {_RESTART}.")
        else:
            raise self._cannot(f"has an event of kind {event.kind}, which this version does not know")

    def _read_prepare(self, body: bytes) -> None:
        if self._touched and not body[0]:
            raise self._cannot_for(
                min(self._touched), "belongs to an XA transaction, of which nobody knows yet whether it is committed"
            )
        if (xid := xid_of(body)) is not None:
            gtid = self._find_gtid()
            self._prepared[xid] = {at for at, each in enumerate(self.tables) if each.begun.has(*gtid)}

    def _check_prepared(self, xid: str) -> None:
        """Stop at the commit of an XA transaction that no window of a plan has shown: its rows may be the table's."""
        gtid = self._find_gtid()
        left_out = self._prepared.get(xid)
        for number, each in self._list_affected():
            if each.required is None or each.required.has(*gtid):
                continue
            if (left_out is None or number in left_out) and not self.is_prepared(xid, number):
                raise self._cannot_for(
                    number,
                    f"commits the XA transaction {xid}, which was prepared before the log was kept, so that no window "
                    "and perhaps no range has its rows",
                )

    def _find_gtid(self) -> tuple[str, int]:
        """Return the source and the number of this transaction."""
        source, _, number = self._gtid.rpartition(":")
        return source, int(number)

    def _list_affected(self) -> Iterator[tuple[int, WalkedTable]]:
        """Yield the tables that do not leave this transaction out."""
        return ((number, each) for number, each in enumerate(self.tables) if number not in self._skipping)

    def _read_table_map(self, body: bytes) -> None:
        at = table_number(body)
        numbers = self._named.get(self._fold_name(table_name(body)))
        if numbers is None:
            self._readers.pop(at, None)
            return
        known = self._readers.get(at)
        # Of a transaction that a table leaves out, the table may be another one.
        if known is not None and known[0] == body and not self._skipping:
            return
        readers: Readers = []
        for number in numbers:
            if number not in self._skipping:
                self.refused = number
                readers.append((number, RowReader(table_of(body), self.tables[number].wanted, self.charsets)))
        self._readers[at] = b"" if self._skipping else body, readers

    def _fold_name(self, name: tuple[bytes, bytes]) -> tuple[str, str]:
        """Return a table's database and name as they are compared."""
        database, table = name[0].decode(), name[1].decode()
        return (lower(database), lower(table)) if self.folding == _AS_WRITTEN else (database, table)

    def _find_readers(self, body: bytes) -> Iterator[tuple[int, RowReader]]:
        """Yield the readers of an event's rows; until the next one, errors are about its table."""
        found = self._readers.get(table_number(body))
        for number, reader in found[1] if found is not None else ():
            self._touched.add(number)
            self.refused = number
            yield number, reader

    def _written(self, number: int, reader: RowReader, body: bytes) -> Iterator[Change]:
        for row in reader.rows(body):
            yield number, Done.WRITTEN, row

    def _read_deletes(self, number: int, reader: RowReader, body: bytes) -> Iterator[Change]:
        for row in reader.rows(body):
            yield number, Done.DELETED, row

    def _read_updates(self, number: int, reader: RowReader, body: bytes) -> Iterator[Change]:
        key = self.tables[number].key
        for before, after in reader.pairs(body):
            if any(before[place] != after[place] for place in key):
                yield number, Done.DELETED, before
            yield number, Done.WRITTEN, after

    def _read_statement(self, event: Event) -> Iterator[Change]:
        """Yield what a statement changed, where that is known; ``SourceRefused`` where it is not."""
        if event.body.endswith(_USUAL):
            return
        statement = statement_of(event.body, event.kind, self.charsets)
        if statement.text.startswith("ROLLBACK") and self._touched:
            raise self._cannot_for(min(self._touched), "was rolled back together with changes that could not be")
        if statement.text.startswith(_XA_COMMIT):
            self._check_prepared(statement.text.removeprefix(_XA_COMMIT).strip())
        for number, each in self._list_affected():
            match effect(statement, self._followed[number]):
                case Effect.TRUNCATED if event.of_session:
                    raise self._cannot_for(number, f"empties a temporary table that is called {each.table} too")
                case Effect.TRUNCATED:
                    yield number, Done.TRUNCATED, [None] * len(each.wanted.types)
                case Effect.DEFINED:
                    what = f"made {each.table} another table ({statement.text[:80].strip()!r})"
                    raise self._cannot_for(number, what)
                case Effect.WRITTEN:
                    raise self._cannot(
                        f"may have changed {', '.join(str(each.table) for _, each in self._list_affected())} by a "
                        f"statement that is in the log instead of its rows ({statement.text[:80].strip()!r}), since a "
                        "session has set binlog_format"
                    )

    def _refuse_old(self, event: Event) -> None:
        if next(self._find_readers(event.body), None) is None:
            return
        if event.kind == Kind.PARTIAL_UPDATE:
            raise self._cannot("has only parts of JSON values: a session has set binlog_row_value_options")
        raise self._cannot("is logged in the form of old servers: log_bin_use_v1_row_events is set")

    def _cannot_for(self, number: int, why: str) -> SourceRefused:
        """Return the error of one table."""
        self.refused = number
        return self._cannot(why)

    def _cannot(self, why: str) -> SourceRefused:
        return SourceRefused(f"Transaction {self._gtid} cannot be replayed, it {why}: {_RESTART}.")


_TAKEN: dict[int, Callable[[Walk, int, RowReader, bytes], Iterator[Change]]] = {
    Kind.WRITE: Walk._written,
    Kind.UPDATE: Walk._read_updates,
    Kind.DELETE: Walk._read_deletes,
}
