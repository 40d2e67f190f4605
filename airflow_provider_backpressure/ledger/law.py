"""What every ledger decides and learns in the same way.

Pure functions from values to values, taken under the hydration's lock: the ledger in memory and the one on tables
differ in where values are kept, never in what becomes of them.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.limits import Limit
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.phases import advance as advance_phase
from airflow_provider_backpressure.core.ranges import RangeRecord, RangeState, advance, attempt_tag
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.core.statistics import WorkerStatistics, total_progress
from airflow_provider_backpressure.exceptions import LedgerRefused

ALPHA = 0.3
"""Weight of the newest commit in the moving mean of commit latency."""
DECAY = 0.98
"""How much of the largest memory seen is still expected after each further range: half of it after 34."""
SAMPLE_SECONDS = 1.0
"""Least time between two samples of a hydration."""
ERROR_LENGTH = 4000
PLAN_WORKER = "plan"
"""Worker id of the statistics row that holds the plan's total."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A hydration's figures under its lock; they change with nearly every step of a range."""

    id: str
    phase: Phase
    plan_id: str | None
    next_seq: int
    """Every planned range of the plan has this sequence number or a higher one: looking for one begins here."""
    credits: int
    credits_max: int
    paused_by: str | None
    commit_seconds: float | None
    range_memory_bytes: int | None
    sampled_at: datetime | None
    hydrated_at: datetime | None

    @property
    def shut(self) -> bool:
        """Whether nothing can be admitted, whatever the credits."""
        return self.paused_by is not None or self.plan_id is None

    def sample_due(self, now: datetime) -> bool:
        """Whether a sample is to be kept; a clock that was set back does not stop them."""
        return self.sampled_at is None or abs((now - self.sampled_at).total_seconds()) >= SAMPLE_SECONDS


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a lane asks for. ``session_id`` is empty where a sensor reserves for a later submission."""

    lane: str
    session_id: str
    lease_seconds: float
    memory_bytes: int
    seq: int | None

    def admitted(
        self, record: RangeRecord, *, in_flight: int, credits: int, now: datetime, ready: bool = True
    ) -> RangeRecord | None:
        """Return the range with its new attempt, or as it was reserved; ``None`` where it may not start.

        ``ready``: whether the range before it is settled, which counts for one that goes in after it.
        """
        lease_until = now + timedelta(seconds=self.lease_seconds)
        if self._has_reserved(record, now):
            return replace(record, session_id=self.session_id or None, lease_until=lease_until)
        if record.state is not RangeState.PLANNED or in_flight >= (1 if record.ordered else credits) or not ready:
            return None
        attempt = record.attempt + 1
        return replace(
            record,
            state=advance(record.state, RangeState.ADMITTED),
            attempt=attempt,
            lane=self.lane,
            session_id=self.session_id or None,
            tag=attempt_tag(record.plan_id, record.slice_id, attempt),
            lease_until=lease_until,
            memory_bytes=self.memory_bytes,
            admitted_at=now,
        )

    def _has_reserved(self, record: RangeRecord, now: datetime) -> bool:
        return (
            record.state is RangeState.ADMITTED
            and record.lane == self.lane
            and record.session_id is None
            and _lease_runs(record, now)
        )


def settles(before: RangeState | None) -> bool:
    """Whether a range that goes in after another one in this state may begin; ``None``: there is none before it."""
    return before in (None, RangeState.COMMITTED, RangeState.REVOKED)


def after_admission(figures: Figures, seq: int, *, first: bool) -> Figures:
    """Return the figures after ``seq`` was admitted. ``first``: it was the first planned one of all."""
    return replace(figures, next_seq=seq + 1) if first or seq == figures.next_seq else figures


