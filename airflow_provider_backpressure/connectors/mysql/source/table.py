"""A MySQL table as a source, opened."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_backpressure.connectors.mysql import identifiers as names
from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation, find
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.errors import Errors
from airflow_provider_backpressure.connectors.mysql.health import MySQLHealth
from airflow_provider_backpressure.connectors.mysql.identifiers import KeyColumn, TableName, join_names
from airflow_provider_backpressure.connectors.mysql.source.change_log import MySQLLog, window_slice
from airflow_provider_backpressure.connectors.mysql.source.checks import (
    check_condition,
    check_readable,
    check_rights,
    chosen_columns,
    replayable,
)
from airflow_provider_backpressure.connectors.mysql.source.key import (
    chosen_split,
    cut_range,
    in_order,
    key_ranges,
)
from airflow_provider_backpressure.connectors.mysql.source.query import KeyedTable, measure_size, row_size
from airflow_provider_backpressure.connectors.mysql.source.types import Carried, carry_column, line
from airflow_provider_backpressure.connectors.relational import UNKNOWN
from airflow_provider_backpressure.connectors.relational.split import check_rising
from airflow_provider_backpressure.core.config import Consistency, suffix
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signals import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream, from_gtids
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, LogBounds, NullBounds, Values
from airflow_provider_backpressure.core.snapshot.messages import Column, ReadSpec, Slice, Window
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.table_selection import TableName as SelectedTable
from airflow_provider_backpressure.core.table_selection import match_tables
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.mysql.source.config import MySQLSource

KIND = "mysql"
ERRORS = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
NO_SNAPSHOT = (
    "MySQL has no snapshot that several connections could read in: use consistency='static' for a table that stands "
    "still while it is read, or 'catch_up', which replays what changes meanwhile."
)


class MySQLTable:
    """Implements :class:`..core.ports.Source`. Threads may share it; it connects at the first question."""

    modules: tuple[str, ...] = ("pymysql",)

    def __init__(self, declared: "MySQLSource", endpoint: Endpoint) -> None:
        self._declared = declared
        self._name = TableName.parse(declared.table, endpoint.database)
        self._session = Session(endpoint, errors=ERRORS)
        self._endpoint = endpoint
        self._user = endpoint.user
        self._known: Relation | None = None
        self._logs: dict[str, MySQLLog] = {}
        self._where = declared.where if declared.where and declared.where.strip() else None
        self.identity = f"mysql://{endpoint.host}:{endpoint.port}/{self._name}{self._part()}"
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

        The server's position in its log is taken before anything else, so that what is written later can be replayed.
        """
        wanted = consistency or Consistency.STATIC
        if wanted not in (Consistency.STATIC, Consistency.CATCH_UP):
            raise SourceRefused(NO_SNAPSHOT)
        position = self._position()
        table = self._known = find(self._session, self._name)
        check_rights(self._session, table, self._declared.columns)
        columns = self._chosen(table)
        by = self._declared.increment_column if after is not None else self._declared.split_column
        named = self._declared.columns or ()
        split = chosen_split(table, by, whole=self._declared.whole and by is None, columns=named)
        ordered = tuple(column.name for column in split.columns)
        check_readable(table, (*ordered, *split.key), user=self._user)
        as_text = [name for name in ordered if name in self._declared.as_text]
        if as_text:
            raise SourceRefused(f"{self._name} is cut by {join_names(as_text)}, which cannot be read as text too.")
        log_keys = self._log_keys(table, columns) if wanted is Consistency.CATCH_UP else ()
        if self._where is not None:
            check_condition(self._session, table, self._where)
        window = self._window(table, after)
        keyed = self._with_key(ordered, window, unique=split.unique)
        size = measure_size(self._session, table, keyed, columns) if counted else UNKNOWN
        sorted_ = (*ordered, *((window.column,) if window else ()))
        return Snapshot(
            source_identity=self.identity,
            columns=tuple(self._column(column, sorted_) for column in columns),
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
        keyed = self._with_key(snapshot.split, snapshot.window, unique=snapshot.unique)
        if rows * snapshot.widest_bytes > bytes:
            keyed = replace(keyed, size=row_size(self._chosen(self._table)))
        return key_ranges(self._session, keyed, snapshot, rows=rows, bytes=bytes)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        """See :meth:`..core.ports.Source.cut`."""
        if not isinstance(bounds, KeyBounds) or not bounds.columns:
            return [bounds]
        table = self._with_key(bounds.columns, read.window, unique=False)
        return cut_range(self._session, table, bounds, read.columns, parts=parts)

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        """See :meth:`..core.ports.Source.in_order`."""
        return in_order(self._session, self._with_key(tuple(columns), read.window, unique=False), values)

    def keep(self, plan: Plan) -> Keeper:
        """Raise ``SourceRefused``: there is no snapshot to be kept."""
        raise SourceRefused(NO_SNAPSHOT)

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        """See :meth:`..core.ports.Source.read_spec`."""
        return ReadSpec(kind=KIND, conn_id=self._declared.conn_id, columns=snapshot.columns, window=snapshot.window)

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks the catalogue once for the types, then nothing."""
        if isinstance(bounds, LogBounds):
            declared = self._declared
            return window_slice(
                bounds, self._name, slice_id=slice_id, as_text=declared.as_text, zero_dates=declared.zero_dates
            )
        match bounds:
            case KeyBounds():
                names = bounds.columns
            case NullBounds():
                names = (bounds.column,)
            case _:
                raise SourceRefused(f"MySQL has no bounds like {bounds}.")
        keyed = self._with_key(names, read.window, unique=False)
        return Slice(slice_id=slice_id, query=keyed.rows(self._line(read), bounds), bounds=bounds.to_json())

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """See :meth:`..core.ports.Source.check_range`. By the catalogue: the table, its columns, our right to them."""
        self._known = find(self._session, self._name)
        check_rights(self._session, self._known, tuple(column.name for column in plan.read.columns))
        self.slice(plan.read, bounds, "")

    def log(self, hydration_id: str) -> ChangeLog:
        """See :meth:`..core.ports.Source.log`."""
        if hydration_id not in self._logs:
            self._logs[hydration_id] = MySQLLog(self._endpoint, hydration_id)
        return self._logs[hydration_id]

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        """See :meth:`..core.ports.Source.health`."""
        return MySQLHealth(self._endpoint, watched, errors=ERRORS, seconds=seconds)

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. Nothing where the server keeps no GTIDs."""
        return Upstream(unit=Unit.TRANSACTIONS, at=from_gtids(self._position() or ""))

    def close(self) -> None:
        """See :meth:`..core.ports.Source.close`."""
        self._session.close()
        for log in self._logs.values():
            log.close()

    @property
    def _table(self) -> Relation:
        if self._known is None:
            self._known = find(self._session, self._name)
        return self._known

    def _log_keys(self, table: Relation, columns: tuple[CatalogColumn, ...]) -> tuple[tuple[str, ...], ...]:
        """Return the keys that identify a deleted row in the log; ``SourceRefused`` if changes cannot be replayed."""
        declared = self._declared
        if self._where is not None or declared.increment_column is not None:
            what = "where" if self._where is not None else "increment_column"
            raise SourceRefused(f"The log shows every change of {self._name}: catch_up goes without {what}.")
        replayable(self._session, table, columns, as_text=declared.as_text)
        told = {column.name for column in columns if column.not_null}
        return tuple(key.columns for key in table.keys if told.issuperset(key.columns))

    def _position(self) -> str | None:
        """Return the transactions that the server has, as a GTID set; ``None`` where it keeps no such count."""
        variable = "@@GLOBAL.gtid_binlog_pos" if self._session.mariadb else "@@GLOBAL.gtid_executed"
        found = str(self._session.value(f"SELECT {variable}") or "")
        return "".join(found.split()) or None

    def _chosen(self, table: Relation) -> tuple[CatalogColumn, ...]:
        return chosen_columns(table, self._declared.columns, self._declared.as_text, user=self._user)

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
        column = self._table.column(name)
        kind = None if column is None else column.key_kind
        if kind is None:
            raise SourceRefused(f"{self._name} has changed: it can no longer be cut by {join_names([name])}.")
        return KeyColumn(name=name, kind=kind)

    def _window(self, table: Relation, after: str | None) -> Window | None:
        """Return what of the rising column is to be read; an empty window where there is nothing new."""
        name = self._declared.increment_column
        if name is None:
            return None
        check_rising(table, name, columns=self._declared.columns, as_text=self._declared.as_text)
        check_readable(table, (name,), user=self._user)
        rising = self._key_column(name)
        everything = self._with_key((), None, unique=False)
        # The highest value may be below the one committed last: rows were deleted, or a replica lags.
        above = "IS NOT NULL" if after is None else f"> {rising.value(after)}"
        found = self._session.rows(
            everything.rows(rising.to_boundary_sql, None, f"{rising.sql} {above}")
            + f" ORDER BY {rising.sql} DESC LIMIT 1"
        )
        upto = found[0][0] if found else after
        return None if upto is None else Window(column=name, after=after, upto=upto)

    def _line(self, read: ReadSpec) -> str:
        """Return the expression for a row's text: each column as the plan has it."""
        ways: list[tuple[str, Carried]] = []
        for planned in read.columns:
            column = self._table.column(planned.name)
            way = None if column is None else self._carry(column, planned.type)
            if way is None:
                raise SourceRefused(
                    f"{self._name} has changed: {join_names([planned.name])} is no {planned.type} any more."
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

    def _part(self) -> str:
        """Return the identity's suffix: a part of a table is another source than the whole."""
        declared = self._declared
        return suffix([declared.columns, self._where, declared.as_text, declared.zero_dates == "null"])


_TABLES = """
    SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
    WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')
    ORDER BY 1, 2
"""


def found(endpoint: Endpoint, pattern: str) -> list[SelectedTable]:
    """Return them in the order of their names. The server itself shows only what the user may read."""
    with closing(Session(endpoint, errors=ERRORS)) as session:
        tables = [names.TableName(database=database, name=name) for database, name in session.rows(_TABLES)]
    return match_tables(
        (SelectedTable(schema=each.database, name=each.name, spelled=str(each)) for each in tables), pattern
    )
