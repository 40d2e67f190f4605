"""Names and values as MySQL reads them in a statement."""

import re
from dataclasses import dataclass

from airflow_provider_backpressure.exceptions import InvalidDeclaration

MAX_CHARACTERS = 64

_PART = r"`(?:[^`\x00]|``)+`|[\w$-]+"
_QUALIFIED = re.compile(rf"\s*(?:({_PART})\s*\.\s*)?({_PART})\s*")
_PLAIN = re.compile(r"[\w$]*[A-Za-z_$][\w$]*")
_ESCAPED = str.maketrans({"\\": "\\\\", "'": "\\'", "\x00": "\\0", "\n": "\\n", "\r": "\\r", "\x1a": "\\Z"})


@dataclass(frozen=True, kw_only=True)
class TableName:
    """A table's database and name, as they are. ``str()`` quotes only what needs it."""

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

    def __str__(self) -> str:
        """Return ``database.table`` in the form that :meth:`parse` reads."""
        return f"{_quote_if_needed(self.database)}.{_quote_if_needed(self.name)}"

    @property
    def sql(self) -> str:
        """The name for a statement, each part quoted."""
        return f"{quote(self.database)}.{quote(self.name)}"


def parts(text: str) -> tuple[str, str]:
    """Return the database, empty where none is named, and the table that a text names."""
    match = _QUALIFIED.fullmatch(text)
    if match is None:
        raise InvalidDeclaration(f"{text!r} is not a table's name: write database.table, or `data base`.`table`.")
    named, name = match.groups()
    return "" if named is None else _unquote(named), _unquote(name)


def quote(identifier: str) -> str:
    """Return an identifier in backticks, whatever it holds."""
    if not identifier or "\x00" in identifier:
        raise InvalidDeclaration(f"{identifier!r} is no name for a column, table or database.")
    return "`" + identifier.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return text as a literal, for a session whose SQL mode is ours: the backslash escapes."""
    return f"'{text.translate(_ESCAPED)}'"


def join_names(names: tuple[str, ...] | list[str]) -> str:
    """Return names for a sentence: ``a, `b c` and d``."""
    shown = [_quote_if_needed(name) for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _unquote(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part


def _quote_if_needed(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else quote(part)
