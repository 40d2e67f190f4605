"""Ranges of a table: the cheapest way of cutting that keeps the bounds, and both open ends checked."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.shared_connection import Session
from airflow_provider_backpressure.connectors.postgres.source.boundaries import (
    Cut,
    histogram,
    more_than,
    sample,
    strides,
    walk,
    weigh,
)
from airflow_provider_backpressure.connectors.postgres.source.query import KeyedTable
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, Values, cover, cut
from airflow_provider_backpressure.core.snapshot.messages import Column, null_bounds
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, number_ranges
from airflow_provider_backpressure.exceptions import InvalidDeclaration

log = logging.getLogger(__name__)

SMALL_TABLE = 100_000
"""Rows up to which walking the whole key takes no time worth saving."""


def key_ranges(
    session: Session, table: KeyedTable, snapshot: Snapshot, *, rows: int, bytes: int
) -> Iterator[PlannedRange]:
    """Yield ranges that cover the whole key, none above ``rows`` or ``bytes`` as far as can be known; none if empty.

    Rows without a key are a range of their own, the last one.
    """
    if rows < 1:
        raise InvalidDeclaration(f"A range needs room for at least 1 row, not {rows}.")
    if not more_than(session, table, 0):
        return
    found = _cut(session, table, snapshot, rows=rows, bytes=bytes)
    log.info("%s is cut by %s (%s).", table.name, ", ".join(table.columns), found.method)
    yield from number_ranges(_pieces(table, snapshot, found.boundaries), rows=found.rows, row_bytes=snapshot.row_bytes)


def cut_range(
    session: Session, table: KeyedTable, bounds: KeyBounds, columns: Sequence[Column], *, parts: int
) -> list[Bounds]:
    """Return pieces with about as many rows each, in one pass over what these bounds hold."""
    query = sql.SQL("SELECT count(*) FROM {}{}").format(table.sql, table.filter(bounds))
    step = math.ceil(session.value(query) / parts)
    pieces: list[Bounds] = [*cut(bounds, walk(session, table, rows=step, within=bounds))] if step else [bounds]
    return [*pieces, *null_bounds(columns, table.columns)] if bounds.is_open and len(pieces) > 1 else pieces


def _pieces(table: KeyedTable, snapshot: Snapshot, boundaries: Iterator[Values]) -> Iterator[Bounds]:
    """Yield the pieces of the key, and the rows without one, unless one piece is all of the table."""
    only = False
    for piece in cover(table.columns, boundaries):
        only = piece.is_open
        yield piece
    if not only and not table.unique:
        yield from null_bounds(snapshot.columns, table.columns)


def _cut(session: Session, table: KeyedTable, snapshot: Snapshot, *, rows: int, bytes: int) -> Cut:
    total = snapshot.total
    counted = total if snapshot.total_exact else None
    if counted is not None and counted <= rows and counted * max(snapshot.row_bytes, snapshot.widest_bytes) <= bytes:
        return Cut(method="whole", rows=counted, boundaries=iter(()))
    if not table.unique or table.size is not None:
        step = rows if counted is None else _even(rows, counted)
        return Cut(method="weights", rows=step, boundaries=weigh(session, table, rows=rows, bytes=bytes))
    dense = strides(session, table, rows=rows, total=total)
    if dense is not None:
        return dense
    if counted is None or counted > SMALL_TABLE:
        for way in (histogram, sample):
            found = way(session, table, rows=rows, total=total)
            if found is not None:
                return replace(found, boundaries=_with_bounded_ends(session, table, found.boundaries, rows=rows))
    step = rows if counted is None else _even(rows, counted)
    return Cut(method="walk", rows=step, boundaries=walk(session, table, rows=step))


def _with_bounded_ends(session: Session, table: KeyedTable, inner: Iterator[Values], *, rows: int) -> Iterator[Values]:
    """Yield the boundaries with more of them before the first and after the last where those pieces are too big."""
    last: Values | None = None
    for boundary in inner:
        if last is None:
            yield from _within(session, table, table.make_bounds(None, boundary), rows=rows)
        yield boundary
        last = boundary
    yield from _within(session, table, table.make_bounds(last, None), rows=rows)


def _within(session: Session, table: KeyedTable, bounds: Bounds, *, rows: int) -> Iterator[Values]:
    if more_than(session, table, rows, bounds):
        yield from walk(session, table, rows=rows, within=bounds)


def _even(rows: int, total: int) -> int:
    """Return the step that makes pieces of equal size, none above ``rows``."""
    return math.ceil(total / max(1, math.ceil(total / rows)))
