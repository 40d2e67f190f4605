"""The table that is read, as part of statements: its name, its key and the rows that are asked for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.identifiers import (
    KeyColumn,
    TableName,
    conditions,
    literal,
    within_window,
)
from airflow_provider_backpressure.connectors.mysql.source.types import long, size
from airflow_provider_backpressure.connectors.relational.range_pieces import CutTable
from airflow_provider_backpressure.connectors.relational.table_size import (
    ASSUMED_ROW_BYTES,
    COUNTABLE_ROWS,
    UNEVEN,
    Size,
)
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Column


@dataclass(frozen=True, kw_only=True)
class KeyedTable(CutTable[TableName, KeyColumn, str]):
    """A table with the key by which it is cut, and the statements that read its rows."""

    def filter(self, bounds: Bounds | None = None, *more: str) -> str:
        """Return the WHERE clause for these bounds and further conditions, or nothing where every row is meant."""
        parts = [*conditions(bounds, self.key), *more]
        if self.window is not None and self.rising is not None:
            parts += within_window(self.window, self.rising)
        if self.where is not None:
            parts.append(user_condition(self.where))
        return " WHERE " + " AND ".join(parts) if parts else ""

    def rows(self, what: str, bounds: Bounds | None = None, *more: str) -> str:
        """Return the statement that reads this of the rows of these bounds."""
        return f"SELECT {what} FROM {self.name.sql}{self.filter(bounds, *more)}"


def build_schema_guard(table: Relation, columns: Sequence[Column]) -> str:
    """Return a condition that fails the statement where a column has another type by now, or may be NULL.

    ``table``: as it was looked at. The server evaluates the condition once, and nobody can alter the table meanwhile.
    Bytes are compared: MariaDB's own comparison takes two columns for one whose names differ by an accent.
    """
    names = {column.name for column in columns}
    known = [
        literal(f"{each.name} {each.data_type} {'NO' if each.not_null else 'YES'}")
        for each in table.columns
        if each.name in names
    ]
    found = (
        f"SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {literal(table.name.database)}"
        f" AND TABLE_NAME = {literal(table.name.name)} AND CAST(CONCAT(COLUMN_NAME, ' ', DATA_TYPE, ' ', IS_NULLABLE)"
        f" AS BINARY) IN ({', '.join(known)})"
    )
    return f"CASE ({found}) WHEN {len(known)} THEN 1 ELSE ({_TWO_ROWS}) END"


_TWO_ROWS = "SELECT 1 UNION SELECT 2"
"""A subquery that fails where one value is needed (error 1242)."""


def user_condition(where: str) -> str:
    """Return the user's condition in parentheses of its own; the line's end closes a comment that it may end with."""
    return f"({where}\n)"


LONG = 4096
"""Bytes from which on a value may make its row much larger than others."""


def row_size(columns: Sequence[CatalogColumn]) -> str:
    """Return the expression for the bytes of a row."""
    return f"({' + '.join(size(column) for column in columns)})"


def measure_size(session: Session, table: Relation, keyed: KeyedTable, columns: Sequence[CatalogColumn]) -> Size:
    """Return the size of what is asked for, ``columns``; long values are looked at while rows are counted."""
    uneven = any(long(column, LONG) for column in columns)
    if table.rows is not None and table.rows > COUNTABLE_ROWS:
        # What was emptied is still estimated by what it held. A window is only read where something lies in it.
        empty = keyed.window is None and not session.rows(f"{keyed.rows('1')} LIMIT 1")
        return Size(
            rows=0 if empty else None if keyed.partial else table.rows,
            exact=empty,
            row_bytes=table.row_bytes or ASSUMED_ROW_BYTES,
            widest_bytes=math.inf if uneven else 0.0,
        )
    if not uneven:
        rows = int(session.value(keyed.rows("COUNT(*)")))
        return Size(rows=rows, exact=True, row_bytes=table.row_bytes or ASSUMED_ROW_BYTES, widest_bytes=0.0)
    bytes = row_size(columns)
    rows, mean, widest = session.rows(keyed.rows(f"COUNT(*), AVG({bytes}), MAX({bytes})"))[0]
    row_bytes, widest_bytes = float(mean or ASSUMED_ROW_BYTES), float(widest or 0)
    return Size(
        rows=int(rows),
        exact=True,
        row_bytes=row_bytes,
        widest_bytes=widest_bytes if widest_bytes > UNEVEN * row_bytes else 0.0,
    )
