"""Types of PostgreSQL by which a table can be cut into ranges."""

import re
from collections.abc import Mapping

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
