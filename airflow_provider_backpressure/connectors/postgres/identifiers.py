"""Names as PostgreSQL reads them: two parts at most, folded to lower case unless quoted."""

import re
from dataclasses import dataclass

from airflow_provider_backpressure.connectors.relational.identifiers import Quoting, RelationName
from airflow_provider_backpressure.exceptions import InvalidDeclaration

MAX_BYTES = 63
DEFAULT_SCHEMA = "public"

_PART = r'"(?:[^"\x00]|"")+"|[^\W\d][\w$]*'
_QUALIFIED = re.compile(rf"\s*(?:({_PART})\s*\.\s*)?({_PART})\s*")
_FOLD = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")

QUOTING = Quoting(mark='"', plain=re.compile(r"[a-z_][a-z0-9_$]*"), container="schema")
quote, quote_if_needed, join_names = QUOTING.quote, QUOTING.quote_if_needed, QUOTING.join_names


@dataclass(frozen=True, kw_only=True)
class QualifiedName(RelationName):
    """A table's schema and name as the catalogue spells them. ``str()`` is in the form that :meth:`parse` reads."""

    quoting = QUOTING

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

    @property
    def parts(self) -> tuple[str, str]:
        """See :attr:`..relational.identifiers.RelationName.parts`."""
        return self.schema, self.name


def _unquote(part: str) -> str:
    return QUOTING.unquote(part) if part.startswith('"') else part.translate(_FOLD)
