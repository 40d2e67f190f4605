"""The reference's tables: what the code knows is written by it, what a person has to say stays as it was written.

A table is the first one under its heading. The names of its rows, their order, and the columns of facts are the code's.
Every other column is prose, kept by its row's name; a row that is new has :data:`UNSAID` there, until somebody says it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
UNSAID = "(to be said)"
TABLE = re.compile(r"^\|.*\|\n\|[-| ]+\|\n(?:\|.*\|\n)*", re.MULTILINE)
CELL = re.compile(r"(?<!\\)\|")

Facts = Mapping[str, Mapping[str, str]]
"""By a row's first cell the further cells that are facts, by their column."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the reference: its page, and what the code says about it."""

    page: str
    heading: str
    facts: Callable[[], Facts]

    def written(self, text: str) -> str:
        """Return a page's text with this table as the code has it."""
        begin, end = section(text, self.heading)
        found = TABLE.search(text, begin, end)
        if found is None:
            raise ValueError(f"{self.page} has no table under {self.heading!r}.")
        return text[: found.start()] + _anew(found[0], self.facts()) + text[found.end() :]


def section(text: str, heading: str) -> tuple[int, int]:
    """Return where the text under a heading begins and ends, up to the next of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"There is no heading {heading!r}.")
    following = re.compile(rf"^#{{1,{len(found[1])}}} ", re.MULTILINE).search(text, found.end())
    return found.end(), following.start() if following else len(text)


def _anew(table: str, facts: Facts) -> str:
    header, line, *body = table.splitlines()
    columns = _cells(header)
    prose = {_cells(row)[0]: dict(zip(columns, _cells(row), strict=True)) for row in body}
    rows = [_row(columns, name, known, prose.get(name, {})) for name, known in facts.items()]
    return "\n".join((header, line, *rows)) + "\n"


def _row(columns: list[str], name: str, known: Mapping[str, str], said: Mapping[str, str]) -> str:
    missing = set(known) - set(columns)
    if missing:
        raise ValueError(f"The table of {name} has no column {', '.join(sorted(missing))}.")
    cells = (known.get(column, said.get(column, UNSAID)) for column in columns[1:])
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in (name, *cells))


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in CELL.split(row)[1:-1]]
