"""What a user's own query says of a database's health."""

from collections.abc import Sequence
from typing import Any

from airflow_provider_backpressure.core.health_signals import Figure, Query
from airflow_provider_backpressure.exceptions import Terminal, Transient


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
