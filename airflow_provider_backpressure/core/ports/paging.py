"""What is read page by page, however much it is: a plan's ranges, the ledger's hydrations."""

from collections.abc import Iterator, Sequence

from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.progress.views import Views
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState

PAGE = 1_000
GLANCES = 200
"""Hydrations of a page."""


def every_range(
    ledger: LedgerReader, plan_id: str, states: Sequence[RangeState] | None = None
) -> Iterator[RangeRecord]:
    """Yield ranges in the order of ``seq``, of all states or of those asked for."""
    after = -1
    while page := ledger.ranges(plan_id, states=states, after_seq=after, limit=PAGE):
        yield from page
        after = page[-1].seq


def every_glance(ledger: Views) -> Iterator[HydrationSummary]:
    """Yield the state of every hydration: those that hydrate first."""
    offset = 0
    while page := ledger.glances(limit=GLANCES, offset=offset):
        yield from page
        offset += GLANCES
