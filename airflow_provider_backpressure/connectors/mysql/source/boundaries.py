"""By which columns a table is cut into ranges, and which make up its unique key."""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation, UniqueKey
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.identifiers import KeyKind, beyond, join_names
from airflow_provider_backpressure.connectors.mysql.source.query import KeyedTable
from airflow_provider_backpressure.connectors.relational.key_choice import (
    Split,
    find_obstacle,
    find_primary_obstacle,
    split_by_column,
    split_by_key,
)
from airflow_provider_backpressure.connectors.relational.range_pieces import cut_evenly, list_pieces
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, Values
from airflow_provider_backpressure.core.snapshot.plan import Snapshot, shorten
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, number_ranges
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused

log = logging.getLogger(__name__)


def chosen_split(
    table: Relation, split_column: str | None, *, whole: bool, columns: Collection[str] = ()
) -> Split[CatalogColumn]:
    """Return how the table is cut; ``SourceRefused`` where it cannot be and is not to be read whole.

    ``columns``: those that are named to be read.
    """
    keys = _fit_keys(table, columns)
    if split_column is not None:
        return split_by_column(table, split_column, keys)
    if whole:
        return Split(columns=(), unique=False, key=keys[0].columns if keys else ())
    if keys:
        return split_by_key(table, keys[0])
    raise SourceRefused(
        f"{table.name} cannot be cut into ranges of a key: {_why(table)}. Name a split_column, or read it in one range "
        "with whole=True."
    )


def _fit_keys(table: Relation, named: Collection[str]) -> list[UniqueKey]:
    """Return the unique keys by which ranges can be cut: primary before others, few columns before many.

    A key of an invisible column, as MySQL generates one, comes last: it does not arrive unless it is named.
    """

    def rank(key: UniqueKey) -> tuple[bool, bool, int, bool, str]:
        columns = table.select_columns(key.columns)
        absent = any(not column.visible and column.name not in named for column in columns)
        slow = any(column.key_kind is not KeyKind.INTEGER for column in columns)
        return absent, not key.primary, len(columns), slow, key.name

    return sorted((key for key in table.keys if find_obstacle(table, key) is None), key=rank)


def _why(table: Relation) -> str:
    obstacle = find_primary_obstacle(table)
    if obstacle is not None:
        return obstacle
    if not table.is_stored:
        return "it is a view"
    return "it has neither a primary key nor another unique key of whole columns that are never NULL"


DENSE = 0.5
"""Share of an integer key's span that is taken, from which on equal strides waste few ranges."""


def key_ranges(
    session: Session, table: KeyedTable, snapshot: Snapshot, *, rows: int, bytes: int
) -> Iterator[PlannedRange]:
    """Yield ranges that cover the table, none above ``rows`` or ``bytes``; none where it is empty.

    What one value of a key that is not unique holds is never cut, and a table without a key is one range. Rows without
    a key are a range of their own, the last one.
    """
    if rows < 1:
        raise InvalidDeclaration(f"A range needs room for at least 1 row, not {rows}.")
    if not session.rows(table.rows("1") + " LIMIT 1"):
        return
    expected = rows if snapshot.total is None else max(1, min(rows, snapshot.total))
    if not table.key:
        only = [KeyBounds(columns=(), start=None, end=None)]
        yield from number_ranges(only, rows=snapshot.total or expected, row_bytes=snapshot.row_bytes)
        return
    boundaries = _boundaries(session, table, snapshot, rows=rows, bytes=bytes)
    yield from number_ranges(list_pieces(table, snapshot, boundaries), rows=expected, row_bytes=snapshot.row_bytes)


