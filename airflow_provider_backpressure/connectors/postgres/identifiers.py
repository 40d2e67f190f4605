"""Names as PostgreSQL reads them: two parts at most, folded to lower case unless quoted."""

import re
from dataclasses import dataclass

from airflow_provider_backpressure.exceptions import InvalidDeclaration

MAX_BYTES = 63
DEFAULT_SCHEMA = "public"

_PART = r'"(?:[^"\x00]|"")+"|[^\W\d][\w$]*'
_QUALIFIED = re.compile(rf"\s*(?:({_PART})\s*\.\s*)?({_PART})\s*")
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")
_FOLD = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, kw_only=True)
class QualifiedName:
    """A table's schema and name as the catalogue spells them. ``str()`` quotes only what needs it."""

    schema: str
    name: str

    def __post_init__(self) -> None:
        """Refuse what PostgreSQL would cut off without an error."""
        for part in (self.schema, self.name):
            if len(part.encode()) > MAX_BYTES:
                raise InvalidDeclaration(f"The name {part} is longer than PostgreSQL's {MAX_BYTES} bytes.")

    @classmethod
    def parse(cls, text: str) -> "QualifiedName":
        """Read ``schema.table`` or ``table`` (in ``public``); :class:`InvalidDeclaration` for anything else.

        As in SQL, a part in double quotes is taken literally, and any other is folded to lower case.
        """
        match = _QUALIFIED.fullmatch(text)
        if match is None:
            raise InvalidDeclaration(f'{text!r} is not a table\'s name: write schema.table, or "Schema"."Table".')
        schema, name = match.groups()
        return cls(schema=DEFAULT_SCHEMA if schema is None else _unquote(schema), name=_unquote(name))

    def __str__(self) -> str:
        """Return ``schema.table`` in the form that :meth:`parse` reads."""
        return f"{quote_if_needed(self.schema)}.{quote_if_needed(self.name)}"

    @property
    def sql(self) -> str:
        """The name for a statement, each part quoted."""
        return f"{quote(self.schema)}.{quote(self.name)}"


def quote(identifier: str) -> str:
    """Return an identifier in double quotes, whatever it holds."""
    if not identifier or "\x00" in identifier:
        raise InvalidDeclaration(f"{identifier!r} is no name for a column, table or schema.")
    return '"' + identifier.replace('"', '""') + '"'


def join_names(names: tuple[str, ...] | list[str]) -> str:
    """Return names for a sentence: ``a, "B" and c``."""
    every = [quote_if_needed(name) for name in names]
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.translate(_FOLD)


def quote_if_needed(part: str) -> str:
    """Return a part of a name as SQL needs it: quoted where it has to be."""
    return part if _PLAIN.fullmatch(part) else quote(part)
