"""A plan's ranges, however many, read page by page."""

from collections.abc import Iterator, Sequence

from airflow_provider_backpressure.core.ports import LedgerReader
from airflow_provider_backpressure.core.ranges import RangeRecord, RangeState

PAGE = 1_000


def every_range(
    ledger: LedgerReader, plan_id: str, states: Sequence[RangeState] | None = None
) -> Iterator[RangeRecord]:
    """Yield ranges in the order of ``seq``, of all states or of those asked for."""
    after = -1
    while page := ledger.ranges(plan_id, states=states, after_seq=after, limit=PAGE):
        yield from page
        after = page[-1].seq
