"""Half-open bounds as a condition in SQL, the same on the source's and on the target's side."""

import re
from collections.abc import Mapping, Sequence

from psycopg import sql

from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, KeyBounds, NullBounds, OffsetBounds
from airflow_provider_backpressure.core.snapshot.messages import Window

_CASTS: Mapping[str, str] = {
    "smallint": "smallint",
    "integer": "integer",
    "bigint": "bigint",
    "numeric": "numeric",
    "uuid": "uuid",
    "date": "date",
    "timestamp without time zone": "timestamp without time zone",
    "timestamp with time zone": "timestamp with time zone",
    "text": "text",
    # Without a length: a literal cast to one would be cut there. char(n) compares without its trailing blanks.
    "character varying": "text",
    "character": "bpchar",
    "bpchar": "bpchar",
    "bytea": "bytea",
}
KEY_TYPES = "smallint, integer, bigint, numeric, text, varchar, char, uuid, bytea, date, timestamp and timestamptz"
INTEGERS = frozenset({"smallint", "integer", "bigint"})
_LENGTH = re.compile(r"\s*\([^)]*\)")


def key_cast(column_type: str) -> str | None:
    """Return the type to which boundaries of a key of this type are cast; ``None`` where it cannot cut ranges.

    The cast has no length or precision and leaves the comparison to the key's own operators, so its index is used.
    """
    return _CASTS.get(_LENGTH.sub("", column_type))


def condition(bounds: KeyBounds | NullBounds, casts: Sequence[str]) -> list[sql.Composable]:
    """Return the comparisons, none to two, that keep exactly the rows of these bounds; ``casts``: one for each column.

    Several columns are compared as a row, which an index on them serves.
    """
    if isinstance(bounds, NullBounds):
        return [sql.SQL("{} IS NULL").format(sql.Identifier(bounds.column))]
    key = _row([sql.Identifier(column) for column in bounds.columns])
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


def _row(parts: list[sql.Composable]) -> sql.Composable:
    return parts[0] if len(parts) == 1 else sql.SQL("({})").format(sql.SQL(", ").join(parts))


def _value(text: str, cast: str) -> sql.Composable:
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(cast))
