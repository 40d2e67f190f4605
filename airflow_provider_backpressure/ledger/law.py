"""What every ledger decides and learns in the same way.

Pure functions from values to values, taken under the hydration's lock: the ledger in memory and the one on tables
differ in where values are kept, never in what becomes of them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_backpressure.core.bounds import Bounds
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.course import Course
from airflow_provider_backpressure.core.diffs import Diff
from airflow_provider_backpressure.core.limits import Limit
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.phases import advance as advance_phase
from airflow_provider_backpressure.core.ranges import PlannedRange, RangeRecord, RangeState, advance, attempt_tag
from airflow_provider_backpressure.core.samples import Sample
from airflow_provider_backpressure.core.signals import MemoryReading
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.core.statistics import PLAN_WORKER, WorkerStatistics, total_progress
from airflow_provider_backpressure.core.steering import Change
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable

ALPHA = 0.5
"""Weight of the newest commit in the moving mean of commit latency: one from before a fall is forgotten after five."""
DECAY = 0.98
"""How much of the largest memory seen is still expected after each further range: half of it after 34."""
SAMPLE_SECONDS = 1.0
"""Least time between two samples of a hydration."""
RENEWED_BELOW = 0.75
"""Share of its lease below which a token or a wait is renewed: not with every range or look."""
ERROR_LENGTH = 4000
REINDEX_WORKER = "reindex"
"""Worker id of what was found committed in the sink by a ledger that had lost it."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A hydration's figures under its lock; they change with nearly every step of a range."""

    id: str
    phase: Phase
    plan_id: str | None
    next_seq: int
    """Every planned range of the plan has this sequence number or a higher one: looking for one begins here."""
    credits: int
    credits_declared: int
    """Most ranges in flight as the DAG has it."""
    credits_set: int | None
    """The same as a person has it, which goes before."""
    slots: int | None
    """Tasks that the cluster runs at once; ``None`` where it does not tell."""
    cluster: str
    sink_server: str
    paused_by: str | None
    commit_seconds: float | None
    range_memory_bytes: int | None
    sampled_at: datetime | None
    hydrated_at: datetime | None
    number: int
    """Of the latest change of the gate."""
    waits_since: datetime | None = None
    """Since when it waits for a connection to the sink's server; ``None`` where it does not."""
    waits_until: datetime | None = None
    """How long that holds without a sign of life."""

    @property
    def credits_max(self) -> int:
        """The maximum that holds: what is wanted, and no more than the cluster has tasks for."""
        return most_credits(self.credits_set or self.credits_declared, self.slots)

    @property
    def queues(self) -> bool:
        """Whether its ranges need a token of the cluster: it hydrates, or does so anew."""
        return self.phase is not Phase.STEADY_STATE

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
    memory_limit: int | None
    """Executor memory that all ranges on the cluster may reserve; ``None`` where each has executors of its own."""
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


def stands_by(figures: Figures, now: datetime, seconds: float) -> Figures:
    """Return the figures of a hydration that waits for a connection, and goes on to do so; not renewed at every look.

    One whose wait has run out begins behind the others.
    """
    until = figures.waits_until
    left = 0.0 if until is None else (until - now).total_seconds()
    if left > seconds * RENEWED_BELOW:
        return figures
    since = figures.waits_since if left > 0 else now
    return replace(figures, waits_since=since, waits_until=now + timedelta(seconds=seconds))


def goes_before(figures: Figures, priority: int, mine: Figures, my_priority: int, now: datetime) -> bool:
    """Whether the next connection to a server is another one's rather than mine: by priority, then by who waits longer.

    Who is paused, or has shown no sign of life, holds nobody up.
    """
    if figures.id == mine.id or figures.paused_by is not None or not _waits(figures, now):
        return False
    if priority != my_priority:
        return priority > my_priority
    return not _waits(mine, now) or (figures.waits_since, figures.id) < (mine.waits_since, mine.id)


def _waits(figures: Figures, now: datetime) -> bool:
    return figures.waits_until is not None and figures.waits_until > now


def settles(before: RangeState | None) -> bool:
    """Whether a range that goes in after another one in this state may begin; ``None``: there is none before it."""
    return before in (None, RangeState.COMMITTED, RangeState.REVOKED)


