"""A database's table as a source, opened: what a catalogue, a key and a log make of it is the database's own."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from airflow_provider_backpressure.connectors.relational.catalog_table import CatalogTable, ColumnT, NameT
from airflow_provider_backpressure.connectors.relational.config import TableSource
from airflow_provider_backpressure.connectors.relational.identifiers import RelationName
from airflow_provider_backpressure.connectors.relational.key_choice import Split, check_rising
from airflow_provider_backpressure.connectors.relational.range_pieces import CutTable, NamedColumn
from airflow_provider_backpressure.connectors.relational.table_size import UNKNOWN, Size
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import ChangeLog
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, LogBounds, NullBounds, Values
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice, Window
from airflow_provider_backpressure.core.table_selection import TableName, match_tables
from airflow_provider_backpressure.exceptions import RESTART, SourceRefused

log = logging.getLogger(__name__)


class _Session(Protocol):
    def close(self) -> None: ...


class _Log(ChangeLog, Protocol):
    def close(self) -> None: ...


SourceT = TypeVar("SourceT", bound=TableSource)
SessionT = TypeVar("SessionT", bound=_Session)
RelationT = TypeVar("RelationT", bound=CatalogTable[Any, Any, Any])
KeyedT = TypeVar("KeyedT", bound=CutTable[Any, Any, Any])


@dataclass(frozen=True, kw_only=True)
class Dialect(Generic[SessionT, RelationT, ColumnT, KeyedT]):
    """How a database's statements are written. Each function asks over the session that it is given."""

    keyed: type[KeyedT]
    """A table with its key, as statements read it."""
    check_condition: Callable[[SessionT, RelationT, str], None]
    """Raises ``SourceRefused`` for a condition that the table cannot answer, or not twice alike."""
    measure_size: Callable[[SessionT, RelationT, KeyedT, Sequence[ColumnT]], Size]
    """Returns how much is asked for."""
    row_size: Callable[[Sequence[ColumnT]], Any]
    """Returns the expression for the bytes of a row."""
    cut_range: Callable[..., list[Bounds]]
    """Returns pieces of a range: of session, table, bounds and columns, and how many ``parts``."""
    in_order: Callable[[SessionT, KeyedT, Sequence[Values]], list[Values]]
    """Returns values of a key in the database's order."""


