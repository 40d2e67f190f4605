"""Half-open bounds as a condition in MySQL's SQL. Text is compared by its column's own collation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_backpressure.connectors.mysql.identifiers import literal, quote
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, NullBounds, Values
from airflow_provider_backpressure.core.snapshot.messages import Window
from airflow_provider_backpressure.exceptions import InvalidDeclaration

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_BYTES = re.compile(r"\\x((?:[0-9a-f]{2})*)")


class KeyKind(StrEnum):
    """What a key's boundaries look like as text."""

    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    """Also dates and times."""
    BYTES = "bytes"
    r"""``\x`` and hexadecimal digits, as PostgreSQL spells them."""


@dataclass(frozen=True, kw_only=True)
class KeyColumn:
    """A column by which ranges are cut, or whose windows are read."""

    name: str
    kind: KeyKind

    @property
    def sql(self) -> str:
        """The column's name."""
        return quote(self.name)

    @property
    def to_boundary_sql(self) -> str:
        """The expression for its value as a boundary has it."""
        match self.kind:
            case KeyKind.BYTES:
                return f"CONCAT('\\\\x', LOWER(HEX({self.sql})))"
            case KeyKind.INTEGER:
                return f"CAST({self.sql} + 0 AS CHAR CHARACTER SET utf8mb4)"
        return f"CAST({self.sql} AS CHAR CHARACTER SET utf8mb4)"

    def value(self, text: str) -> str:
        """Return a boundary's value as a literal; :class:`InvalidDeclaration` where it is none of this kind."""
        if self.kind is KeyKind.TEXT:
            return literal(text)
        match = (_BYTES if self.kind is KeyKind.BYTES else _NUMBER).fullmatch(text)
        if match is None:
            raise InvalidDeclaration(f"{text!r} is no boundary of {self.name}.")
        return f"X'{match[1]}'" if self.kind is KeyKind.BYTES else text


def conditions(bounds: Bounds | None, key: Sequence[KeyColumn]) -> list[str]:
    """Return the comparisons that keep exactly the rows of these bounds."""
    match bounds:
        case KeyBounds():
            found = []
            if bounds.start is not None:
                found.append(_from(key, bounds.start))
            if bounds.end is not None:
                found.append(_below(key, bounds.end))
            return found
        case NullBounds():
            return [f"{quote(bounds.column)} IS NULL"]
        case None:
            return []
    raise InvalidDeclaration(f"MySQL has no bounds like {bounds}.")


def within_window(window: Window, column: KeyColumn) -> list[str]:
    """Return the comparisons that keep the rows of a window of a rising column."""
    upto = f"{column.sql} <= {column.value(window.upto)}"
    if window.after is None:
        return [f"({upto} OR {column.sql} IS NULL)"]
    return [f"{column.sql} > {column.value(window.after)}", upto]


def beyond(key: Sequence[KeyColumn], values: Values) -> str:
    """Return the comparison that keeps what lies above these values."""
    return _compare(key, values, ">", ">")


def _from(key: Sequence[KeyColumn], values: Values) -> str:
    return _compare(key, values, ">", ">=")


def _below(key: Sequence[KeyColumn], values: Values) -> str:
    return _compare(key, values, "<", "<")


def _compare(key: Sequence[KeyColumn], values: Values, by: str, last: str) -> str:
    """Compare column by column: a comparison of rows, ``(a, b) >= (1, 2)``, would read the whole index."""
    (first, *others), (value, *following) = key, values
    this = first.value(value)
    if not others:
        return f"{first.sql} {last} {this}"
    rest = _compare(others, tuple(following), by, last)
    return f"({first.sql} {by}= {this} AND ({first.sql} {by} {this} OR {rest}))"
