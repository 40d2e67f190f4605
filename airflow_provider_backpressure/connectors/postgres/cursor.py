"""Statements with names beside parameters: a percent sign in a name is a percent sign.

psycopg looks for placeholders in the whole of a statement that has parameters, also within names and literals, and
would take the table ``"50%s"`` for one that waits for a value.
"""

import re
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import Params

_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor whose composed statements have placeholders only where we wrote them."""

    def execute(self, query: Any, params: Params | None = None, **options: Any) -> "Cursor":
        """See ``psycopg.Cursor.execute``."""
        if params is not None and isinstance(query, sql.Composable):
            query = literal(query)
        return super().execute(query, params, **options)


def literal(query: sql.Composable) -> sql.Composable:
    """Return a statement in which psycopg finds no placeholder inside a name, or inside a value written out."""
    if isinstance(query, sql.Composed):
        return sql.Composed([literal(part) for part in query])
    if isinstance(query, sql.Identifier):
        return sql.Identifier(*(part.replace("%", "%%") for part in query._obj))
    if isinstance(query, sql.Literal):
        return sql.SQL(query.as_string(None).replace("%", "%%"))
    if isinstance(query, sql.SQL):
        return sql.SQL(_QUOTED.sub(_double, query._obj))
    return query


def _double(found: re.Match[str]) -> str:
    # What is in single quotes is our own text, written for psycopg.
    return found[0].replace("%", "%%") if found[0].startswith('"') else found[0]