class DatabaseTable(ABC, Generic[SourceT, SessionT, NameT, RelationT, ColumnT, KeyedT]):
    """Implements :class:`..core.ports.Source` but for what a database does in its own way.

    Threads may share it; it connects at the first question.
    """

    dialect: Dialect[SessionT, RelationT, ColumnT, KeyedT]
    identity: str

    def __init__(self, declared: SourceT, endpoint: Endpoint, *, name: NameT, session: SessionT) -> None:
        self._declared = declared
        self._endpoint = endpoint
        self._name = name
        self._session = session
        self._known: RelationT | None = None
        """The table as the catalogue had it at the latest look."""
        self._logs: dict[str, _Log] = {}
        self._where = declared.where if declared.where and declared.where.strip() else None
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

        The position of the server's log is read before anything else: the plan brings at least what is before it, and
        what is written later can be replayed.
        """
        wanted = self._choose_consistency(consistency, after)
        position = self._position()
        table = self._find_table()
        columns = self._choose_columns(table)
        by = self._declared.increment_column if after is not None else self._declared.split_column
        split = self._choose_split(table, by, wanted)
        ordered = tuple(column.name for column in split.columns)
        self._check_readable(table, (*ordered, *split.key))
        as_text = [name for name in ordered if name in self._declared.as_text]
        if as_text:
            raise SourceRefused(
                f"{self._name} is cut by {table.join_names(as_text)}, which cannot be read as text too."
            )
        if after is None:
            self._check_values(table, (*ordered, *split.key))
        log_keys = self._check_log(table, columns) if wanted is Consistency.CATCH_UP else ()
        if self._where is not None:
            self.dialect.check_condition(self._session, table, self._where)
        window = self._window(table, after)
        keyed = self._with_key(ordered, window, unique=split.unique)
        size = self.dialect.measure_size(self._session, table, keyed, columns) if counted else UNKNOWN
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
            filtered=self._where is not None,
            hides_rows=table.hides_rows,
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        table = self._known_table()
        keyed = self._with_key(snapshot.split, snapshot.window, unique=snapshot.unique)
        if rows * snapshot.widest_bytes > bytes:
            keyed = replace(keyed, size=self.dialect.row_size(self._choose_columns(table)))
        return self._list_ranges(table, keyed, snapshot, rows=rows, bytes=bytes)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        if not isinstance(bounds, KeyBounds) or not bounds.columns:
            return [bounds]
        keyed = self._find_planned_key(bounds.columns, read)
        return self.dialect.cut_range(self._session, keyed, bounds, read.columns, parts=parts)

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        keyed = self._find_planned_key(tuple(columns), read)
        return self.dialect.in_order(self._session, keyed, values)

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks the catalogue once for the types, then nothing."""
        match bounds:
            case LogBounds():
                return self._slice_log(bounds, slice_id)
            case KeyBounds():
                names = bounds.columns
            case NullBounds():
                names = (bounds.column,)
            case _:
                names = ()
        keyed = self._find_planned_key(names, read)
        return Slice(slice_id=slice_id, query=self._query(keyed, read, bounds), bounds=bounds.to_json())

    def log(self, hydration_id: str) -> ChangeLog:
        if hydration_id not in self._logs:
            self._logs[hydration_id] = self._open_log(hydration_id)
        return self._logs[hydration_id]

    def close(self) -> None:
        self._session.close()
        for log in self._logs.values():
            log.close()

    def _check_log(self, table: RelationT, columns: tuple[ColumnT, ...]) -> tuple[tuple[str, ...], ...]:
        """Return the keys that identify a deleted row in the log; ``SourceRefused`` if changes cannot be replayed."""
        if self._where is not None or self._declared.increment_column is not None:
            what = "where" if self._where is not None else "increment_column"
            raise SourceRefused(f"The log shows every change of {self._name}: catch_up goes without {what}.")
        return self._log_keys(table, columns)

    def _find_planned_key(self, key: tuple[str, ...], read: ReadSpec) -> KeyedT:
        """Return the table as it was cut; ``SourceRefused`` where text of a key is in another order by now."""
        for name in (*key, *([read.window.column] if read.window else [])):
            before = next((column.collation for column in read.columns if column.name == name), None)
            column = self._known_table().column(name) if before is not None else None
            if column is not None and column.collation not in (None, before):
                raise SourceRefused(
                    f"Text of {self._name.quoting.join_names([name])} in {self._name} is ordered by "
                    f"{column.collation}, and was by {before} when the plan was made: its bounds have other rows now. "
                    f"What is committed stays; {RESTART}."
                )
        return self._with_key(key, read.window, unique=False)

    def _with_key(self, key: tuple[str, ...], window: Window | None, *, unique: bool) -> KeyedT:
        """Return the table as a plan has it, which may be an older one than the catalogue would give today."""
        return self.dialect.keyed(
            name=self._name,
            key=tuple(self._key_column(name) for name in key),
            unique=unique,
            where=self._where,
            window=window,
            rising=None if window is None else self._key_column(window.column),
        )

    def _key_column(self, name: str) -> Any:
        found = self._find_key_column(name)
        if found is None:
            shown = self._name.quoting.join_names([name])
            raise SourceRefused(f"{self._name} has changed: it can no longer be cut by {shown}.")
        return found

    def _window(self, table: RelationT, after: str | None) -> Window | None:
        """Return what of the rising column is to be read; an empty window where there is nothing new."""
        name = self._declared.increment_column
        if name is None:
            return None
        column = check_rising(table, name, columns=self._declared.columns, as_text=self._declared.as_text)
        self._check_readable(table, (name,))
        upto = self._find_highest(column, after)
        return None if upto is None else Window(column=name, after=after, upto=upto)

    def _known_table(self) -> RelationT:
        """Return the table as far as it has to be known to list ranges."""
        return self._known or self._find_table()

    @abstractmethod
    def _choose_consistency(self, consistency: Consistency | None, after: str | None) -> Consistency: ...

    @abstractmethod
    def _position(self) -> str | None:
        """Return the server's position in its log; ``None`` where it keeps none."""

    @abstractmethod
    def _find_table(self) -> RelationT:
        """Return the table as the catalogue has it now, and keep it; ``SourceRefused`` where it cannot be read."""

    @abstractmethod
    def _choose_columns(self, table: RelationT) -> tuple[ColumnT, ...]: ...

    @abstractmethod
    def _choose_split(self, table: RelationT, by: str | None, consistency: Consistency) -> Split[ColumnT]: ...

    @abstractmethod
    def _check_readable(self, table: RelationT, names: tuple[str, ...]) -> None: ...

    def _check_values(self, table: RelationT, names: tuple[str, ...]) -> None:
        """Raise ``SourceRefused`` where these columns, which cut the table or are its key, arrive with other values."""

    @abstractmethod
    def _find_key_column(self, name: str) -> NamedColumn | None:
        """Return the column for a key; ``None`` where it is gone or of another type by now."""

    @abstractmethod
    def _find_highest(self, column: ColumnT, after: str | None) -> str | None:
        """Return the highest value of a rising column if it is above ``after``, and otherwise ``after``."""

    @abstractmethod
    def _column(self, column: ColumnT, ordered: tuple[str, ...]) -> Column:
        """Return a column as plans have it; ``ordered``: the columns whose collations decide."""

    @abstractmethod
    def _list_ranges(
        self, table: RelationT, keyed: KeyedT, snapshot: Snapshot, *, rows: int, bytes: int
    ) -> Iterator[PlannedRange]: ...

    @abstractmethod
    def _query(self, keyed: KeyedT, read: ReadSpec, bounds: Bounds) -> str: ...

    @abstractmethod
    def _slice_log(self, bounds: LogBounds, slice_id: str) -> Slice: ...

    @abstractmethod
    def _open_log(self, hydration_id: str) -> _Log: ...

    @abstractmethod
    def _log_keys(self, table: RelationT, columns: tuple[ColumnT, ...]) -> tuple[tuple[str, ...], ...]: ...


def select_tables(names: Iterable[RelationName], pattern: str) -> list[TableName]:
    """Return the tables that the pattern meets, in the order in which they come; this package's own are logged."""
    tables = (TableName(schema=name.parts[0], name=name.parts[1], spelled=str(name)) for name in names)
    met = match_tables(tables, pattern)
    own = [table for table in met if table.name.startswith(OWN)]
    if own:
        listed = ", ".join(table.spelled for table in own)
        log.info("Left out of %s, since names that begin with %s are this package's own: %s.", pattern, OWN, listed)
    return [table for table in met if table not in own]


OWN = "backpressure_"
"""Begins the names of this package's tables: ledgers, and what sinks keep beside their targets."""
