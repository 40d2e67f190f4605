"""The table that is read, as part of statements: its name, its key and the rows that are asked for."""

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg.sql import SQL, Composable, Composed, Identifier

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.predicates import condition, within_blocks, within_window
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, Bounds, KeyBounds, NullBounds, Values
from airflow_provider_backpressure.core.snapshot.messages import Window
from airflow_provider_backpressure.exceptions import InvalidDeclaration


@dataclass(frozen=True, kw_only=True)
class KeyColumn:
    """A column by which ranges are cut, or whose windows are read."""

    name: str
    cast: str
    """Type to which boundaries are cast, see :func:`..connectors.postgres.predicates.key_cast`."""


@dataclass(frozen=True, kw_only=True)
class KeyedTable:
    """A table with the key by which it is cut, and what else decides which of its rows are read."""

    name: QualifiedName
    key: tuple[KeyColumn, ...]
    """Empty where it is cut by blocks."""
    unique: bool
    where: str | None
    """The user's own condition."""
    window: Window | None = None
    rising: KeyColumn | None = None
    """The column of the window."""
    size: Composable | None = None
    """Expression for the bytes of a row, where rows differ much in size."""

    @property
    def sql(self) -> Composable:
        """The table's name."""
        return SQL(self.name.sql)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the key's columns."""
        return tuple(column.name for column in self.key)

    @property
    def partial(self) -> bool:
        """Whether some of the table's rows are not read, so that its statistics say little."""
        return self.where is not None or self.window is not None

    def make_bounds(self, start: Values | None, end: Values | None) -> Bounds:
        """Return bounds of the key."""
        return KeyBounds(columns=self.columns, start=start, end=end)

    def filter(self, bounds: Bounds | None = None) -> Composable:
        """Return the WHERE clause for these bounds, or nothing where every row is meant."""
        parts: list[Composable] = []
        if isinstance(bounds, KeyBounds | NullBounds):
            parts += condition(bounds, [column.cast for column in self.key])
        elif isinstance(bounds, BlockBounds):
            parts += within_blocks(bounds)
        elif bounds is not None:
            raise InvalidDeclaration(f"A table is not read by {bounds}.")
        if self.window is not None and self.rising is not None:
            parts += within_window(self.window, self.rising.cast)
        if self.where is not None:
            parts.append(user_condition(self.where))
        return SQL(" WHERE ") + SQL(" AND ").join(parts) if parts else SQL("")

    def rows(self, columns: Iterable[Composable], bounds: Bounds | None = None) -> Composed:
        """Return the statement that reads the columns of the rows of these bounds."""
        table = self.sql
        if isinstance(bounds, BlockBounds):
            table = SQL("ONLY {}").format(SQL(QualifiedName.parse(bounds.table).sql))
        return SQL("SELECT {} FROM {}{}").format(SQL(", ").join(columns), table, self.filter(bounds))


def user_condition(where: str) -> Composable:
    """Return the user's condition in parentheses of its own; the line's end closes a comment that it may end with."""
    return SQL("({}\n)").format(SQL(where))


def column_sql(name: str, *, as_text: bool) -> Composable:
    """Return a column for the list of a SELECT."""
    column = Identifier(name)
    return SQL("{}::text AS {}").format(column, column) if as_text else column
