"""What users write in SQL: conditions on a table's rows, which must not vary, and queries of its health."""

import re
from collections.abc import Sequence
from typing import Any

from airflow_provider_backpressure.core.health_signal_declarations import Figure, Query
from airflow_provider_backpressure.exceptions import SourceRefused, Terminal, Transient

_QUOTED = re.compile(r"""'(?:[^'\\]|''|\\.)*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--\s[^\n]*|/\*(?!!).*?\*/""", re.DOTALL)
"""Values and names in quotes, and comments."""


def check_no_clock(condition: str, table: object, *, text: str, clock: re.Pattern[str]) -> None:
    """Raise ``SourceRefused`` where a condition asks the clock or for chance.

    ``text``: the condition, or what the database makes of it. ``clock``: what asks, outside of quotes and comments.
    """
    found = clock.search(_QUOTED.sub("''", text))
    if found is not None:
        refuse_clock(condition, table, found[0].partition("(")[0].strip())


def refuse_clock(condition: str, table: object, what: str) -> None:
    """Raise the refusal of a condition by what varies in it."""
    raise SourceRefused(
        f"The condition {condition!r} of {table} asks for {what}, which each range and each count would answer "
        "otherwise: write the value itself."
    )


def to_figure(
    query: Query, row: Sequence[Any] | None, *, refused: type[Terminal], unavailable: type[Transient]
) -> Figure:
    """Return what the query gave; anything but a number is ``refused``, no row or NULL is ``unavailable``."""
    if row is None or row[0] is None:
        raise unavailable(f"The query {query.name!r} gave {'no row' if row is None else 'NULL'}.")
    try:
        return Figure(value=float(row[0]))
    except (TypeError, ValueError):
        raise refused(f"The query {query.name!r} gave no number but a {type(row[0]).__name__}: {query.sql}") from None
