"""What is counted of rows, bytes and offsets, by worker and in all; samples of it, and rates between them."""

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.core.progress.rates_and_eta import (
    PLAN_WORKER,
    Sample,
    WorkerStatistics,
    total_progress,
)
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures

REINDEX_WORKER = "reindex"
"""Worker id of what was found committed in the sink by a ledger that had lost it."""


def totals(hydration_id: str, plan: Plan, before: list[WorkerStatistics]) -> WorkerStatistics:
    """Return the row of the plan's total, with what continues from the plan ``before``: counters and frontiers."""
    earlier = total_progress(before)
    return WorkerStatistics(
        hydration_id=hydration_id,
        worker_id=PLAN_WORKER,
        snapshot_total=plan.total,
        # A transform may drop rows or make more of them: how many will be committed is known at the end. Offsets it
        # leaves alone.
        snapshot_total_exact=plan.total_exact and (plan.transform is None or plan.consistency is Consistency.OFFSETS),
        upstream_rate=earlier.upstream_rate,
        process_rate=earlier.process_rate,
        offset_known=earlier.offset_known,
        offset_committed=earlier.offset_committed,
        messages_received=earlier.messages,
        bytes_received=earlier.bytes,
    )


def before_restored(figures: Figures, plan: Plan, workers: list[WorkerStatistics]) -> list[WorkerStatistics]:
    """Return what continues when a plan is taken over from the sink, which itself knows what that plan received."""
    if figures.plan_id != plan.plan_id:
        return workers
    return [worker for worker in workers if worker.worker_id == PLAN_WORKER]


def found_committed(hydration_id: str, records: Iterable[RangeRecord]) -> WorkerStatistics:
    """Return the statistics of what was committed before the ledger knew of it."""
    own = WorkerStatistics(hydration_id=hydration_id, worker_id=REINDEX_WORKER)
    for record in records:
        if record.state is RangeState.COMMITTED:
            own = with_commit(own, record.progress(record.rows or 0), rows=record.rows or 0, bytes=record.bytes or 0)
    return own


def with_commit(statistics: WorkerStatistics, progress: int, *, rows: int, bytes: int) -> WorkerStatistics:
    """Return a worker's statistics after it committed a range; what it read is never less than that.

    ``progress``: what the range was of the plan's total, see :meth:`RangeRecord.progress`.
    """
    progress += statistics.snapshot_progress
    return replace(
        statistics,
        snapshot_progress=progress,
        snapshot_read=max(statistics.snapshot_read, progress),
        messages_received=statistics.messages_received + rows,
        bytes_received=statistics.bytes_received + bytes,
    )


def with_read(statistics: WorkerStatistics, in_flight_rows: int) -> WorkerStatistics:
    """Return a worker's statistics while it reads: committed and in flight, never less than before."""
    read = max(statistics.snapshot_read, statistics.snapshot_progress + in_flight_rows)
    return replace(statistics, snapshot_read=read)


def taken_back(workers: list[WorkerStatistics], lane: str | None, rows: int) -> list[WorkerStatistics]:
    """Return the statistics that change where committed rows no longer count; what was received stays counted.

    They are the lane's, but for a commit that another one found.
    """
    changed = []
    for worker in sorted(workers, key=lambda worker: worker.worker_id != lane):
        less = min(rows, worker.snapshot_progress)
        if less:
            changed.append(replace(worker, snapshot_progress=worker.snapshot_progress - less))
            rows -= less
    return changed


def made_exact(workers: list[WorkerStatistics]) -> WorkerStatistics | None:
    """Return the plan's row with what was committed in the place of an estimate; ``None`` where it was no estimate."""
    row = next(worker for worker in workers if worker.worker_id == PLAN_WORKER)
    if row.snapshot_total is not None and row.snapshot_total_exact:
        return None
    return replace(row, snapshot_total=total_progress(workers).committed, snapshot_total_exact=True)


def with_course(plan_row: WorkerStatistics, course: Course) -> WorkerStatistics:
    """Return the plan's row with the frontiers and rates of a course."""
    latest = course.latest
    return replace(
        plan_row,
        upstream_rate=course.upstream_rate,
        process_rate=course.process_rate,
        offset_known=sum(latest.known.values()),
        offset_committed=None if latest.committed is None else sum(latest.committed.values()),
    )


def sample(
    now: datetime,
    workers: list[WorkerStatistics],
    *,
    in_flight: int,
    credits: int,
    pressure: float | None = None,
    memory: MemoryReading | None = None,
) -> Sample:
    """Return the sample of the current tables."""
    progress = total_progress(workers)
    return Sample(
        at=now,
        committed=progress.committed,
        read=progress.read,
        in_flight=in_flight,
        credits=credits,
        pressure=pressure if pressure is not None and math.isfinite(pressure) else None,
        memory_used=memory.used_bytes if memory and not memory.isolated else None,
        memory_limit=memory.limit_bytes if memory else None,
        offset_known=progress.offset_known,
        offset_committed=progress.offset_committed,
        upstream_rate=progress.upstream_rate,
        process_rate=progress.process_rate,
    )


def rate_between(base: Sample, latest: Sample, *, now: datetime, seconds: float) -> float | None:
    """Return rows per second from ``base`` to ``latest``; ``None`` where they are not apart.

    Where nothing was committed for ``seconds`` the time since then counts too, so that the rate of a run that stands
    still goes towards 0.
    """
    span = (max(latest.at, now - timedelta(seconds=seconds)) - base.at).total_seconds()
    return max(0, latest.committed - base.committed) / span if latest.at > base.at and span > 0 else None
