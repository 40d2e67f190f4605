"""What PostgreSQL and MySQL share."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_backpressure.core.health_signal_declarations import Figure, Query
from airflow_provider_backpressure.exceptions import SourceRefused, Terminal, Transient

COUNTABLE_ROWS = 20_000_000
"""Up to so many rows of the whole table are counted (some seconds); beyond, the server's estimate is used."""
UNEVEN = 8
"""How many times the mean a row is wide, from which on ranges are weighed by bytes rather than counted by rows."""
ASSUMED_ROW_BYTES = 100.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """Rows that are asked for, and bytes of one."""

    rows: int | None
    exact: bool
    row_bytes: float
    widest_bytes: float
    """Of the largest row, where rows differ much in size, otherwise 0."""


UNKNOWN = Size(rows=None, exact=False, row_bytes=ASSUMED_ROW_BYTES, widest_bytes=0.0)
"""Where nobody asks."""


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
