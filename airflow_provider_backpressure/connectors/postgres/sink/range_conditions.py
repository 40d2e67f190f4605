"""The conditions by which a target's rows of one range are selected, and the index by which they are found."""

import hashlib
import logging
from collections.abc import Callable, Sequence

from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.connectors.postgres.catalog import ORDINARY, Relation, find
from airflow_provider_backpressure.connectors.postgres.connect import Connection, Query, Session
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.key_types import key_cast
from airflow_provider_backpressure.connectors.postgres.predicates import condition, within_offsets, within_window
from airflow_provider_backpressure.core.snapshot.bounds import (
    BlockBounds,
    Bounds,
    FileBounds,
    KeyBounds,
    LogBounds,
    NullBounds,
    OffsetBounds,
)
from airflow_provider_backpressure.core.snapshot.spark_messages import Window, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.exceptions import SinkRefused, Transient

log = logging.getLogger(__name__)

PATIENCE = "10s"
"""How long the end of a run waits for readers of the table before the index stays."""


class RangeConditions:
    """Selects a range's rows in the target, where its columns separate ranges as the source's do."""

    def __init__(self, session: Session, name: QualifiedName, readable: Callable[[WriteSpec], QualifiedName]) -> None:
        self._session, self._name, self._readable = session, name, readable
        self._table: Relation | None = None

    def select(self, write: WriteSpec, bounds: Bounds | None, window: Window | None) -> list[sql.Composable]:
        """Return the conditions of a range and its window; ``SinkRefused`` where they select other rows here."""
        log_window = LogWindow.from_window(window)
        if log_window is not None:
            return self.within(write, bounds or log_window.bounds())
        kept = self.within(write, bounds)
        return kept if window is None else kept + within_window(window, self._cast(write, window.column))

    def within(self, write: WriteSpec, bounds: Bounds | None) -> list[sql.Composable]:
        """Return the conditions of a range."""
        match bounds:
            case KeyBounds():
                return condition(bounds, [self._cast(write, column) for column in bounds.columns])
            case NullBounds():
                return condition(bounds, [self._cast(write, bounds.column)])
            case BlockBounds():
                raise SinkRefused(f"Rows lie elsewhere in {self._name} than in the source's blocks.")
            case OffsetBounds():
                return [self._offsets(write, bounds)]
            case LogBounds():
                raise SinkRefused(f"What the log changed in {self._name} cannot be distinguished from its other rows.")
            case FileBounds():
                raise SinkRefused(f"Rows of {self._name} cannot be assigned to the files that they came from.")
        return []

    def find_nullable(self, write: WriteSpec) -> set[str]:
        """Return the columns of the key that may be NULL in the target."""
        table = self._find(write)
        return {column.name for column in table.columns if not column.not_null} & {*write.key} if table else set()

    def find_unindexed(self, write: WriteSpec, bounds: Bounds) -> Relation | None:
        """Return the table where only a look at all of its rows finds those of such bounds.

        ``None`` where an index does, and for a table that is made of others: its blocks are theirs.
        """
        match bounds:
            case KeyBounds() if bounds.columns:
                first = bounds.columns[0]
            case NullBounds():
                first = bounds.column
            case _:
                return None
        table = self._find(write)
        if table is None or table.kind != ORDINARY or table.has_children or first in table.indexed:
            return None
        return table

    def _find(self, write: WriteSpec) -> Relation | None:
        """Return the table as the catalogue had it when it was first asked for."""
        if self._table is None:
            self._table = find(self._session, self._readable(write))
        return self._table

    def _offsets(self, write: WriteSpec, bounds: OffsetBounds) -> sql.Composable:
        arriving = {column.name for column in write.columns}
        lacking = [name for name in ("partition", "offset") if name not in arriving]
        if lacking:
            raise SinkRefused(
                f"{self._name} gets no column {join_names(lacking)} to separate a topic's ranges by: let columns= of "
                "the source and the transform keep partition and offset, or use verify='none'."
            )
        if bounds.part is not None:
            raise SinkRefused(f"Nothing in {self._name} shows which rows are of {bounds}.")
        return within_offsets(bounds)

    def _cast(self, write: WriteSpec, key: str) -> str:
        arriving = next((column for column in write.columns if column.name == key), None)
        if arriving is None:
            raise SinkRefused(f"{self._name} has no column {join_names([key])} to separate ranges by.")
        table = self._find(write)
        there = table.column(key) if table else None
        if there is None:
            raise SinkRefused(f"{self._name} has no column {join_names([key])} to separate ranges by.")
        cast = key_cast(there.type)
        if cast is None:
            raise SinkRefused(
                f"Column {join_names([key])} of {self._name} is {there.type}: ranges cannot be separated by it."
            )
        # A transformed column says nothing of its order.
        if arriving.collation is not None and there.collation != arriving.collation:
            raise SinkRefused(
                f"Text in {join_names([key])} is ordered by {there.collation} in {self._name} and by "
                f"{arriving.collation} in the source, so its ranges cannot be verified there; the whole table can."
            )
        return cast