def committed(record: RangeRecord, *, attempt: int, rows: int, bytes: int, checksum: str, now: datetime) -> RangeRecord:
    """Return the range as the sink's marker says it is, whichever attempt wrote that."""
    return replace(
        record,
        state=advance(record.state, RangeState.COMMITTED),
        attempt=max(record.attempt, attempt),
        lease_until=None,
        rows=rows,
        bytes=bytes,
        checksum=checksum,
        error=None,
        committed_at=now,
    )


def after_commit(
    figures: Figures,
    record: RangeRecord,
    *,
    attempt: int,
    limit: Limit,
    pressure: float,
    memory_bytes: int | None,
    now: datetime,
) -> Figures:
    """Return the figures after a range of the current plan was committed; ``record`` is the range before that."""
    return replace(
        figures,
        credits=limit.after(figures.credits, pressure, figures.credits_max),
        commit_seconds=_commit_seconds(figures.commit_seconds, record, attempt, now),
        range_memory_bytes=_range_memory(figures.range_memory_bytes, memory_bytes),
    )


def released(record: RangeRecord, *, attempt: int, error: str, fail: bool) -> RangeRecord | None:
    """Return the range without its credit; ``None`` where this attempt does not hold it."""
    if record.state is not RangeState.ADMITTED or record.attempt != attempt:
        return None
    return replace(
        record,
        state=advance(record.state, RangeState.FAILED if fail else RangeState.PLANNED),
        lane=None,
        session_id=None,
        lease_until=None,
        error=error.replace("\x00", "")[:ERROR_LENGTH],  # what every database takes
    )


def reopened(record: RangeRecord) -> RangeRecord | None:
    """Return a range that is to be read once more; ``None`` where it is neither committed nor failed."""
    if record.state not in (RangeState.COMMITTED, RangeState.FAILED):
        return None
    return replace(
        record,
        state=advance(record.state, RangeState.PLANNED),
        lane=None,
        session_id=None,
        rows=None,
        bytes=None,
        checksum=None,
        error=None,
        committed_at=None,
    )


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


def holder(found: str | None, *, run: str, over: str | None) -> str:
    """Return who has a hydration for itself after ``run`` asked for it; ``found`` had it before."""
    return run if found is None or found == over else found


def planned_again(figures: Figures, seq: int) -> Figures:
    """Return the figures after a range of the current plan went back to the planned ones."""
    return replace(figures, next_seq=min(figures.next_seq, seq))


def planned_anew(figures: Figures, plan: Plan) -> Figures:
    """Return the figures under a new plan: a hydrated target is rebuilt, or goes on from where it is."""
    anew = replace(figures, plan_id=plan.plan_id, next_seq=0, sampled_at=None)
    if figures.phase is Phase.STEADY_STATE and plan.increment:
        return anew
    rebuilt = figures.phase is Phase.STEADY_STATE
    phase = advance_phase(figures.phase, Phase.REHYDRATION) if rebuilt else figures.phase
    return replace(anew, phase=phase, hydrated_at=None)


def finished(figures: Figures, now: datetime) -> Figures:
    """Return the figures of a hydration whose ranges are all committed; an increment leaves it hydrated."""
    if figures.phase is Phase.STEADY_STATE:
        return figures
    return replace(figures, phase=advance_phase(figures.phase, Phase.STEADY_STATE), hydrated_at=now)


def registered(hydration_id: str, credits: int) -> Figures:
    """Return the figures of a new hydration."""
    return Figures(
        id=hydration_id,
        phase=Phase.HYDRATION,
        plan_id=None,
        next_seq=0,
        credits=credits,
        credits_max=credits,
        paused_by=None,
        commit_seconds=None,
        range_memory_bytes=None,
        sampled_at=None,
        hydrated_at=None,
    )


def totals(hydration_id: str, plan: Plan) -> WorkerStatistics:
    """Return the row that holds the plan's total."""
    return WorkerStatistics(
        hydration_id=hydration_id,
        worker_id=PLAN_WORKER,
        snapshot_total=plan.total,
        # A transform may drop rows or make more of them: how many will be committed is known at the end. Offsets it
        # leaves alone.
        snapshot_total_exact=plan.total_exact and (plan.transform is None or plan.consistency is Consistency.OFFSETS),
    )


