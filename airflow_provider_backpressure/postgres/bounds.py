"""Half-open bounds as a condition in SQL, the same on the source's and on the target's side."""

import re
from collections.abc import Mapping

from psycopg import sql

from airflow_provider_backpressure.core.ranges import KeyBounds

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
}
KEY_TYPES = "smallint, integer, bigint, numeric, text, varchar, char, uuid, date, timestamp and timestamptz"
INTEGERS = frozenset({"smallint", "integer", "bigint"})
_LENGTH = re.compile(r"\s*\([^)]*\)")


def key_cast(column_type: str) -> str | None:
    """Return the type to which boundaries of a key of this type are cast; ``None`` where it cannot cut ranges.

    The cast has no length or precision and leaves the comparison to the key's own operators, so its index is used.
    """
    return _CASTS.get(_LENGTH.sub("", column_type))


def condition(bounds: KeyBounds, cast: str) -> list[sql.Composable]:
    """Return the comparisons, none to two, that keep exactly the keys of ``[start, end)``."""
    key = sql.Identifier(bounds.column)
    ends = ((sql.SQL(">="), bounds.start), (sql.SQL("<"), bounds.end))
    return [
        sql.SQL("{} {} {}::{}").format(key, operator, sql.Literal(value), sql.SQL(cast))
        for operator, value in ends
        if value is not None
    ]
