"""Waiting for a connection to a target's server: how long it counts, and who goes before whom."""

from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_backpressure.core.transitions.hydration import Figures

RENEWED_BELOW = 0.75
"""Share of its lease below which a token or a wait is renewed: not with every range or look."""


def stands_by(figures: Figures, now: datetime, seconds: float) -> Figures:
    """Return the figures of a hydration that waits for a connection, and still does; not renewed at every look.

    One whose wait has run out begins behind the others.
    """
    until = figures.waits_until
    left = 0.0 if until is None else (until - now).total_seconds()
    if left > seconds * RENEWED_BELOW:
        return figures
    since = figures.waits_since if left > 0 else now
    return replace(figures, waits_since=since, waits_until=now + timedelta(seconds=seconds))


def goes_before(figures: Figures, priority: int, mine: Figures, my_priority: int, now: datetime) -> bool:
    """Whether the next connection to a server is another one's rather than mine: by priority, then by who waits longer.

    Who is paused, or has shown no sign of life, holds nobody up.
    """
    if figures.id == mine.id or figures.paused_by is not None or not _waits(figures, now):
        return False
    if priority != my_priority:
        return priority > my_priority
    return not _waits(mine, now) or (figures.waits_since, figures.id) < (mine.waits_since, mine.id)


def _waits(figures: Figures, now: datetime) -> bool:
    return figures.waits_until is not None and figures.waits_until > now
