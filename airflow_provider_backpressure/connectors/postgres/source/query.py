"""The table that is read, as part of statements: its name, its key and the rows that are asked for."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.abc import Params
from psycopg.sql import SQL, Composable, Composed, Identifier

from airflow_provider_backpressure.connectors.postgres.catalog import ORDINARY, PARTITIONED, CatalogColumn, Relation
from airflow_provider_backpressure.connectors.postgres.connect import Query, Row, Session, run_together
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.predicates import condition, within_blocks, within_window
from airflow_provider_backpressure.connectors.relational.range_pieces import CutTable, NamedColumn
from airflow_provider_backpressure.connectors.relational.table_size import COUNTABLE_ROWS, UNEVEN, Size
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, Bounds, KeyBounds, NullBounds, Values
from airflow_provider_backpressure.exceptions import InvalidDeclaration


@dataclass(frozen=True, kw_only=True)
class KeyColumn(NamedColumn):
    """A column by which ranges are cut, or whose windows are read."""

    cast: str
    """Type to which boundaries are cast, see :func:`..connectors.postgres.predicates.key_cast`."""


@dataclass(frozen=True, kw_only=True)
class KeyedTable(CutTable[QualifiedName, KeyColumn, Composable]):
    """A table with the key by which it is cut, and the statements that read its rows."""

    @property
    def sql(self) -> Composable:
        """The table's name."""
        return SQL(self.name.sql)

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


SAMPLED_ROWS = 30_000
"""Rows that are looked at for their size."""
_SHORT = re.compile(
    r"(smallint|integer|bigint|numeric|real|double precision|boolean|date|time|timestamp|interval|uuid|inet|cidr"
    r"|macaddr|money|oid|name|pg_lsn)\b(?!.*\[\])|character( varying)?\(\d{1,3}\)$"
)
"""Types whose values have no more than some thousand bytes."""
_TOASTED = 2000
"""Bytes of a row above which PostgreSQL begins to keep its long values aside."""
_MUCH = 16 * 1024 * 1024
"""Bytes kept aside that are worth asking who they belong to."""


def measure_size(session: Session, table: Relation, keyed: KeyedTable, columns: Sequence[CatalogColumn]) -> Size:
    """Return the size of what is asked for, ``columns``."""
    rows = keyed.rows([sql.Identifier(column.name) for column in columns])
    explained, stored = _ask(session, keyed, _EXPLAIN + rows, (_STORAGE, {"oid": table.oid}))
    estimated, width = _read_estimate(explained)
    whole = estimated
    if keyed.partial:
        whole, _ = _read_estimate(session.rows(_EXPLAIN + sql.SQL("SELECT FROM {}").format(keyed.sql)))
    toast_bytes, analysed = stored[0]
    (mean, widest), counted = _look(session, table, keyed, columns, whole)
    row_bytes = mean or width + toast_bytes / max(1, whole)
    if 0 < widest < _TOASTED and toast_bytes > _MUCH:
        # None of the rows seen has a long value, yet there are some: no bound is known.
        widest = math.inf
    widest = widest if widest > UNEVEN * row_bytes else 0.0
    if counted is not None:
        return Size(rows=counted, exact=True, row_bytes=row_bytes, widest_bytes=widest)
    # What was emptied is still estimated by what it held. A window is only read where something lies in it.
    if keyed.window is None and not session.rows(keyed.rows([sql.SQL("1")]) + sql.SQL(" LIMIT 1")):
        return Size(rows=0, exact=True, row_bytes=row_bytes, widest_bytes=widest)
    return Size(rows=estimated if analysed else None, exact=False, row_bytes=row_bytes, widest_bytes=widest)


