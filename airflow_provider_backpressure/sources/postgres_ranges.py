"""Ranges of a table: the cheapest way of cutting that keeps the bound, and both open ends checked."""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace

from airflow_provider_backpressure.core.ranges import PlannedRange, cover
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.postgres.session import Session
from airflow_provider_backpressure.sources.postgres_boundaries import (
    Cut,
    histogram,
    more_than,
    sample,
    strides,
    walk,
)
from airflow_provider_backpressure.sources.postgres_query import KeyedTable

log = logging.getLogger(__name__)

SMALL_TABLE = 100_000
"""Rows up to which walking the whole key takes no time worth saving."""


def cut_ranges(
    session: Session, table: KeyedTable, *, rows: int, total: int | None, exact: bool, row_bytes: float
) -> Iterator[PlannedRange]:
    """Yield ranges that cover the whole key, none with more than ``rows`` rows as far as can be known; none if empty.

    ``total`` is the number of rows as the snapshot has it, and ``exact`` whether it was counted.
    """
    if rows < 1:
        raise InvalidDeclaration(f"A range needs room for at least 1 row, not {rows}.")
    if not more_than(session, table, 0, None, None):
        return
    found = _cut(session, table, rows=rows, total=total, exact=exact)
    log.info("%s is cut by %s (%s).", table.name, table.key, found.method)
    yield from cover(table.key, found.boundaries, rows=found.rows, row_bytes=row_bytes)


def _cut(session: Session, table: KeyedTable, *, rows: int, total: int | None, exact: bool) -> Cut:
    counted = total if exact else None
    if counted is not None and counted <= rows:
        return Cut(method="whole", rows=counted, boundaries=iter(()))
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


def _with_bounded_ends(session: Session, table: KeyedTable, inner: Iterator[str], *, rows: int) -> Iterator[str]:
    """Yield the boundaries with more of them before the first and after the last where those pieces are too big."""
    last: str | None = None
    for boundary in inner:
        if last is None:
            yield from _within(session, table, rows=rows, start=None, end=boundary)
        yield boundary
        last = boundary
    yield from _within(session, table, rows=rows, start=last, end=None)


def _within(session: Session, table: KeyedTable, *, rows: int, start: str | None, end: str | None) -> Iterator[str]:
    if more_than(session, table, rows, start, end):
        yield from walk(session, table, rows=rows, start=start, end=end)


def _even(rows: int, total: int) -> int:
    """Return the step that makes pieces of equal size, none above ``rows``."""
    return math.ceil(total / math.ceil(total / rows))
