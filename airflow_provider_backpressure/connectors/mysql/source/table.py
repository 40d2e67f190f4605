"""A MySQL table as a source, opened."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation, find
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.errors import Errors
from airflow_provider_backpressure.connectors.mysql.health import MySQLHealth
from airflow_provider_backpressure.connectors.mysql.identifiers import KeyColumn, TableName, join_names
from airflow_provider_backpressure.connectors.mysql.source.boundaries import (
    chosen_split,
    cut_range,
    in_order,
    key_ranges,
)
from airflow_provider_backpressure.connectors.mysql.source.change_log import MySQLLog, table_query, window_slice
from airflow_provider_backpressure.connectors.mysql.source.checks import (
    check_condition,
    check_readable,
    check_rights,
    check_zero_dates,
    chosen_columns,
    replayable,
)
from airflow_provider_backpressure.connectors.mysql.source.query import (
    KeyedTable,
    build_schema_guard,
    measure_size,
    row_size,
)
from airflow_provider_backpressure.connectors.mysql.source.shared_log import SharedTableLog
from airflow_provider_backpressure.connectors.mysql.source.types import Carried, carry_column, line
from airflow_provider_backpressure.connectors.relational.key_choice import Split
from airflow_provider_backpressure.connectors.relational.table import DatabaseTable, Dialect, select_tables
from airflow_provider_backpressure.core.config import Consistency, suffix
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import Health, Keeper, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream, from_gtids
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, LogBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice
from airflow_provider_backpressure.core.table_selection import TableName as SelectedTable
from airflow_provider_backpressure.exceptions import RESTART, SourceRefused, SourceUnavailable

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.mysql.source.config import MySQLSource

KIND = "mysql"
ERRORS = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
NO_SNAPSHOT = (
    "MySQL has no snapshot that several connections could read in: use consistency='static' for a table that stands "
    "still while it is read, or 'catch_up', which replays what changes meanwhile."
)


class MySQLTable(DatabaseTable["MySQLSource", Session, TableName, Relation, CatalogColumn, KeyedTable]):
    """A table or view of MySQL."""

    modules: tuple[str, ...] = ("pymysql",)
    dialect = Dialect(
        keyed=KeyedTable,
        check_condition=check_condition,
        measure_size=measure_size,
        row_size=row_size,
        cut_range=cut_range,
        in_order=in_order,
    )

    def __init__(self, declared: "MySQLSource", endpoint: Endpoint) -> None:
        name = TableName.parse(declared.table, endpoint.database)
        super().__init__(declared, endpoint, name=name, session=Session(endpoint, errors=ERRORS))
        self._user = endpoint.user
        chosen = suffix([declared.columns, self._where, declared.as_text, declared.zero_dates == "null"])
        self.identity = f"mysql://{endpoint.host}:{endpoint.port}/{name}{chosen}"

    def keep(self, plan: Plan) -> Keeper:
        """Raise ``SourceRefused``: there is no snapshot to be kept."""
        raise SourceRefused(NO_SNAPSHOT)

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        return ReadSpec(kind=KIND, conn_id=self._declared.conn_id, columns=snapshot.columns, window=snapshot.window)

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """See :meth:`..core.ports.Source.check_range`. By the catalogue: the table, its columns, our right to them."""
        table = self._find_table()
        check_rights(self._session, table, tuple(column.name for column in plan.read.columns))
        self.slice(plan.read, bounds, "")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        return MySQLHealth(self._endpoint, watched, errors=ERRORS, seconds=seconds)

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. Nothing where the server keeps no GTIDs."""
        return Upstream(unit=Unit.TRANSACTIONS, at=from_gtids(self._position() or ""))

    def get_shared_log(self, stream: str) -> SharedTableLog:
        """See :meth:`..core.ports.SharesLog.get_shared_log`."""
        key = f"shared {stream}"
        if key not in self._logs:
            declared = self._declared
            query = table_query(self._name, as_text=declared.as_text, zero_dates=declared.zero_dates)
            self._logs[key] = SharedTableLog(self._endpoint, self._name, stream, query=query)
        found = self._logs[key]
        assert isinstance(found, SharedTableLog), "kept under a key of its own"
        return found

    def _choose_consistency(self, consistency: Consistency | None, after: str | None) -> Consistency:
        wanted = consistency or Consistency.STATIC
        if wanted not in (Consistency.STATIC, Consistency.CATCH_UP):
            raise SourceRefused(NO_SNAPSHOT)
        return wanted

    def _find_table(self) -> Relation:
        self._known = find(self._session, self._name)
        return self._known

    def _choose_columns(self, table: Relation) -> tuple[CatalogColumn, ...]:
        declared = self._declared
        check_rights(self._session, table, declared.columns)
        return chosen_columns(table, declared.columns, declared.as_text, user=self._user)

    def _choose_split(self, table: Relation, by: str | None, consistency: Consistency) -> Split[CatalogColumn]:
        declared = self._declared
        return chosen_split(table, by, whole=declared.whole and by is None, columns=declared.columns or ())

    def _check_readable(self, table: Relation, names: tuple[str, ...]) -> None:
        check_readable(table, names, user=self._user)

    def _check_values(self, table: Relation, names: tuple[str, ...]) -> None:
        if self._declared.zero_dates == "null":
            check_zero_dates(table, names)

    def _list_ranges(
        self, table: Relation, keyed: KeyedTable, snapshot: Snapshot, *, rows: int, bytes: int
    ) -> Iterator[PlannedRange]:
        return key_ranges(self._session, keyed, snapshot, rows=rows, bytes=bytes)

    def _query(self, keyed: KeyedTable, read: ReadSpec, bounds: Bounds) -> str:
        return keyed.rows(self._line(read), bounds, build_schema_guard(self._known_table(), read.columns))

    def _slice_log(self, bounds: LogBounds, slice_id: str) -> Slice:
        declared = self._declared
        return window_slice(
            bounds, self._name, slice_id=slice_id, as_text=declared.as_text, zero_dates=declared.zero_dates
        )

    def _open_log(self, hydration_id: str) -> MySQLLog:
        return MySQLLog(self._endpoint, hydration_id, self._name)

    def _log_keys(self, table: Relation, columns: tuple[CatalogColumn, ...]) -> tuple[tuple[str, ...], ...]:
        replayable(self._session, table, columns, as_text=self._declared.as_text)
        told = {column.name for column in columns if column.not_null}
        return tuple(key.columns for key in table.keys if told.issuperset(key.columns))

    def _position(self) -> str | None:
        """Return the transactions that the server has, as a GTID set; ``None`` where it keeps no such count."""
        variable = "@@GLOBAL.gtid_binlog_pos" if self._session.mariadb else "@@GLOBAL.gtid_executed"
        found = str(self._session.value(f"SELECT {variable}") or "")
        return "".join(found.split()) or None

    def _find_key_column(self, name: str) -> KeyColumn | None:
        column = self._known_table().column(name)
        if column is None or column.key_kind is None:
            return None
        return KeyColumn(name=name, kind=column.key_kind)

    def _find_highest(self, column: CatalogColumn, after: str | None) -> str | None:
        rising = self._key_column(column.name)
        everything = self._with_key((), None, unique=False)
        # The highest value may be below the one committed last: rows were deleted, or a replica lags.
        above = "IS NOT NULL" if after is None else f"> {rising.value(after)}"
        found = self._session.rows(
            everything.rows(rising.to_boundary_sql, None, f"{rising.sql} {above}")
            + f" ORDER BY {rising.sql} DESC LIMIT 1"
        )
        return found[0][0] if found else after

    def _line(self, read: ReadSpec) -> str:
        """Return the expression for a row's text: each column as the plan has it."""
        ways: list[tuple[str, Carried]] = []
        for planned in read.columns:
            column = self._known_table().column(planned.name)
            way = None if column is None else self._carry(column, planned.type)
            if way is None:
                raise SourceRefused(
                    f"{self._name} has changed: {join_names([planned.name])} is no {planned.type} any more."
                )
            if way.nullable and not planned.nullable:
                # The plan may have no range for rows without a value.
                raise SourceRefused(
                    f"{self._name} has changed: {join_names([planned.name])} may be NULL by now; {RESTART}."
                )
            ways.append((planned.name, way))
        return line(ways)

    def _carry(self, column: CatalogColumn, planned: str) -> Carried | None:
        for as_text in (False, True):
            way = carry_column(column, as_text=as_text, zero_dates=self._declared.zero_dates)
            if way is not None and way.type == planned:
                return way
        return None

    def _column(self, column: CatalogColumn, ordered: tuple[str, ...]) -> Column:
        way = carry_column(column, as_text=column.name in self._declared.as_text, zero_dates=self._declared.zero_dates)
        assert way is not None, "chosen_columns has refused it"
        return Column(
            name=column.name,
            type=way.type,
            nullable=way.nullable,
            collation=column.collation if column.name in ordered else None,
        )


_TABLES = """
    SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
    WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
      AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')
    ORDER BY 1, 2
"""


def found(endpoint: Endpoint, pattern: str) -> list[SelectedTable]:
    """Return them in the order of their names. The server itself shows only what the user may read."""
    with closing(Session(endpoint, errors=ERRORS)) as session:
        tables = [TableName(database=database, name=name) for database, name in session.rows(_TABLES)]
    return select_tables(tables, pattern)