def made_exact(workers: list[WorkerStatistics]) -> WorkerStatistics | None:
    """Return the plan's row with what was committed in the place of an estimate; ``None`` where it was no estimate."""
    row = next(worker for worker in workers if worker.worker_id == PLAN_WORKER)
    if row.snapshot_total is not None and row.snapshot_total_exact:
        return None
    return replace(row, snapshot_total=total_progress(workers).committed, snapshot_total_exact=True)


def worked(statistics: WorkerStatistics, progress: int, *, rows: int, bytes: int) -> WorkerStatistics:
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


def reading(statistics: WorkerStatistics, in_flight_rows: int) -> WorkerStatistics:
    """Return a worker's statistics while it reads: committed and in flight, never less than before."""
    read = max(statistics.snapshot_read, statistics.snapshot_progress + in_flight_rows)
    return replace(statistics, snapshot_read=read)


def unknown(hydration_id: str) -> LedgerRefused:
    """Return the error for an id that the ledger does not have."""
    return LedgerRefused(f"The ledger has no hydration {hydration_id}.")


def unknown_range(plan_id: str, seq: int) -> LedgerRefused:
    """Return the error for a range that the ledger does not have."""
    return LedgerRefused(f"The ledger has no range {seq} of plan {plan_id}.")


def without_plan(hydration_id: str) -> LedgerRefused:
    """Return the error for a hydration that has nothing to finish."""
    return LedgerRefused(f"The hydration {hydration_id} has no plan yet.")


def owned(*, source_identity: str, sink_identity: str, owner: str, asking: str) -> LedgerRefused:
    """Return the error for a second owner."""
    return LedgerRefused(
        f"The hydration of {source_identity} into {sink_identity} is owned by {owner}: {asking} may not run it as well."
    )


def still_open(seq: int, state: RangeState) -> LedgerRefused:
    """Return the error for a hydration that cannot be finished yet."""
    return LedgerRefused(f"Range {seq} is still {state}: the hydration is complete when every range is committed.")


def rescaled(figures: Figures, configured: int) -> Figures:
    """Return the figures under another configured maximum: a raised one is given at once, a lowered one binds."""
    credits = configured if configured > figures.credits_max else min(figures.credits, configured)
    return replace(figures, credits=credits, credits_max=configured)


def _lease_runs(record: RangeRecord, now: datetime) -> bool:
    return record.lease_until is not None and record.lease_until > now


def _commit_seconds(mean: float | None, record: RangeRecord, attempt: int, now: datetime) -> float | None:
    """Learn from a commit that its lane has waited for. One found later tells when it was found, not when it was."""
    if record.attempt != attempt or record.admitted_at is None or not _lease_runs(record, now):
        return mean
    seconds = max(0.0, (now - record.admitted_at).total_seconds())
    return seconds if mean is None else ALPHA * seconds + (1 - ALPHA) * mean


def _range_memory(maximum: int | None, seen: int | None) -> int | None:
    """Keep the maximum; one that is not seen again fades."""
    if seen is None or maximum is None:
        return maximum if seen is None else seen
    return max(seen, int(maximum * DECAY))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Committed rows of a plan at one moment."""

    at: datetime
    rows: int


def rate_between(base: Sample, latest: Sample, *, now: datetime, seconds: float) -> float | None:
    """Return rows per second from ``base`` to ``latest``; ``None`` where they are not apart.

    Where nothing was committed for ``seconds`` the time since then counts too, so that the rate of a run that stands
    still goes towards 0.
    """
    span = (max(latest.at, now - timedelta(seconds=seconds)) - base.at).total_seconds()
    return max(0, latest.rows - base.rows) / span if latest.at > base.at and span > 0 else None
