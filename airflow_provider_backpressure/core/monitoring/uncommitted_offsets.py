"""How far a log has been committed, by the ledger's open ranges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow, unread_offsets
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState

STILL = (RangeState.PLANNED, RangeState.ADMITTED, RangeState.FAILED)
MOST = 1000
"""Ranges that are asked for at a time: the first open ones cover every partition before the last of them.

More than that of those that were cut later cover none: then nothing counts as committed."""


@dataclass(frozen=True, kw_only=True)
class UnreadOffsets:
    """Implements :data:`..core.ports.Unread` for a plan; equal for the same plan."""

    plan_id: str
    ranges: int | None = field(compare=False, repr=False)
    """How many the plan was made with: those numbered from there on were cut later, or planned again."""
    window: LogWindow = field(compare=False, repr=False)
    ledger: LedgerReader = field(compare=False, repr=False)

    def __call__(self) -> Mapping[int, int]:
        """Return the first offset of each partition that is not committed."""
        found = self._open(after_seq=-1)
        if len(found) < MOST or self.ranges is None:
            return unread_offsets(self.window, _collect_bounds(found), whole=len(found) < MOST)
        # Asked for in this order: what is cut meanwhile is seen whole, or in pieces, or as both.
        later = self._open(after_seq=max(self.ranges - 1, found[-1].seq))
        if len(later) == MOST:
            return dict(self.window.start)
        planned = [record for record in found if record.seq < self.ranges]
        cut = [*found[len(planned) :], *later]
        return unread_offsets(
            self.window, _collect_bounds(planned), whole=len(planned) < len(found), cut=_collect_bounds(cut)
        )

    def _open(self, *, after_seq: int) -> list[RangeRecord]:
        return self.ledger.ranges(self.plan_id, states=STILL, after_seq=after_seq, limit=MOST)


def unread(plan: Plan | None, ledger: LedgerReader) -> UnreadOffsets | None:
    """Return how far a plan's log has been committed; ``None`` where it reads no log."""
    window = LogWindow.from_window(plan.read.window) if plan is not None else None
    if plan is None or window is None:
        return None
    return UnreadOffsets(plan_id=plan.plan_id, ranges=plan.ranges, window=window, ledger=ledger)


def _collect_bounds(records: Iterable[RangeRecord]) -> list[OffsetBounds]:
    return [record.bounds for record in records if isinstance(record.bounds, OffsetBounds)]
