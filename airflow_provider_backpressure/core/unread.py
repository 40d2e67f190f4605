"""How far a log has been committed, by the ledger's open ranges."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.bounds import OffsetBounds
from airflow_provider_backpressure.core.ledger_port import LedgerReader
from airflow_provider_backpressure.core.offsets import LogWindow, unread_offsets
from airflow_provider_backpressure.core.ranges import RangeState
from airflow_provider_backpressure.core.snapshot import Plan

STILL = (RangeState.PLANNED, RangeState.ADMITTED, RangeState.FAILED)
MOST = 1000
"""Ranges that are asked for at a time: the first open ones tell of every partition before the last of them."""


@dataclass(frozen=True, kw_only=True)
class UnreadOffsets:
    """Implements :data:`..core.ports.Unread` for a plan; equal for the same plan."""

    plan_id: str
    window: LogWindow = field(compare=False, repr=False)
    ledger: LedgerReader = field(compare=False, repr=False)

    def __call__(self) -> Mapping[int, int]:
        """Return the first offset of each partition that is not committed."""
        found = self.ledger.ranges(self.plan_id, states=STILL, limit=MOST)
        still = [record.bounds for record in found if isinstance(record.bounds, OffsetBounds)]
        return unread_offsets(self.window, still, whole=len(found) < MOST)


def unread(plan: Plan | None, ledger: LedgerReader) -> UnreadOffsets | None:
    """Return how far a plan's log has been committed; ``None`` where it reads no log."""
    window = LogWindow.of(plan.read.window) if plan is not None else None
    if plan is None or window is None:
        return None
    return UnreadOffsets(plan_id=plan.plan_id, window=window, ledger=ledger)
