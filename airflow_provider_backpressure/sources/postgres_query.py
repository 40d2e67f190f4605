"""The table that is read, as part of statements: its name, its key and the rows that are asked for."""

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg.sql import SQL, Composable, Composed, Identifier

from airflow_provider_backpressure.core.ranges import KeyBounds
from airflow_provider_backpressure.postgres.bounds import condition
from airflow_provider_backpressure.postgres.names import QualifiedName


@dataclass(frozen=True, kw_only=True)
class KeyedTable:
    """A table with the key by which it is cut, and the user's own condition."""

    name: QualifiedName
    key: str
    cast: str
    """Type to which boundaries are cast, see :func:`..postgres.bounds.key_cast`."""
    where: str | None

    @property
    def sql(self) -> Composable:
        """The table's name."""
        return SQL(self.name.sql)

    @property
    def key_sql(self) -> Composable:
        """The key's name."""
        return Identifier(self.key)

    def filter(self, start: str | None = None, end: str | None = None) -> Composable:
        """Return the WHERE clause for keys of ``[start, end)``, or nothing where every row is meant."""
        parts: list[Composable] = []
        if start is not None or end is not None:
            parts += condition(KeyBounds(column=self.key, start=start, end=end), self.cast)
        if self.where is not None:
            parts.append(user_condition(self.where))
        return SQL(" WHERE ") + SQL(" AND ").join(parts) if parts else SQL("")

    def rows(self, columns: Iterable[Composable], start: str | None, end: str | None) -> Composed:
        """Return the statement that reads the columns of the keys of ``[start, end)``."""
        what = SQL(", ").join(columns)
        return SQL("SELECT {} FROM {}{}").format(what, self.sql, self.filter(start, end))


def user_condition(where: str) -> Composable:
    """Return the user's condition in parentheses of its own; the line's end closes a comment that it may end with."""
    return SQL("({}\n)").format(SQL(where))


def column_sql(name: str, *, as_text: bool) -> Composable:
    """Return a column for the list of a SELECT."""
    column = Identifier(name)
    return SQL("{}::text AS {}").format(column, column) if as_text else column