def split_blocks(session: Session, table: Relation | None, *, parts: int) -> list[list[sql.Composable]]:
    """Return conditions that cut a table into pieces of about as many blocks each; the last one has no end."""
    if table is None:
        return []
    blocks = session.value(_BLOCKS, (table.oid,))
    step = max(1, -(-blocks // max(1, parts)))
    ends = [f"({block},0)" for block in range(step, blocks, step)]
    pieces: list[list[sql.Composable]] = []
    for first, last in zip(["", *ends], [*ends, ""], strict=True):
        kept: list[sql.Composable] = [sql.SQL("ctid >= {}::tid").format(sql.Literal(first))] if first else []
        pieces.append([*kept, sql.SQL("ctid < {}::tid").format(sql.Literal(last))] if last else kept)
    return pieces


_BLOCKS = sql.SQL("SELECT pg_relation_size(%s::oid::regclass) / current_setting('block_size')::bigint")


def make_range_index(session: Session, table: QualifiedName, key: Sequence[str]) -> None:
    """Create the index where no other one begins with a column of the key; idempotent."""
    found = find(session, table)
    if found is None or found.indexed & set(key):
        return
    columns = sql.SQL(", ").join(map(sql.Identifier, key))
    parts = {"index": sql.Identifier(_name(table).name), "table": sql.SQL(table.sql), "columns": columns}

    def make(connection: Connection) -> None:
        connection.execute(sql.SQL("CREATE INDEX IF NOT EXISTS {index} ON {table} ({columns})").format(**parts))
        connection.execute(sql.SQL("ANALYZE {table} ({columns})").format(**parts))

    session.transaction(make)


def find_range_index(table: QualifiedName) -> tuple[Query, Params]:
    """Return the statement that finds the index's number; NULL where there is none."""
    return sql.SQL("SELECT to_regclass(%s)"), (_name(table).sql,)


def drop_range_index(connection: Connection, table: QualifiedName) -> None:
    """Drop the index; nothing where there is none."""
    if connection.execute(*find_range_index(table)).fetchone() != (None,):
        connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(sql.SQL(_name(table).sql)))


def try_to_drop_range_index(session: Session, table: QualifiedName) -> None:
    """Drop the index of a table that others read, or leave it to the next run with a warning."""

    def drop(connection: Connection) -> None:
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(PATIENCE)))
        drop_range_index(connection, table)

    try:
        session.transaction(drop)
    except Transient as error:
        log.warning("The index %s stays until the next run ends, since its table is read: %s", _name(table), error)


def _name(table: QualifiedName) -> QualifiedName:
    """Return its name, which no other index of the schema has."""
    digest = hashlib.sha256(table.name.encode()).hexdigest()[:12]
    return QualifiedName(schema=table.schema, name=f"backpressure_ranges_{digest}")
