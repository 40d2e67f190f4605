"""Names and values as Spark's SQL spells them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_backpressure.exceptions import InvalidDeclaration

_PART = re.compile(r"`((?:[^`]|``)+)`|([^\s`.]+)")
_PLAIN = re.compile(r"[\w-]+")


@dataclass(frozen=True, kw_only=True)
class CatalogName:
    """The name of a table: its catalog, its namespaces, and the table itself."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "CatalogName":
        """Read ``catalog.schema.table``; :class:`InvalidDeclaration` for what is no such name."""
        parts, at = [], 0
        while found := _PART.match(text, at):
            parts.append(found[2] if found[1] is None else found[1].replace("``", "`"))
            at = found.end() + 1
            if text[found.end() : at] != ".":
                break
        if at <= len(text) or len(parts) < 3:
            raise InvalidDeclaration(
                f"SparkSource.table must be catalog.schema.table, not {text!r}: a part with a dot or a space goes "
                "between backticks."
            )
        return cls(parts=tuple(parts))

    @property
    def sql(self) -> str:
        """The name for a statement, each part quoted."""
        return ".".join(map(quote, self.parts))

    def __str__(self) -> str:
        """Return the name with marks only where they are needed."""
        return ".".join(part if _PLAIN.fullmatch(part) else quote(part) for part in self.parts)


def quote(name: str) -> str:
    """Return a name in backticks, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"


def join_names(names: Sequence[str]) -> str:
    """Return names for a sentence: ``a, `b c` and d``."""
    every = [name if _PLAIN.fullmatch(name) else quote(name) for name in names]
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}"
