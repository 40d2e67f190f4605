"""Conditions that answer otherwise each time that they are asked: each range and each count would ask for itself."""

import re

from airflow_provider_backpressure.exceptions import SourceRefused

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
