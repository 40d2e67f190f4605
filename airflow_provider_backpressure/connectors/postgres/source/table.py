"""A PostgreSQL table as a source, opened."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.attempt_sessions import plan_prefix, read_readers
from airflow_provider_backpressure.connectors.postgres.catalog import (
    ORDINARY,
    PARTITIONED,
    CatalogColumn,
    Relation,
    place,
)
from airflow_provider_backpressure.connectors.postgres.connect import READ_ONLY, Session
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.connectors.postgres.health import PostgresHealth
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.key_types import key_cast
from airflow_provider_backpressure.connectors.postgres.source.block_splitter import block_ranges, cut_blocks, parts
from airflow_provider_backpressure.connectors.postgres.source.boundaries import (
    chosen_split,
    cut_range,
    in_order,
    key_ranges,
)
from airflow_provider_backpressure.connectors.postgres.source.catalog_lookup_batch import find_expected
from airflow_provider_backpressure.connectors.postgres.source.change_log import (
    Limits,
    PostgresLog,
    make_log_query,
    window_slice,
)
from airflow_provider_backpressure.connectors.postgres.source.checks import (
    check_childless,
    check_condition,
    check_readable,
    chosen_columns,
    readable_table,
    replayable,
)
from airflow_provider_backpressure.connectors.postgres.source.comparison_snapshot import PostgresMoment
from airflow_provider_backpressure.connectors.postgres.source.config import DROP_AND_RESTART
from airflow_provider_backpressure.connectors.postgres.source.query import (
    KeyColumn,
    KeyedTable,
    column_sql,
    measure_size,
    row_size,
)
from airflow_provider_backpressure.connectors.postgres.source.shared_log import SharedTableLog
from airflow_provider_backpressure.connectors.postgres.source.snapshot_keeper import SnapshotKeeper
from airflow_provider_backpressure.connectors.postgres.table_storage import (
    check_same_files,
    lock_statement,
    read_storage,
)
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import reader_name
from airflow_provider_backpressure.connectors.relational.key_choice import Split
from airflow_provider_backpressure.connectors.relational.table import DatabaseTable, Dialect, select_tables
from airflow_provider_backpressure.core.config import Consistency, suffix
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Unread
from airflow_provider_backpressure.core.ports.comparison_snapshots import SourceMoment
from airflow_provider_backpressure.core.ports.sink import Activity
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream, from_lsn
from airflow_provider_backpressure.core.snapshot.bounds import (
    BlockBounds,
    Bounds,
    LogBounds,
)
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.schema_change import check_columns
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.core.table_selection import TableName
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    PlanOutdated,
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


class PostgresTable(DatabaseTable["PostgresSource", Session, QualifiedName, Relation, CatalogColumn, KeyedTable]):
    """A table or view of PostgreSQL.

    Newer rows are read without a snapshot: a window of a rising column changes only where its rows rise out of it.
    """

    modules: tuple[str, ...] = ("psycopg",)
    dialect = Dialect(
        keyed=KeyedTable,
        check_condition=check_condition,
        measure_size=measure_size,
        row_size=row_size,
        cut_range=cut_range,
        in_order=in_order,
    )

    def __init__(self, declared: "PostgresSource", endpoint: Endpoint) -> None:
        name = QualifiedName.parse(declared.table)
        super().__init__(declared, endpoint, name=name, session=Session(endpoint, errors=ERRORS, settings=READ_ONLY))
        self._types: dict[str, str] = {}
        chosen = suffix([declared.columns, self._where, declared.as_text])
        self.identity = f"postgres://{endpoint.address}/{name}{chosen}"

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        if isinstance(bounds, BlockBounds):
            return cut_blocks(self._session, bounds, parts=parts)
        return super().cut(read, bounds, parts=parts)

    def activities(self, plan_id: str) -> dict[str, Activity]:
        """See :meth:`..core.ports.sink.ShowsReaders.activities`."""
        return read_readers(self._session, reader_name(plan_prefix(plan_id)))

    def keep(self, plan: Plan) -> Keeper:
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
        table = self._known_table()
        return ReadSpec(
            kind=KIND,
            conn_id=self._declared.conn_id,
            columns=snapshot.columns,
            place=place(self._session, table.oid),
            window=snapshot.window,
            # A view, or a condition with other tables in it, may be meant to show what policies leave over.
            every_row=table.is_stored and not table.hides_rows and self._where is None,
            parts=() if snapshot.split else self._parts(table),
            storage=self._storage(table, snapshot),
        )

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """See :meth:`..core.ports.Source.check_range`. By the catalogue: the table, its columns, our right to them."""
        table = readable_table(self._session, self._name)
        check_columns(plan, {column.name: column.type for column in table.columns}, plan.source_identity)
        check_readable(self._session, table, tuple(column.name for column in plan.read.columns))
        self.slice(plan.read, bounds, "")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        return PostgresHealth(self._endpoint, watched, errors=ERRORS, seconds=seconds)

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. The place of the server's log: of all its databases and tables."""
        return Upstream(unit=Unit.BYTES, at=from_lsn(self._position()))

    def open_moment(self, read: ReadSpec, log: ChangeLog) -> SourceMoment:
        """See :meth:`..core.ports.comparison_snapshots.HasSourceMoments.open_moment`."""
        query = make_log_query(log.stream, self._name)
        # How the table is stored is asked before the snapshot is taken: what changes it from then on is noticed.
        return PostgresMoment(self._endpoint, read, query, log.storage(read))

    def get_shared_log(self, stream: str) -> SharedTableLog:
        """See :meth:`..core.ports.SharesLog.get_shared_log`."""
        key = f"shared {stream}"
        if key not in self._logs:
            self._logs[key] = SharedTableLog(self._endpoint, self._name, stream, **self._limits)
        found = self._logs[key]
        assert isinstance(found, SharedTableLog), "kept under a key of its own"
        return found

    def _choose_consistency(self, consistency: Consistency | None, after: str | None) -> Consistency:
        return Consistency.STATIC if after is not None else consistency or Consistency.SNAPSHOT

    def _find_table(self) -> Relation:
        table = self._known = readable_table(self._session, self._name, find_expected)
        self._types.update({column.name: column.type for column in table.columns})
        return table

    def _choose_columns(self, table: Relation) -> tuple[CatalogColumn, ...]:
        return chosen_columns(self._session, table, self._declared.columns, self._declared.as_text)

    def _choose_split(self, table: Relation, by: str | None, consistency: Consistency) -> Split[CatalogColumn]:
        return chosen_split(table, by, consistency)

    def _check_readable(self, table: Relation, names: tuple[str, ...]) -> None:
        check_readable(self._session, table, names)

    def _list_ranges(
        self, table: Relation, keyed: KeyedTable, snapshot: Snapshot, *, rows: int, bytes: int
    ) -> Iterator[PlannedRange]:
        if snapshot.split:
            return key_ranges(self._session, keyed, snapshot, rows=rows, bytes=bytes)
        return block_ranges(self._session, keyed, parts(self._session, table), snapshot, rows=rows, bytes=bytes)

    def _query(self, keyed: KeyedTable, read: ReadSpec, bounds: Bounds) -> str:
        as_text = self._declared.as_text
        columns = [column_sql(column.name, as_text=column.name in as_text) for column in read.columns]
        return keyed.rows(columns, bounds).as_string(None)

    def _slice_log(self, bounds: LogBounds, slice_id: str) -> Slice:
        return window_slice(bounds, self._name, slice_id)

    def _open_log(self, hydration_id: str) -> PostgresLog:
        return PostgresLog(self._endpoint, self._name, hydration_id, **self._limits)

    @property
    def _limits(self) -> Limits:
        """Return what may be kept of the log, and what happens there."""
        declared = self._declared
        return {"most": declared.wal_limit, "restarts": declared.at_wal_limit == DROP_AND_RESTART}

    def _log_keys(self, table: Relation, columns: tuple[CatalogColumn, ...]) -> tuple[tuple[str, ...], ...]:
        return replayable(self._session, table, columns, self._declared.as_text)

    def _check_covered(self, plan: Plan) -> None:
        """Raise ``PlanOutdated`` where the plan is about other files or partitions than are there now."""
        if plan.read.parts and self._parts(readable_table(self._session, self._name)) != plan.read.parts:
            raise PlanOutdated(f"The partitions or children of {self._name} are not those of plan {plan.plan_id}.")
        planned = plan.read.storage
        if planned is not None:
            check_same_files(planned, read_storage(self._session, self._name, planned.lock).relations)

    def _storage(self, table: Relation, snapshot: Snapshot) -> TableStorage:
        """Return how the table is stored; without its files where somebody says that it stands still.

        Under ``catch_up`` this is before the log is kept: whatever changes from then on is behind what is returned.
        """
        names = [column.name for column in snapshot.columns]
        lock = lock_statement(self._name, table.kind, names, self._where, may_select=table.may_select)
        found = read_storage(self._session, self._name, lock)
        if snapshot.consistency is Consistency.CATCH_UP:
            # The look by which it was planned may be older than a child that the lock has waited for.
            check_childless(self._session, table)
        # Columns that only a condition or the bounds of a range name matter as much as those that are read.
        asked = {*names, *snapshot.split, *([snapshot.window.column] if snapshot.window else [])}
        asked |= {column.name for column in found.columns if column.name.lower() in (self._where or "").lower()}
        relations = () if snapshot.consistency is Consistency.STATIC else found.relations
        columns = tuple(column for column in found.columns if column.name in asked)
        number = table.oid if table.kind in (ORDINARY, PARTITIONED) else None
        keyed = {*snapshot.split, *snapshot.key, *([snapshot.window.column] if snapshot.window else [])}
        # As of the look by which ranges are cut, and not as of the lock.
        not_null = tuple(column.name for column in table.columns if column.not_null and column.name in keyed)
        return replace(found, relations=relations, columns=columns, number=number, not_null=not_null)

    def _position(self) -> str:
        found: str = self._session.value(_POSITION)
        return found

    def _find_key_column(self, name: str) -> KeyColumn | None:
        if name not in self._types:
            self._find_table()
        cast = key_cast(self._types.get(name, ""))
        return None if cast is None else KeyColumn(name=name, cast=cast)

    def _find_highest(self, column: CatalogColumn, after: str | None) -> str | None:
        highest, above = self._highest(column.name, after)
        upto = highest if above else after
        if upto in ENDLESS and not column.collation:
            raise SourceRefused(
                f"Increments of {self._name} cannot be read by {join_names([column.name])}: a row has {upto} there, "
                "and no later row is above that. Correct that row, or name another column."
            )
        return upto

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

    def _column(self, column: CatalogColumn, ordered: tuple[str, ...]) -> Column:
        return Column(
            name=column.name,
            type="text" if column.name in self._declared.as_text else column.type,
            nullable=not column.not_null,
            collation=column.collation if column.name in ordered else None,
            definition=None if column.name in self._declared.as_text else column.definition,
        )


# A partition is read with the table that it is of; views have to be named, with the column by which they are cut.
_TABLES = sql.SQL(
    """
    SELECT n.nspname, c.relname
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition
      AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_toast%%'
      AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
    ORDER BY 1, 2
    """
)


def found(endpoint: Endpoint, pattern: str) -> list[TableName]:
    """Return them in the order of their names."""
    with closing(Session(endpoint, errors=ERRORS, settings=READ_ONLY)) as session:
        names = [QualifiedName(schema=schema, name=name) for schema, name in session.rows(_TABLES)]
    return select_tables(names, pattern)
