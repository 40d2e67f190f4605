"""Names of tables and columns as a database's SQL spells them."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_backpressure.exceptions import InvalidDeclaration


@dataclass(frozen=True, kw_only=True)
class Quoting:
    """How a database marks a name that it is to take literally."""

    mark: str
    plain: re.Pattern[str]
    """Names that need no mark."""
    container: str
    """What holds tables: ``schema`` or ``database``."""

    def quote(self, identifier: str) -> str:
        """Return an identifier in marks, whatever it holds; :class:`InvalidDeclaration` for what is none."""
        if not identifier or "\x00" in identifier:
            raise InvalidDeclaration(f"{identifier!r} is no name for a column, table or {self.container}.")
        return self.mark + identifier.replace(self.mark, 2 * self.mark) + self.mark

    def unquote(self, part: str) -> str:
        """Return the name of a part in marks."""
        return part[1:-1].replace(2 * self.mark, self.mark)

    def quote_if_needed(self, part: str) -> str:
        """Return a part of a name as SQL needs it: quoted where it has to be."""
        return part if self.plain.fullmatch(part) else self.quote(part)

    def join_names(self, names: Sequence[str]) -> str:
        """Return names for a sentence: ``a, "B" and c``."""
        every = [self.quote_if_needed(name) for name in names]
        return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"


@dataclass(frozen=True, kw_only=True)
class RelationName(ABC):
    """The name of a table and of what holds it, as the catalogue spells them. ``str()`` quotes only what needs it."""

    quoting: ClassVar[Quoting]

    @property
    @abstractmethod
    def parts(self) -> tuple[str, str]:
        """What holds the table, and the table."""

    def __str__(self) -> str:
        """Return the name as SQL takes it."""
        return ".".join(map(self.quoting.quote_if_needed, self.parts))

    @property
    def sql(self) -> str:
        """The name for a statement, each part quoted."""
        return ".".join(map(self.quoting.quote, self.parts))
