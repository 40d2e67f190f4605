"""What routes ask for before they answer: the ledger, and a hydration that the person may see or steer."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Request, status

from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.exceptions import LedgerRefused, Terminal
from airflow_provider_backpressure.plugins.authorization import User, may_read, may_steer

NONE_SUCH = "There is no such hydration."
ID = re.compile("[0-9a-f]{32}")
MOST_NUMBER = 2**53 - 1
"""Highest number of a range, or of a place in a list, that is asked for: as far as JSON's numbers are exact."""

Seq = Annotated[int, Path(ge=0, le=MOST_NUMBER, description="Number of the range.")]


def ledger_of(request: Request) -> Ledger:
    """Return the ledger, opened."""
    opened: Callable[[], tuple[Ledger, Push | None]] = request.app.state.ledger
    return opened()[0]


Opened = Annotated[Ledger, Depends(ledger_of)]


def seen(hydration_id: str, ledger: Opened, user: User) -> HydrationSummary:
    """Return a hydration that the person may see: 404 where there is none, 403 where it is not theirs to see."""
    found = ledger.glances(ids=[hydration_id], limit=1) if ID.fullmatch(hydration_id) else []
    if not found:
        raise HTTPException(status.HTTP_404_NOT_FOUND, NONE_SUCH)
    check_readable(user, found[0].hydration.owner)
    return found[0]


Seen = Annotated[HydrationSummary, Depends(seen)]


def editable_hydration(now: Seen, user: User) -> HydrationSummary:
    """Return a hydration that the person may steer."""
    if not may_steer(user, now.hydration.owner):
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not edit the DAG {now.hydration.owner}.")
    return now


Steered = Annotated[HydrationSummary, Depends(editable_hydration)]


def check_readable(user: User, owner: str) -> None:
    """Answer 403 where the person may not see this DAG."""
    if not may_read(user, owner):
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not see the DAG {owner}.")


def range_of(now: HydrationSummary, seq: int, ledger: Ledger) -> RangeRecord:
    """Return a range of the hydration's plan; 404 where there is none."""
    plan = now.hydration.plan
    try:
        if plan is not None:
            return ledger.range(plan.plan_id, seq)
    except LedgerRefused as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from error
    raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no plan with ranges yet.")


@contextmanager
def answer_refusals() -> Iterator[None]:
    """Answer 409 with its sentence to an act that is refused for what it is."""
    try:
        yield
    except Terminal as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