def after_admission(figures: Figures, seq: int, *, first: bool) -> Figures:
    """Return the figures after ``seq`` was admitted. ``first``: it was the first planned one of all.

    Who has got a connection waits for the next one behind the others.
    """
    figures = replace(figures, waits_since=None, waits_until=None)
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
    """Return the range without its credit; ``None`` where this attempt does not hold it.

    One that has failed keeps what leads to the attempt's log.
    """
    if record.state is not RangeState.ADMITTED or record.attempt != attempt:
        return None
    return replace(
        record,
        state=advance(record.state, RangeState.FAILED if fail else RangeState.PLANNED),
        lane=record.lane if fail else None,
        session_id=record.session_id if fail else None,
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
    # What was landed before is brought back rather than read for the first time.
    rebuilt = figures.phase is Phase.STEADY_STATE or (plan.landed and figures.phase is Phase.HYDRATION)
    phase = advance_phase(figures.phase, Phase.REHYDRATION) if rebuilt else figures.phase
    return replace(anew, phase=phase, hydrated_at=None)


def restored(figures: Figures, plan: Plan) -> Figures:
    """Return the figures under a plan that was taken over from the sink: trust was lost, and is won back."""
    lost = figures.phase is not Phase.REHYDRATION
    phase = advance_phase(figures.phase, Phase.REHYDRATION) if lost else figures.phase
    return replace(figures, plan_id=plan.plan_id, next_seq=0, sampled_at=None, phase=phase, hydrated_at=None)


def found_committed(hydration_id: str, records: Iterable[RangeRecord]) -> WorkerStatistics:
    """Return the statistics of what was committed before the ledger knew of it."""
    own = WorkerStatistics(hydration_id=hydration_id, worker_id=REINDEX_WORKER)
    for record in records:
        if record.state is RangeState.COMMITTED:
            own = worked(own, record.progress(record.rows or 0), rows=record.rows or 0, bytes=record.bytes or 0)
    return own


def finished(figures: Figures, now: datetime) -> Figures:
    """Return the figures of a hydration whose ranges are all committed; an increment leaves it hydrated."""
    if figures.phase is Phase.STEADY_STATE:
        return figures
    return replace(figures, phase=advance_phase(figures.phase, Phase.STEADY_STATE), hydrated_at=now)


def registered(hydration_id: str, credits: int, *, cluster: str, sink_server: str) -> Figures:
    """Return the figures of a new hydration."""
    return Figures(
        id=hydration_id,
        phase=Phase.HYDRATION,
        plan_id=None,
        next_seq=0,
        credits=credits,
        credits_declared=credits,
        credits_set=None,
        slots=None,
        cluster=cluster,
        sink_server=sink_server,
        paused_by=None,
        commit_seconds=None,
        range_memory_bytes=None,
        sampled_at=None,
        hydrated_at=None,
        number=0,
    )


TOLD = ("phase", "credits", "slots", "commit_seconds", "range_memory_bytes", "paused_by")
"""Figures that are part of the gate's state."""


def told(
    before: Figures,
    after: Figures,
    *,
    in_flight: int = 0,
    seq: int | None = None,
    known: bool = True,
    **changes: Any,
) -> tuple[Figures, Diff]:
    """Return the figures with the number of this change of the gate, and what others are told of it.

    ``in_flight``: how many more ranges hold a credit. ``changes``: what else of the gate's state is known to be new.
    ``known``: whether that is all; else others have to read it.
    """
    new = {name: getattr(after, name) for name in TOLD if getattr(after, name) != getattr(before, name)}
    numbered = replace(after, number=before.number + 1)
    return numbered, Diff(
        hydration_id=after.id,
        number=numbered.number,
        moment=0.0,
        changes={**new, **changes} if known else None,
        in_flight=in_flight,
        seq=seq,
    )


def credits_back(record: RangeRecord) -> int:
    """Return what the end of an attempt does to the number of ranges in flight."""
    return -1 if record.state is RangeState.ADMITTED else 0


def totals(hydration_id: str, plan: Plan, before: list[WorkerStatistics]) -> WorkerStatistics:
    """Return the row that holds the plan's total, and what goes on from the plan ``before``: counters and frontiers."""
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
    """Return what goes on from when a plan is taken over from the sink, which tells itself what that plan received."""
    if figures.plan_id != plan.plan_id:
        return workers
    return [worker for worker in workers if worker.worker_id == PLAN_WORKER]


def observed(plan_row: WorkerStatistics, course: Course) -> WorkerStatistics:
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
    """Return the sample of what stands in the tables."""
    progress = total_progress(workers)
    return Sample(
        at=now,
        committed=progress.committed,
        read=progress.read,
        in_flight=in_flight,
        credits=credits,
        pressure=pressure if pressure is not None and math.isfinite(pressure) else None,
        memory_used=memory.used_bytes if memory else None,
        memory_limit=memory.limit_bytes if memory else None,
        offset_known=progress.offset_known,
        offset_committed=progress.offset_committed,
        upstream_rate=progress.upstream_rate,
        process_rate=progress.process_rate,
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


def in_flight_still(hydration_id: str, number: int) -> LedgerUnavailable:
    """Return the error for a hydration whose ranges must not be taken from under its lanes."""
    return LedgerUnavailable(
        f"{number} ranges of hydration {hydration_id} are in flight: it can be rebuilt when they are over."
    )


def still_held(hydration_id: str, number: int) -> LedgerRefused:
    """Return the error for a hydration that cannot be forgotten yet."""
    return LedgerRefused(f"{number} ranges of hydration {hydration_id} are in flight: it cannot be forgotten yet.")


def most_credits(wanted: int, slots: int | None) -> int:
    """Return the maximum of credits on a cluster of so many slots: for each a range that runs and one that is ready."""
    return wanted if not slots else max(1, min(wanted, 2 * slots))


def rescaled(figures: Figures, **changes: Any) -> Figures:
    """Return the figures under what else bounds the credits: a raised maximum is given at once, a lowered one binds."""
    changed = replace(figures, **changes)
    raised = changed.credits_max > figures.credits_max
    return replace(changed, credits=changed.credits_max if raised else min(figures.credits, changed.credits_max))


def steered(figures: Figures, change: Change) -> Figures:
    """Return the figures after a person's change of the credits."""
    return figures if change.credits is None else rescaled(figures, credits_set=change.credits or None)


def recut(record: RangeRecord, *, attempt: int, first: int, number: int) -> RangeRecord | None:
    """Return a range in whose place others come, numbered from ``first`` on; ``None`` where it is not to be had."""
    held = record.state is RangeState.ADMITTED and record.attempt == attempt
    if not held and record.state is not RangeState.PLANNED:
        return None
    return replace(
        record,
        state=advance(record.state, RangeState.REVOKED),
        lane=None,
        session_id=None,
        lease_until=None,
        error=f"cut into the ranges {first} to {first + number - 1}",
    )


def pieces_of(record: RangeRecord, pieces: Sequence[Bounds], *, first: int) -> list[PlannedRange]:
    """Return what comes in a range's place; each is expected to hold its share."""
    rows, bytes = (-(-size // len(pieces)) for size in (record.planned_rows, record.planned_bytes))
    return [PlannedRange(seq=first + at, bounds=piece, rows=rows, bytes=bytes) for at, piece in enumerate(pieces)]


def skipped(record: RangeRecord, *, why: str) -> RangeRecord | None:
    """Return a range that is left out for good; ``None`` where it is neither planned nor failed."""
    if record.state not in (RangeState.PLANNED, RangeState.FAILED):
        return None
    return replace(record, state=advance(record.state, RangeState.REVOKED), error=f"skipped: {why}"[:ERROR_LENGTH])


def fits(*, reserved_bytes: int, request: "Request") -> bool:
    """Whether the cluster has the memory for one more range; the only one of a cluster always has."""
    if request.memory_limit is None or not reserved_bytes:
        return True
    return reserved_bytes + request.memory_bytes <= request.memory_limit


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


def rate_between(base: Sample, latest: Sample, *, now: datetime, seconds: float) -> float | None:
    """Return rows per second from ``base`` to ``latest``; ``None`` where they are not apart.

    Where nothing was committed for ``seconds`` the time since then counts too, so that the rate of a run that stands
    still goes towards 0.
    """
    span = (max(latest.at, now - timedelta(seconds=seconds)) - base.at).total_seconds()
    return max(0, latest.committed - base.committed) / span if latest.at > base.at and span > 0 else None
