"""Names and values as MySQL reads them in a statement."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_backpressure.connectors.relational.identifiers import Quoting, RelationName
from airflow_provider_backpressure.connectors.relational.range_pieces import NamedColumn
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, NullBounds, Values
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import InvalidDeclaration

MAX_CHARACTERS = 64

_PART = r"`(?:[^`\x00]|``)+`|[\w$-]+"
_QUALIFIED = re.compile(rf"\s*(?:({_PART})\s*\.\s*)?({_PART})\s*")
_ESCAPED = str.maketrans({"\\": "\\\\", "'": "\\'", "\x00": "\\0", "\n": "\\n", "\r": "\\r", "\x1a": "\\Z"})

QUOTING = Quoting(mark="`", plain=re.compile(r"[\w$]*[A-Za-z_$][\w$]*"), container="database")
quote, join_names = QUOTING.quote, QUOTING.join_names


@dataclass(frozen=True, kw_only=True)
class TableName(RelationName):
    """A table's database and name, as they are. ``str()`` is in the form that :meth:`parse` reads."""

    quoting = QUOTING

    database: str
    name: str

    def __post_init__(self) -> None:
        """Refuse what no table of MySQL is called."""
        for part in (self.database, self.name):
            if len(part) > MAX_CHARACTERS:
                raise InvalidDeclaration(f"The name {part} is longer than MySQL's {MAX_CHARACTERS} characters.")

    @classmethod
    def parse(cls, text: str, database: str) -> "TableName":
        """Read ``database.table``, or ``table`` in the given database; :class:`InvalidDeclaration` for anything else.

        A part in backticks is taken literally.
        """
        named, name = parts(text)
        if not named and not database:
            raise InvalidDeclaration(
                f"The table {text!r} names no database, and neither does its connection: write database.table."
            )
        return cls(database=named or database, name=name)

    @property
    def parts(self) -> tuple[str, str]:
        """See :attr:`..relational.identifiers.RelationName.parts`."""
        return self.database, self.name


def parts(text: str) -> tuple[str, str]:
    """Return the database, empty where none is named, and the table that a text names."""
    match = _QUALIFIED.fullmatch(text)
    if match is None:
        raise InvalidDeclaration(f"{text!r} is not a table's name: write database.table, or `data base`.`table`.")
    named, name = match.groups()
    return "" if named is None else _unquote(named), _unquote(name)


def literal(text: str) -> str:
    """Return text as a literal, for a session whose SQL mode is ours: the backslash escapes."""
    return f"'{text.translate(_ESCAPED)}'"


def _unquote(part: str) -> str:
    return QUOTING.unquote(part) if part.startswith("`") else part


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
class KeyColumn(NamedColumn):
    """A column by which ranges are cut, or whose windows are read."""

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