def _boundaries(session: Session, table: KeyedTable, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[Values]:
    total = snapshot.total if snapshot.total_exact else None
    if total is not None and total <= rows and total * max(snapshot.row_bytes, snapshot.widest_bytes) <= bytes:
        return iter(())
    strides = None if table.size is not None else _strides(session, table, rows=rows, total=total)
    log.info("%s is cut by %s (%s).", table.name, join_names(table.columns), "walk" if strides is None else "strides")
    return _walk(session, table, rows=rows, bytes=bytes) if strides is None else strides


def _strides(session: Session, table: KeyedTable, *, rows: int, total: int | None) -> Iterator[Values] | None:
    """Cut a dense integer key into equal strides, which hold at most as many rows as numbers because it is unique.

    ``None`` where the key is no integer or not unique, has too many gaps, or a condition hides rows.
    """
    if len(table.key) > 1 or not table.unique or table.key[0].kind is not KeyKind.INTEGER or table.partial or not total:
        return None
    key = table.key[0].sql
    low, high = session.rows(f"SELECT MIN({key}), MAX({key}) FROM {table.name.sql}")[0]
    if low is None or total < DENSE * (int(high) - int(low) + 1):
        return None
    return ((str(value),) for value in range(int(low) + rows, int(high) + 1, rows))


def _walk(session: Session, table: KeyedTable, *, rows: int, bytes: int) -> Iterator[Values]:
    """Yield boundaries, each found from the one before."""
    last: Values | None = None
    if not table.unique and table.key:
        # Rows without a key come first in MySQL's order and are no part of any piece.
        last = _first(session, table, f"{table.key[0].sql} IS NOT NULL")
        if last is None:
            return
    while True:
        found = _find_end(session, table, last, rows=rows, bytes=bytes)
        if found is not None and found == last:
            # One value holds more than fits: it is a piece of its own.
            found = _first(session, table, beyond(table.key, found))
        if found is None:
            return
        found = _find_above(session, table, last, found)
        if found is None:
            return
        yield found
        last = found


def _find_above(session: Session, table: KeyedTable, last: Values | None, found: Values) -> Values | None:
    """Return a boundary that has a row between it and the last one, ``None`` behind the last row.

    ``SourceRefused`` where there is none: the walk would go round in a circle. Boundaries are text in utf8mb4, and a
    few characters of other sets (cp932, sjis) come back from there as others. Another spelling of the last boundary,
    which the collation takes for equal, is passed over.
    """
    if last is None or all(column.kind is not KeyKind.TEXT for column in table.key):
        return found
    if _has_between(session, table, last, found):
        return found
    above = _first(session, table, beyond(table.key, found))
    if above is None or _has_between(session, table, last, above):
        return above
    raise SourceRefused(
        f"{table.name} cannot be cut by {join_names(table.columns)}: {shorten(', '.join(found))!r} has characters that "
        "do not come back from utf8mb4. Name another column as split_column."
    )


def _has_between(session: Session, table: KeyedTable, last: Values, found: Values) -> bool:
    between = KeyBounds(columns=table.columns, start=last, end=found)
    return bool(session.rows(table.rows("1", between) + " LIMIT 1"))


def cut_range(
    session: Session, table: KeyedTable, bounds: KeyBounds, columns: Sequence[Column], *, parts: int
) -> list[Bounds]:
    """Return pieces with about as many rows each, each boundary found from the one before.

    Rows without a key, which open bounds hold too, are a piece of their own, and not counted.
    """
    return cut_evenly(
        bounds,
        columns,
        rows=int(session.value(table.rows(f"COUNT({table.key[0].sql})", bounds))),
        parts=parts,
        find_boundaries=lambda step: _steps(session, table, bounds, step),
    )


def _steps(session: Session, table: KeyedTable, bounds: KeyBounds, step: int) -> Iterator[Values]:
    order = ", ".join(column.sql for column in table.key)
    left = bounds
    # Rows without a key would be before all others.
    present = f"{table.key[0].sql} IS NOT NULL"
    while True:
        rows = table.rows(_show_table(table), left, present)
        found = _values(session.rows(f"{rows} ORDER BY {order} LIMIT 1 OFFSET {step}"))
        if found is None or found == left.start:
            return
        found = _find_above(session, table, left.start, found)
        if found is None:
            return
        yield found
        left = replace(left, start=found)


def in_order(session: Session, table: KeyedTable, values: Sequence[Values]) -> list[Values]:
    """Return values of the key as its columns order them, whose collations go before a literal's."""
    keys = ", ".join(f"{column.sql} AS k{number}" for number, column in enumerate(table.key))
    rows = (
        ", ".join([*(column.value(text) for column, text in zip(table.key, value, strict=True)), str(place)])
        for place, value in enumerate(values)
    )
    listed_rows = " UNION ALL ".join(f"SELECT {row}" for row in rows)
    names = ", ".join(f"k{number}" for number in range(len(table.key)))
    query = f"SELECT {keys}, 0 AS n FROM {table.name.sql} WHERE FALSE UNION ALL {listed_rows}"
    return [values[int(place)] for (place,) in session.rows(f"SELECT n FROM ({query}) AS o ORDER BY {names}")]


def _find_end(session: Session, table: KeyedTable, start: Values | None, *, rows: int, bytes: int) -> Values | None:
    """Return the key of the first row that no longer fits into a piece that begins here; ``None`` where all do."""
    bounds = None if start is None else KeyBounds(columns=table.columns, start=start, end=None)
    order = ", ".join(column.sql for column in table.key)
    if table.size is None:
        found = session.rows(f"{table.rows(_show_table(table), bounds)} ORDER BY {order} LIMIT 1 OFFSET {rows}")
        return _values(found)
    shown = ", ".join(f"{column.to_boundary_sql} AS t{number}" for number, column in enumerate(table.key))
    keys = ", ".join(f"{column.sql} AS k{number}" for number, column in enumerate(table.key))
    texts = ", ".join(f"t{number}" for number in range(len(table.key)))
    names = ", ".join(f"k{number}" for number in range(len(table.key)))
    piece = f"{table.rows(f'{shown}, {keys}, {table.size} AS size', bounds)} ORDER BY {order} LIMIT {rows + 1}"
    summed = (
        f"SELECT {texts}, SUM(size) OVER w AS total, ROW_NUMBER() OVER w AS place FROM ({piece}) AS piece"
        f" WINDOW w AS (ORDER BY {names} ROWS UNBOUNDED PRECEDING)"
    )
    return _values(
        session.rows(
            f"SELECT {texts} FROM ({summed}) AS summed WHERE place > 1 AND (total > {bytes} OR place > {rows})"
            " ORDER BY place LIMIT 1"
        )
    )


def _first(session: Session, table: KeyedTable, condition: str) -> Values | None:
    order = ", ".join(column.sql for column in table.key)
    return _values(session.rows(f"{table.rows(_show_table(table), None, condition)} ORDER BY {order} LIMIT 1"))


def _show_table(table: KeyedTable) -> str:
    return ", ".join(column.to_boundary_sql for column in table.key)


def _values(found: list[tuple[str, ...]]) -> Values | None:
    return tuple(found[0]) if found else None