def _look(
    session: Session, table: Relation, keyed: KeyedTable, columns: Sequence[CatalogColumn], whole: int
) -> tuple[tuple[float, float], int | None]:
    """Return mean and largest size of some rows, and how many there are.

    The sizes are 0 where no column can hold anything long; the number is ``None`` where it is too large to be counted.
    """
    values = {
        "sizes": _SIZES,
        "size": row_size(columns),
        "table": keyed.sql,
        "share": sql.Literal(min(1.0, max(1e-6, SAMPLED_ROWS / max(1, whole)))),
    }
    counted, wide = whole <= COUNTABLE_ROWS, _may_be_wide(table, columns)
    if counted and wide and not keyed.partial:
        ((mean, widest, rows),) = session.rows(sql.SQL(_COUNTED_SAMPLE).format(**values))
        return (mean, widest), rows
    sample = sql.SQL(_SAMPLE if counted else _SAMPLE_OF_BLOCKS).format(**values)
    count = sql.SQL("SELECT count(*) FROM {}{}").format(keyed.sql, keyed.filter())
    asked = [*([sample] if wide else []), *([count] if counted else [])]
    found = iter(_ask(session, keyed, *asked)) if asked else iter(())
    sizes = next(found)[0] if wide else (0.0, 0.0)
    return sizes, next(found)[0][0] if counted else None


def _ask(session: Session, keyed: KeyedTable, *statements: Query | tuple[Query, Params]) -> list[list[Row]]:
    """Return the rows of each statement; all are sent at once where no user's condition can be in one of them."""
    if keyed.where is None:
        return session.read(lambda connection: run_together(connection, *statements))
    pairs = (each if isinstance(each, tuple) else (each, None) for each in statements)
    return [session.rows(query, values) for query, values in pairs]


def row_size(columns: Sequence[CatalogColumn]) -> sql.Composable:
    """Return the expression for the bytes of a row; it asks for lengths, and unpacks no long value for them.

    A packed value of a type other than text and bytes counts as it is stored.
    """
    return sql.SQL("({})").format(sql.SQL(" + ").join([_size(column) for column in columns]))


def _size(column: CatalogColumn) -> sql.Composable:
    name = sql.Identifier(column.name)
    if column.type == "bytea" or (column.type.startswith(("text", "character")) and not column.type.endswith("]")):
        return sql.SQL("coalesce(octet_length({}), 0)").format(name)
    return sql.SQL("coalesce(pg_column_size({}), 0)").format(name)


def _may_be_wide(table: Relation, columns: Sequence[CatalogColumn]) -> bool:
    return table.kind in (ORDINARY, PARTITIONED) and not all(_SHORT.match(column.type) for column in columns)


_EXPLAIN = sql.SQL("EXPLAIN (FORMAT JSON) ")


def _read_estimate(rows: Sequence[Row]) -> tuple[int, float]:
    """Return rows and bytes of a row as the planner sees them; it scales what ANALYZE saw to the table's size now."""
    answer: Any = rows[0][0]
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return int(plan["Plan Rows"]), float(plan["Plan Width"])


# A long value counts in the planner's width as the pointer to where it lies: what lies there is spread over the rows.
# The numbers are one array: otherwise every relation of a large database is looked at, for each table.
_STORAGE = sql.SQL(
    """
    SELECT coalesce(sum(pg_relation_size(nullif(c.reltoastrelid, 0))), 0)::bigint,
           coalesce(bool_and(c.reltuples > 0 OR pg_relation_size(c.oid) = 0), true)
    FROM pg_class c
    WHERE c.oid = ANY (ARRAY(SELECT %(oid)s::oid UNION SELECT p.relid FROM pg_partition_tree(%(oid)s) p WHERE p.isleaf))
      AND (c.relkind = 'r' OR c.oid <> %(oid)s)
    """
)
_SIZES = sql.SQL("coalesce(avg(s.size), 0)::float8, coalesce(max(s.size), 0)::float8")
# By rows: by blocks, wide rows that lie together are missed or are all there is. But that reads every block, as
# counting does; so both are one pass where the same rows are meant.
_COUNTED_SAMPLE = """
    SELECT {sizes}, count(*) FROM (SELECT CASE WHEN random() < {share} THEN {size} END AS size FROM {table}) s
"""
_SAMPLE = "SELECT {sizes} FROM (SELECT {size} AS size FROM {table} TABLESAMPLE BERNOULLI (100 * {share})) s"
_SAMPLE_OF_BLOCKS = "SELECT {sizes} FROM (SELECT {size} AS size FROM {table} TABLESAMPLE SYSTEM (100 * {share})) s"
