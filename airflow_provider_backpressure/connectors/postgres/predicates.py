"""Bounds and windows as SQL, and statements without placeholders of their own."""

import re
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, KeyBounds, NullBounds, OffsetBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Window

_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor whose composed statements have placeholders only where we wrote them."""

    def execute(self, query: Any, params: Params | None = None, **options: Any) -> "Cursor":
        if params is not None and isinstance(query, sql.Composable):
            query = literal(query)
        return super().execute(query, params, **options)


def literal(query: sql.Composable) -> sql.Composable:
    """Return a statement in which psycopg finds no placeholder inside a name, or inside a value written out."""
    if isinstance(query, sql.Composed):
        return sql.Composed([literal(part) for part in query])
    if isinstance(query, sql.Identifier):
        return sql.Identifier(*(part.replace("%", "%%") for part in query._obj))
    if isinstance(query, sql.Literal):
        return sql.SQL(query.as_string(None).replace("%", "%%"))
    if isinstance(query, sql.SQL):
        return sql.SQL(_QUOTED.sub(_double, query._obj))
    return query


def _double(found: re.Match[str]) -> str:
    # What is in single quotes is our own text, written for psycopg.
    return found[0].replace("%", "%%") if found[0].startswith('"') else found[0]


def condition(bounds: KeyBounds | NullBounds, casts: Sequence[str], table: str | None = None) -> list[sql.Composable]:
    """Return the comparisons, none to two, that keep exactly the rows of these bounds; ``casts``: one for each column.

    ``table``: the name of the table in the statement, where its columns are not the only ones of their names.
    Several columns are compared as a row, which an index on them serves.
    """
    if isinstance(bounds, NullBounds):
        return [sql.SQL("{} IS NULL").format(_column(bounds.column, table))]
    key = _row([_column(column, table) for column in bounds.columns])
    ends = ((sql.SQL(">="), bounds.start), (sql.SQL("<"), bounds.end))
    return [
        sql.SQL("{} {} {}").format(key, operator, _row([_value(*each) for each in zip(values, casts, strict=True)]))
        for operator, values in ends
        if values is not None
    ]


def within_blocks(bounds: BlockBounds) -> list[sql.Composable]:
    """Return the comparisons that keep the rows of these blocks; a scan by them touches no other block."""
    ends = ((">=", bounds.start), ("<", bounds.end))
    return [sql.SQL(f"ctid {operator} '({at[0]},{at[1]})'::tid") for operator, at in ends if at is not None]


def within_window(window: Window, cast: str) -> list[sql.Composable]:
    """Return the comparisons that keep the rows of a window of a rising column."""
    column = sql.Identifier(window.column)
    upto = sql.SQL("{} <= {}").format(column, _value(window.upto, cast))
    if window.after is None:
        return [sql.SQL("({} OR {} IS NULL)").format(upto, column)]
    return [sql.SQL("{} > {}").format(column, _value(window.after, cast)), upto]


def within_offsets(bounds: OffsetBounds) -> sql.Composable:
    """Return the comparison that keeps the rows of these offsets, by the columns that a log's rows come with."""
    pieces = [
        sql.SQL('"partition" = {} AND "offset" >= {} AND "offset" < {}').format(*map(sql.Literal, piece))
        for piece in bounds.pieces
    ]
    return sql.SQL("({})").format(sql.SQL(" OR ").join(pieces))


def _column(name: str, table: str | None) -> sql.Identifier:
    return sql.Identifier(name) if table is None else sql.Identifier(table, name)


def _row(parts: list[sql.Composable]) -> sql.Composable:
    return parts[0] if len(parts) == 1 else sql.SQL("({})").format(sql.SQL(", ").join(parts))


def _value(text: str, cast: str) -> sql.Composable:
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(cast))
