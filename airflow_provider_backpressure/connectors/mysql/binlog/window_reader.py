"""A walk over the events of a window: what changed in one table, transaction by transaction, and where to stop."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_backpressure.connectors.mysql.binlog.ddl import Effect, Followed, effect
from airflow_provider_backpressure.connectors.mysql.binlog.dump_stream import (
    Event,
    Kind,
    gtid_of,
    statement_of,
    unpack_transaction,
    xid_of,
)
from airflow_provider_backpressure.connectors.mysql.binlog.row_decoder import Charsets, Row, RowReader, Wanted
from airflow_provider_backpressure.connectors.mysql.binlog.table_map import table_name, table_number, table_of
from airflow_provider_backpressure.connectors.mysql.identifiers import TableName
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.exceptions import LogLost, SourceRefused

_RESTART = 'trigger the DAG with {"backpressure": "restart"}'
_USUAL = (b"\0BEGIN", b"\0COMMIT")
_XA_COMMIT = "XA COMMIT "
_OLD = (Kind.OLD_WRITE, Kind.OLD_UPDATE, Kind.OLD_DELETE, Kind.PARTIAL_UPDATE)


class Done(Enum):
    """What was done to a row."""

    WRITTEN = "written"
    DELETED = "deleted"
    TRUNCATED = "truncated"
    """All rows are gone; the row is empty."""


Change = tuple[Done, Row]


@dataclass(kw_only=True)
class Walk:
    """The transactions of ``end`` without those of ``start``, in the log's order.

    Raises ``LogLost`` where the log ends before all of them were seen, and ``SourceRefused`` for what cannot be
    replayed. Rows are handed on before their transaction is over: what follows may still raise.
    """

    table: TableName
    wanted: Wanted
    charsets: Charsets
    start: GtidSet
    end: GtidSet
    folded: bool = False
    """Whether the server ignores case in the names of tables (``lower_case_table_names``)."""
    by_primary: bool = True
    """Whether the key is the table's primary key."""
    required: GtidSet | None = None
    """Transactions that every range has seen; ``None`` in plans of earlier releases, which do not know them."""
    is_prepared: Callable[[str], bool] = field(default=lambda xid: False)
    """Whether an XA transaction was prepared in a part of the log that earlier windows were about."""
    _prepared: set[str] = field(default_factory=set)
    """XA transactions that were prepared in this window, and did not change the table."""
    _left: int = field(init=False)
    _readers: dict[int, tuple[bytes, RowReader]] = field(default_factory=dict)
    _touched: bool = False
    """Whether this transaction has changed the table."""
    _gtid: str = ""

    def __post_init__(self) -> None:
        """Count what there is to be seen."""
        self._left = self.end.minus(self.start).count
        self._named = self._fold_name((self.table.database.encode(), self.table.name.encode()))
        self._followed = Followed(table=self.table, folded=self.folded, by_primary=self.by_primary)
        self._key = [place for place, name in enumerate(self.wanted.types) if name in self.wanted.key]

    def changes(self, events: Iterable[Event]) -> Iterator[Change]:
        """Yield what changed, and stop at the first transaction that is not in the window, or at the log's end."""
        for event in events:
            if event.kind in (Kind.GTID, Kind.ANONYMOUS, Kind.TAGGED):
                if not self._goes_on(event):
                    return
            elif event.kind == Kind.PAYLOAD:
                for inner in unpack_transaction(event.body):
                    yield from self._read_event(inner)
            else:
                yield from self._read_event(event)
        if self._left:
            raise LogLost(
                f"The binlog ended {self._left} transactions before {self.end}, which the server had: {_RESTART}."
            )

    def _goes_on(self, event: Event) -> bool:
        """Begin a transaction; ``False`` where it is behind the window."""
        if event.kind != Kind.GTID:
            raise SourceRefused(
                f"The binlog has transactions without a GTID, or with a tag: {_RESTART} once all have one."
            )
        source, number = gtid_of(event.body)
        self._gtid, self._touched = f"{source}:{number}", False
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
            yield from take(self, event.body)
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
            raise self._cannot("belongs to an XA transaction, of which nobody knows yet whether it is committed")
        if (xid := xid_of(body)) is not None:
            self._prepared.add(xid)

    def _check_prepared(self, xid: str) -> None:
        """Stop at the commit of an XA transaction that no window of the plan has shown: its rows may be the table's."""
        source, _, number = self._gtid.rpartition(":")
        if self.required is None or self.required.has(source, int(number)):
            return
        if xid not in self._prepared and not self.is_prepared(xid):
            raise self._cannot(
                f"commits the XA transaction {xid}, which was prepared before the log was kept, so that no window and "
                "perhaps no range has its rows"
            )

    def _read_table_map(self, body: bytes) -> None:
        number = table_number(body)
        if self._fold_name(table_name(body)) != self._named:
            self._readers.pop(number, None)
            return
        known = self._readers.get(number)
        if known is None or known[0] != body:
            self._readers[number] = body, RowReader(table_of(body), self.wanted, self.charsets)

    def _fold_name(self, name: tuple[bytes, bytes]) -> tuple[str, str]:
        """Return a table's database and name as they are compared."""
        database, table = name[0].decode(), name[1].decode()
        return (database.casefold(), table.casefold()) if self.folded else (database, table)

    def _reader(self, body: bytes) -> RowReader | None:
        found = self._readers.get(table_number(body))
        if found is None:
            return None
        self._touched = True
        return found[1]

    def _written(self, body: bytes) -> Iterator[Change]:
        reader = self._reader(body)
        for row in reader.rows(body) if reader else ():
            yield Done.WRITTEN, row

    def _read_deletes(self, body: bytes) -> Iterator[Change]:
        reader = self._reader(body)
        for row in reader.rows(body) if reader else ():
            yield Done.DELETED, row

    def _read_updates(self, body: bytes) -> Iterator[Change]:
        reader = self._reader(body)
        for before, after in reader.pairs(body) if reader else ():
            if any(before[place] != after[place] for place in self._key):
                yield Done.DELETED, before
            yield Done.WRITTEN, after

    def _read_statement(self, event: Event) -> Iterator[Change]:
        """Yield what a statement changed, where that is known; ``SourceRefused`` where it is not."""
        if event.body.endswith(_USUAL):
            return
        statement = statement_of(event.body, event.kind, self.charsets)
        if statement.text.startswith("ROLLBACK") and self._touched:
            raise self._cannot("was rolled back together with changes that could not be")
        if statement.text.startswith(_XA_COMMIT):
            self._check_prepared(statement.text.removeprefix(_XA_COMMIT).strip())
        match effect(statement, self._followed):
            case Effect.TRUNCATED:
                yield Done.TRUNCATED, [None] * len(self.wanted.types)
            case Effect.DEFINED:
                raise self._cannot(f"made {self.table} another table ({statement.text[:80].strip()!r})")
            case Effect.WRITTEN:
                raise self._cannot(
                    f"may have changed {self.table} by a statement that is in the log instead of its rows "
                    f"({statement.text[:80].strip()!r}), since a session has set binlog_format"
                )

    def _refuse_old(self, event: Event) -> None:
        if self._reader(event.body) is None:
            return
        if event.kind == Kind.PARTIAL_UPDATE:
            raise self._cannot("has only parts of JSON values: a session has set binlog_row_value_options")
        raise self._cannot("is logged in the form of old servers: log_bin_use_v1_row_events is set")

    def _cannot(self, why: str) -> SourceRefused:
        return SourceRefused(f"Transaction {self._gtid} cannot be replayed, it {why}: {_RESTART}.")


_TAKEN: dict[int, Callable[[Walk, bytes], Iterator[Change]]] = {
    Kind.WRITE: Walk._written,
    Kind.UPDATE: Walk._read_updates,
    Kind.DELETE: Walk._read_deletes,
}
