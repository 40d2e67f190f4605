"""Source statistics: how much of the snapshot is committed, and how fast."""

from dataclasses import dataclass
from datetime import datetime


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
    messages_received: int = 0
    bytes_received: int = 0
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A source's numbers, over all its workers."""

    total: int | None
    total_exact: bool
    committed: int
    read: int
    bytes: int

    @property
    def percent(self) -> float | None:
        """Committed share, a lower bound, 0 to 100; ``None`` while the total is unknown."""
        if self.total is None:
            return None
        return 100.0 if self.total == 0 else min(100.0, 100.0 * self.committed / self.total)


def total_progress(workers: list[WorkerStatistics]) -> Progress:
    """Return the sum over workers."""
    totals = [worker.snapshot_total for worker in workers if worker.snapshot_total is not None]
    return Progress(
        total=sum(totals) if totals else None,
        total_exact=bool(totals) and all(worker.snapshot_total_exact for worker in workers),
        committed=sum(worker.snapshot_progress for worker in workers),
        read=sum(worker.snapshot_read for worker in workers),
        bytes=sum(worker.bytes_received for worker in workers),
    )


def eta_seconds(progress: Progress, rows_per_second: float) -> float | None:
    """Return seconds until the total is committed at this rate; ``None`` where that cannot be said."""
    if progress.total is None or rows_per_second <= 0:
        return None
    return max(0, progress.total - progress.committed) / rows_per_second
