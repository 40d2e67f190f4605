"""A PostgreSQL table as a source, opened."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from psycopg import sql
from psycopg.sql import Composable

from airflow_provider_backpressure.connectors.postgres.catalog import (
    ORDINARY,
    PARTITIONED,
    CatalogColumn,
    Relation,
    check_same_files,
    lock_statement,
    place,
    read_storage,
)
from airflow_provider_backpressure.connectors.postgres.connect import READ_ONLY, Session
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.connectors.postgres.health import PostgresHealth
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.predicates import key_cast
from airflow_provider_backpressure.connectors.postgres.source.block_splitter import block_ranges, cut_blocks, parts
from airflow_provider_backpressure.connectors.postgres.source.boundaries import cut_range, in_order, key_ranges
from airflow_provider_backpressure.connectors.postgres.source.change_log import (
    PostgresLog,
    SnapshotKeeper,
    window_slice,
)
from airflow_provider_backpressure.connectors.postgres.source.checks import (
    check_condition,
    check_readable,
    chosen_columns,
    readable_table,
    replayable,
)
from airflow_provider_backpressure.connectors.postgres.source.config import DROP_AND_RESTART
from airflow_provider_backpressure.connectors.postgres.source.key import chosen_split
from airflow_provider_backpressure.connectors.postgres.source.query import (
    KeyColumn,
    KeyedTable,
    column_sql,
    measure_size,
    row_size,
)
from airflow_provider_backpressure.connectors.relational import UNKNOWN
from airflow_provider_backpressure.connectors.relational.split import check_rising
from airflow_provider_backpressure.core.config import Consistency, suffix
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signals import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream, from_lsn
from airflow_provider_backpressure.core.snapshot.bounds import (
    BlockBounds,
    Bounds,
    KeyBounds,
    LogBounds,
    NullBounds,
    Values,
)
from airflow_provider_backpressure.core.snapshot.messages import Column, ReadSpec, Slice, Window
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.schema_change import check_columns
from airflow_provider_backpressure.core.snapshot.table_storage import TableStorage
from airflow_provider_backpressure.core.table_selection import TableName, match_tables
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    SnapshotLost,
    SourceRefused,
    SourceUnavailable,
)

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.postgres.source.config import PostgresSource

KIND = "postgres"
ENDLESS = ("infinity", "Infinity", "NaN")
"""Values of dates and numbers above all others."""
ERRORS = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
_POSITION = sql.SQL(
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END)::text"
)


class PostgresTable:
    """Implements :class:`..core.ports.Source`. Threads may share it; it connects at the first question."""

    modules: tuple[str, ...] = ("psycopg",)

    def __init__(self, declared: "PostgresSource", endpoint: Endpoint) -> None:
        self._declared = declared
        self._endpoint = endpoint
        self._name = QualifiedName.parse(declared.table)
        self._session = Session(endpoint, errors=ERRORS, settings=READ_ONLY)
        self._types: dict[str, str] = {}
        self._logs: dict[str, PostgresLog] = {}
        self._where = declared.where if declared.where and declared.where.strip() else None
        self.identity = f"postgres://{endpoint.address}/{self._name}{self._part()}"
        self.increment_column = declared.increment_column
        self.increments = declared.increment_column is not None

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`. Rows are counted where that takes seconds, otherwise estimated.

        The position of the server's log is read before anything else: the plan brings at least what is before it.
        Newer rows are read without a snapshot: a window of a rising column changes only where its rows rise
        out of it.
        """
        position = self._position()
        table = readable_table(self._session, self._name)
        columns = chosen_columns(self._session, table, self._declared.columns, self._declared.as_text)
        wanted = Consistency.STATIC if after is not None else consistency or Consistency.SNAPSHOT
        by = self._declared.increment_column if after is not None else self._declared.split_column
        split = chosen_split(table, by, wanted)
        check_readable(self._session, table, (*(column.name for column in split.columns), *split.key))
        as_text = [column.name for column in split.columns if column.name in self._declared.as_text]
        if as_text:
            raise SourceRefused(f"{self._name} is cut by {join_names(as_text)}, which cannot be read as text too.")
        log_keys = self._log_keys(table, columns) if wanted is Consistency.CATCH_UP else ()
        if self._where is not None:
            check_condition(self._session, table, self._where)
        window = self._window(table, after)
        ordered = tuple(column.name for column in split.columns)
        keyed = self._with_key(ordered, window, unique=split.unique)
        size = measure_size(self._session, table, keyed, columns) if counted else UNKNOWN
        return Snapshot(
            source_identity=self.identity,
            columns=tuple(
                self._column(column, (*ordered, *((window.column,) if window else ()))) for column in columns
            ),
            key=split.key,
            split=ordered,
            unique=keyed.unique,
            frontier={} if size.rows is None else {str(self._name): size.rows},
            total=size.rows,
            total_exact=size.exact,
            row_bytes=size.row_bytes,
            widest_bytes=size.widest_bytes,
            consistency=wanted,
            window=window,
            log_keys=log_keys,
            loose=tuple(column.name for column in columns if column.loose),
            coarse=tuple(column.name for column in columns if column.is_coarse),
            defaults=tuple(column.name for column in columns if column.has_default),
            position=position,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """See :meth:`..core.ports.Source.ranges`."""
        table = readable_table(self._session, self._name)
        keyed = self._with_key(snapshot.split, snapshot.window, unique=snapshot.unique)
        if rows * snapshot.widest_bytes > bytes:
            chosen = chosen_columns(self._session, table, self._declared.columns, self._declared.as_text)
            keyed = replace(keyed, size=row_size(chosen))
        if snapshot.split:
            return key_ranges(self._session, keyed, snapshot, rows=rows, bytes=bytes)
        return block_ranges(self._session, keyed, parts(self._session, table), snapshot, rows=rows, bytes=bytes)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        """See :meth:`..core.ports.Source.cut`."""
        match bounds:
            case KeyBounds():
                table = self._with_key(bounds.columns, read.window, unique=False)
                return cut_range(self._session, table, bounds, read.columns, parts=parts)
            case BlockBounds():
                return cut_blocks(self._session, bounds, parts=parts)
            case _:
                return [bounds]

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        """See :meth:`..core.ports.Source.in_order`."""
        return in_order(self._session, self._with_key(tuple(columns), read.window, unique=False), values)

    def keep(self, plan: Plan) -> Keeper:
        """See :meth:`..core.ports.Source.keep`."""
        table = self._with_key((), plan.read.window, unique=False)
        rows = sql.SQL("SELECT count(*) FROM {}{}").format(table.sql, table.filter())
        keeper = SnapshotKeeper(self._endpoint, errors=ERRORS, rows=rows)
        try:
            self._check_covered(plan)
        except BackpressureError:
            keeper.close()
            raise
        return keeper

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        """See :meth:`..core.ports.Source.read_spec`."""
        table = readable_table(self._session, self._name)
        return ReadSpec(
            kind=KIND,
            conn_id=self._declared.conn_id,
            columns=snapshot.columns,
            place=place(self._session, table.oid),
            window=snapshot.window,
            parts=() if snapshot.split else self._parts(table),
            storage=self._storage(table, snapshot),
        )

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks the catalogue once for the types, then nothing."""
        if isinstance(bounds, LogBounds):
            return window_slice(bounds, self._name, slice_id)
        columns = [self._sql(column.name) for column in read.columns]
        match bounds:
            case KeyBounds():
                names = bounds.columns
            case NullBounds():
                names = (bounds.column,)
            case _:
                names = ()
        query = self._with_key(names, read.window, unique=False).rows(columns, bounds)
        return Slice(slice_id=slice_id, query=query.as_string(None), bounds=bounds.to_json())

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """See :meth:`..core.ports.Source.check_range`. By the catalogue: the table, its columns, our right to them."""
        table = readable_table(self._session, self._name)
        check_columns(plan, {column.name: column.type for column in table.columns}, plan.source_identity)
        check_readable(self._session, table, tuple(column.name for column in plan.read.columns))
        self.slice(plan.read, bounds, "")

    def log(self, hydration_id: str) -> ChangeLog:
        """See :meth:`..core.ports.Source.log`."""
        if hydration_id not in self._logs:
            self._logs[hydration_id] = PostgresLog(
                self._endpoint,
                self._name,
                hydration_id,
                most=self._declared.wal_limit,
                restarts=self._declared.at_wal_limit == DROP_AND_RESTART,
            )
        return self._logs[hydration_id]

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        """See :meth:`..core.ports.Source.health`."""
        return PostgresHealth(self._endpoint, watched, errors=ERRORS, seconds=seconds)

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. The place of the server's log: of all its databases and tables."""
        return Upstream(unit=Unit.BYTES, at=from_lsn(self._position()))

    def close(self) -> None:
        """See :meth:`..core.ports.Source.close`."""
        self._session.close()
        for log in self._logs.values():
            log.close()

    def _log_keys(self, table: Relation, columns: tuple[CatalogColumn, ...]) -> tuple[tuple[str, ...], ...]:
        """Return the keys that identify a deleted row in the log; ``SourceRefused`` if changes cannot be replayed."""
        if self._where is not None or self._declared.increment_column is not None:
            what = "where" if self._where is not None else "increment_column"
            raise SourceRefused(f"The log shows every change of {self._name}: catch_up goes without {what}.")
        return replayable(self._session, table, columns, self._declared.as_text)

    def _check_covered(self, plan: Plan) -> None:
        """Raise ``SnapshotLost`` where the plan is about other files or partitions than are there now."""
        if plan.read.parts and self._parts(readable_table(self._session, self._name)) != plan.read.parts:
            raise SnapshotLost(f"The partitions or children of {self._name} are not those of plan {plan.plan_id}.")
        planned = plan.read.storage
        if planned is not None:
            check_same_files(planned, read_storage(self._session, self._name, planned.lock).relations)

    def _storage(self, table: Relation, snapshot: Snapshot) -> TableStorage:
        """Return how the table is stored; without its files where somebody says that it stands still.

        Under ``catch_up`` this is before the log is kept: whatever changes from then on is behind what is returned.
        """
        names = [column.name for column in snapshot.columns]
        lock = lock_statement(self._session, self._name, table.kind, names, self._where)
        found = read_storage(self._session, self._name, lock)
        # Columns that only a condition or the bounds of a range name matter as much as those that are read.
        asked = {*names, *snapshot.split, *([snapshot.window.column] if snapshot.window else [])}
        asked |= {column.name for column in found.columns if column.name.lower() in (self._where or "").lower()}
        relations = () if snapshot.consistency is Consistency.STATIC else found.relations
        columns = tuple(column for column in found.columns if column.name in asked)
        number = table.oid if table.kind in (ORDINARY, PARTITIONED) else None
        return replace(found, relations=relations, columns=columns, number=number)

    def _position(self) -> str:
        found: str = self._session.value(_POSITION)
        return found

    def _with_key(self, key: tuple[str, ...], window: Window | None, *, unique: bool) -> KeyedTable:
        """Return the table as a plan has it, which may be an older one than the catalogue would give today."""
        return KeyedTable(
            name=self._name,
            key=tuple(self._key_column(name) for name in key),
            unique=unique,
            where=self._where,
            window=window,
            rising=None if window is None else self._key_column(window.column),
        )

    def _key_column(self, name: str) -> KeyColumn:
        if name not in self._types:
            table = readable_table(self._session, self._name)
            self._types.update({column.name: column.type for column in table.columns})
        cast = key_cast(self._types.get(name, ""))
        if cast is None:
            raise SourceRefused(f"{self._name} has changed: it can no longer be cut by {join_names([name])}.")
        return KeyColumn(name=name, cast=cast)

    def _window(self, table: Relation, after: str | None) -> Window | None:
        """Return what of the rising column is to be read; an empty window where there is nothing new."""
        name = self._declared.increment_column
        if name is None:
            return None
        column = check_rising(table, name, columns=self._declared.columns, as_text=self._declared.as_text)
        check_readable(self._session, table, (name,))
        highest, above = self._highest(name, after)
        upto = highest if above else after
        if upto in ENDLESS and not column.collation:
            raise SourceRefused(
                f"Increments of {self._name} cannot be read by {join_names([name])}: a row has {upto} there, and no "
                "later row is above that. Correct that row, or name another column."
            )
        return None if upto is None else Window(column=name, after=after, upto=upto)

    def _highest(self, name: str, after: str | None) -> tuple[str | None, bool]:
        """Return the highest value of a column, and whether it is above the one that was committed last.

        It may be below: the highest rows were deleted, or the connection leads to a replica that lags.
        """
        column, cast = sql.Identifier(name), sql.SQL(self._key_column(name).cast)
        above = sql.SQL("true") if after is None else sql.SQL("{} > {}::{}").format(column, sql.Literal(after), cast)
        # Not max(): some types that have an order have no such function.
        query = sql.SQL(
            "SELECT {0}::text, {1} FROM (SELECT {0} FROM {2}{3}) AS t WHERE {0} IS NOT NULL ORDER BY t.{0} DESC LIMIT 1"
        ).format(column, above, sql.SQL(self._name.sql), self._with_key((), None, unique=False).filter())
        return next(iter(self._session.rows(query)), (None, False))

    def _parts(self, table: Relation) -> tuple[str, ...]:
        return tuple(str(part.name) for part in parts(self._session, table))

    def _sql(self, name: str) -> Composable:
        return column_sql(name, as_text=name in self._declared.as_text)

    def _column(self, column: CatalogColumn, ordered: tuple[str, ...]) -> Column:
        return Column(
            name=column.name,
            type="text" if column.name in self._declared.as_text else column.type,
            nullable=not column.not_null,
            collation=column.collation if column.name in ordered else None,
            definition=None if column.name in self._declared.as_text else column.definition,
        )

    def _part(self) -> str:
        """Return the identity's suffix: a part of a table is another source than the whole."""
        return suffix([self._declared.columns, self._where, self._declared.as_text])


# A partition is read with the table that it is of; views have to be named, with the column by which they are cut.
_TABLES = sql.SQL(
    """
    SELECT n.nspname, c.relname
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition
      AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_toast%%'
      AND c.relname NOT LIKE 'backpressure\\_%%'
      AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
    ORDER BY 1, 2
    """
)


def found(endpoint: Endpoint, pattern: str) -> list[TableName]:
    """Return them in the order of their names."""
    with closing(Session(endpoint, errors=ERRORS, settings=READ_ONLY)) as session:
        names = [QualifiedName(schema=schema, name=name) for schema, name in session.rows(_TABLES)]
    return match_tables((TableName(schema=name.schema, name=name.name, spelled=str(name)) for name in names), pattern)
