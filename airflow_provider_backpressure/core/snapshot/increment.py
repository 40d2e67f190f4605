"""Increments: whether the rows above the value that was committed last are all the new ones."""

import logging

from airflow_provider_backpressure.core.remedies import RESTART
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused

log = logging.getLogger(__name__)


def check_increment(plan: Plan, column: str | None) -> None:
    """Raise where the value committed last is one of another column than later runs are to be read by."""
    window = plan.read.window
    if window is None or column is None or window.column == column:
        return
    raise InvalidDeclaration(
        f"{plan.source_identity} was read by increment_column={window.column!r}, not {column!r}: the value committed "
        f"last, {shorten(window.upto)}, says nothing of {column}. Name {window.column} again, or {RESTART}."
    )


def check_order(plan: Plan, snapshot: Snapshot) -> None:
    """Raise where text of the rising column is in another order than when its last value was committed."""
    window = plan.read.window
    if window is None:
        return
    before, now = (
        next((each.collation for each in columns if each.name == window.column), None)
        for columns in (plan.read.columns, snapshot.columns)
    )
    if None not in (before, now) and before != now:
        raise SourceRefused(
            f"Text of {window.column} in {plan.source_identity} is ordered by {now}, and was by {before} when its last "
            f"value was committed: what lies above that value has changed. What is committed stays; {RESTART}."
        )


def warn_coarse(snapshot: Snapshot) -> None:
    """Log a warning where many rows have one value of the rising column: the next run reads only what lies above."""
    window = snapshot.window
    if window is not None and window.column in snapshot.coarse:
        log.warning(
            "Increments of %s are read by %s, in which many rows have one value: a row that arrives later with the "
            "highest value of this plan, %s, is never read, so name a column of finer values if there is one.",
            snapshot.source_identity,
            window.column,
            window.upto,
        )


def shorten(text: str, width: int = 120) -> str:
    """Return the text for a sentence: a log's frontier has a number for each partition."""
    return text if len(text) <= width else f"{text[:width]}…"
