"""Sources of several tables: which they are, and where each goes."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from airflow_provider_backpressure.exceptions import InvalidDeclaration

TABLE, SCHEMA = "{table}", "{schema}"
"""Placeholders in a sink's name for the names of each table and of its schema (of MySQL the database)."""

_PLACES = re.compile("|".join(map(re.escape, (TABLE, SCHEMA))))
_LEADS_ELSEWHERE = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class TableName:
    """A table's names as the source's catalogue has them, and the whole as its SQL spells it."""

    schema: str
    """Empty where it is the connection's own."""
    name: str
    spelled: str


def match_tables(tables: Iterable[TableName], pattern: str) -> list[TableName]:
    """Return the tables whose ``schema.name`` matches: ``*`` is any text, ``?`` a character, ``[ab]`` one of these."""
    return [table for table in tables if fnmatchcase(f"{table.schema}.{table.name}", pattern)]


def placeholder(sink: Any) -> str:
    """Return the field of a declared sink that names each table; :class:`InvalidDeclaration` where there is not one."""
    fields = [name for name in sink.templated if TABLE in str(getattr(sink, name, ""))]
    if len(fields) != 1:
        raise InvalidDeclaration(
            f"A source of several tables needs a sink that says where each goes: write {TABLE} into the name of the "
            f"{type(sink).__name__}'s target, as in 'raw.{TABLE}'."
        )
    (field,) = fields
    return str(field)


def targets(
    tables: Iterable[TableName], name: str, *, spell: Callable[[str], str], folds: bool = False
) -> dict[str, str]:
    """Return each table's target by the table. ``name``: with placeholders; ``spell``: how the sink spells a name.

    ``folds``: whether it takes names for one that differ in case alone.

    Raises :class:`InvalidDeclaration` where two tables would go into one target, or a schema is not known.
    """
    found = {}
    for table in tables:
        if SCHEMA in name and not table.schema:
            raise InvalidDeclaration(f"{table.spelled} names no schema that could stand for {SCHEMA} in {name!r}.")
        found[table.spelled] = _fill(name, {SCHEMA: spell(table.schema), TABLE: spell(table.name)})
    known = Counter(target.lower() if folds else target for target in found.values())
    twice = [target for target, number in known.items() if number > 1]
    if twice:
        raise InvalidDeclaration(f"Several tables would go into {twice[0]}: write {SCHEMA} into the sink's name too.")
    return found


def one_of(table: Any, tables: tuple[str, ...] | str, what: str) -> None:
    """Raise :class:`InvalidDeclaration` unless a source names either one table or several."""
    if bool(table) == bool(tables):
        raise InvalidDeclaration(f"{what} needs either table or tables{', not both' if table else ''}.")


def in_files(name: str) -> str:
    """Return a name for the path of a sink of files; :class:`InvalidDeclaration` for one that would lead elsewhere.

    A user who may create tables in a source chooses their names, and must not choose where files go.
    """
    if name in (".", "..") or _LEADS_ELSEWHERE.search(name):
        raise InvalidDeclaration(f"{name!r} cannot be part of a path: name this table by itself, with a target for it.")
    return name


def _fill(name: str, names: Mapping[str, str]) -> str:
    # At one go: a schema may be called "{table}".
    return _PLACES.sub(lambda place: names[place[0]], name)
