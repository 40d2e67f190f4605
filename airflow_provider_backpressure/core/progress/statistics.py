"""Source statistics: how much of the snapshot is committed, and how fast."""

from dataclasses import dataclass
from datetime import datetime

PLAN_WORKER = "plan"
"""Worker id of the row that holds the plan's total, the frontiers, and what earlier plans have received."""


@dataclass(frozen=True, kw_only=True)
class WorkerStatistics:
    """What one worker did for a hydration; summed over workers it is the source's own number.

    Counts are rows (PostgreSQL, MySQL) or offsets (Kafka), unsigned 64-bit. ``None`` is unknown, never 0 for unknown.
    """

    hydration_id: str
    worker_id: str
    snapshot_total: int | None = None
    snapshot_total_exact: bool = True
    snapshot_progress: int = 0
    """Committed by the sink."""
    snapshot_read: int = 0
    """Read from the source, committed or in flight."""
    upstream_rate: float | None = None
    """Offsets, bytes of log or transactions per second; on the plan's row only, as the next three."""
    process_rate: float | None = None
    offset_known: int | None = None
    """The upstream frontier, summed over its keys."""
    offset_committed: int | None = None
    messages_received: int = 0
    """Rows; over all plans, so they never go back."""
    bytes_received: int = 0
    updated_at: datetime | None = None


_NOTHING = WorkerStatistics(hydration_id="", worker_id=PLAN_WORKER)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A source's numbers, over all its workers."""

    total: int | None
    total_exact: bool
    committed: int
    read: int
    messages: int
    """Rows received, over all plans."""
    bytes: int
    upstream_rate: float | None = None
    process_rate: float | None = None
    offset_known: int | None = None
    offset_committed: int | None = None

    @property
    def percent(self) -> float | None:
        """Committed share, a lower bound, 0 to 100; ``None`` while the total is unknown."""
        if self.total is None:
            return None
        return 100.0 if self.total == 0 else min(100.0, 100.0 * self.committed / self.total)


def total_progress(workers: list[WorkerStatistics]) -> Progress:
    """Return the sum over workers."""
    plan = next((worker for worker in workers if worker.worker_id == PLAN_WORKER), _NOTHING)
    totals = [worker.snapshot_total for worker in workers if worker.snapshot_total is not None]
    return Progress(
        total=sum(totals) if totals else None,
        total_exact=bool(totals) and all(worker.snapshot_total_exact for worker in workers),
        committed=sum(worker.snapshot_progress for worker in workers),
        read=sum(worker.snapshot_read for worker in workers),
        messages=sum(worker.messages_received for worker in workers),
        bytes=sum(worker.bytes_received for worker in workers),
        upstream_rate=plan.upstream_rate,
        process_rate=plan.process_rate,
        offset_known=plan.offset_known,
        offset_committed=plan.offset_committed,
    )


def rows_received(workers: list[WorkerStatistics]) -> int:
    """Return the rows that the sink has committed under the current plan."""
    return sum(worker.messages_received for worker in workers if worker.worker_id != PLAN_WORKER)
