"""Whether a source still holds what a complete plan has read of it."""

from collections.abc import Iterable

from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.ports.paging import every_range
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, FileBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot

_AGAIN = 'trigger the DAG with {"backpressure": "restart"} to read it again'


def describe_change(plan: Plan, now: Snapshot, *, source: Source, ledger: LedgerReader) -> str:
    """Return how a source differs from what a complete plan has read; empty where it does not.

    A source with versions is compared by them: rows may change and their number may not. Any other one is compared by
    the number of its rows.
    """
    if now.total_exact and plan.total_exact and now.total != sum(plan.frontier.values()):
        return (
            f"{source.identity} holds {now.total} rows, the committed snapshot {plan.total}: the source has moved; "
            f"{_AGAIN}"
        )
    if not now.version:
        return ""
    if now.version != plan.version if plan.version else _has_other_files(plan, now, source, ledger):
        return (
            f"{source.identity} has changed since it was read: it still holds {now.total} rows, but not the same; "
            f"{_AGAIN}"
        )
    return ""


def _has_other_files(plan: Plan, now: Snapshot, source: Source, ledger: LedgerReader) -> bool:
    """Whether a table has other files than a plan of an earlier release, which kept no version, has read."""
    before = (record.bounds for record in every_range(ledger, plan.plan_id))
    after = (piece.bounds for piece in source.ranges(now, rows=1, bytes=1))
    return _files(before) != _files(after)


def _files(ranges: Iterable[Bounds]) -> set[str]:
    return {name for bounds in ranges if isinstance(bounds, FileBounds) for name in bounds.files}
