"""What a lane submits, counts and returns."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.default_limits import LEASE_SECONDS, SHARED_JOB_BYTES, SHARED_JOB_ROWS
from airflow_provider_backpressure.core.gate.hydration_record import Refusal
from airflow_provider_backpressure.core.gate.signals import CREDITS, Decision
from airflow_provider_backpressure.core.planning.catch_up_windows import find_released_position, open_log
from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.reconciliation.last_writes import LastWrites
from airflow_provider_backpressure.core.snapshot.bounds import check_marked
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.core.snapshot.spark_messages import LastWrite, RangeSpec, Slice
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    OutOfMemory,
    SinkUnavailable,
    SourceUnavailable,
    WorkerLost,
)

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""Seconds after which a lane with ranges in flight, and none left to submit, asks whether there is another one."""


class Outcome(Enum):
    """Why a lane stopped."""

    DONE = "done"
    """Nothing is left for this lane: every range is committed, or in flight with another lane."""
    PAUSED = "paused"
    """Its time was over, with nothing of this lane in flight. More may be left."""
    CLOSED = "closed"
    """The gate stayed closed for the inline wait, with nothing of this lane in flight."""


@dataclass(frozen=True, kw_only=True)
class LaneResult:
    """What a lane did until it stopped."""

    outcome: Outcome
    committed: int
    """Ranges committed by this lane in this life."""
    decision: Decision | None = None
    """The refusal's decision where the gate was closed."""

    @property
    def crowded_out(self) -> bool:
        """Whether it stopped for nothing but the credits that other lanes of the hydration have."""
        return self.decision is not None and self.decision.closing <= {CREDITS}


@dataclass(kw_only=True)
class LeftRanges:
    """Whether a lane has to ask for another range while it has some in flight: not at once where none was left."""

    _refusal: Refusal | None = None
    _until: float = 0.0

    def note(self, refusal: Refusal, *, now: float) -> Refusal:
        """Keep an answer, and return it."""
        self._refusal, self._until = refusal if refusal.exhausted else None, now + AGAIN_SECONDS
        return refusal

    def find_refusal(self, *, now: float) -> Refusal | None:
        """Return the answer that still holds; ``None`` where the lane has to ask."""
        return self._refusal if now < self._until else None


class Job(NamedTuple):
    """An attempt of a range in flight."""

    record: RangeRecord
    began: float
    """When it was submitted, by the lane's clock."""


def spec_for(
    plan: Plan,
    record: RangeRecord,
    source: Source,
    snapshot: str | None = None,
    last_write: LastWrite | None = None,
    task_cpus: int = 1,
) -> RangeSpec:
    """Return the message for the latest attempt of a range, which is read in ``snapshot``."""
    corrects = last_write is not None and last_write.epoch
    ordered = plan.write.ordered and not plan.replays
    return RangeSpec(
        hydration_id=record.hydration_id,
        plan_id=plan.plan_id,
        epoch=plan.epoch,
        seq=record.seq,
        attempt=record.attempt,
        tag=record.tag or "",
        path=plan.path,
        read=replace(plan.read, snapshot=snapshot, marks_tombstones=ordered, row_key=plan.write.key if ordered else ()),
        write=replace(plan.write, key=plan.rewrite_key) if corrects else plan.write,
        slices=(source.slice(plan.read, record.bounds, record.slice_id),),
        pieces=_cut_pieces(plan, record, source),
        transform=plan.transform,
        last_write=last_write,
        since=plan.snapshot_epoch if plan.survives else 0,
        tables=plan.tables,
        task_cpus=task_cpus,
        small=record.planned_rows <= SHARED_JOB_ROWS and record.planned_bytes <= SHARED_JOB_BYTES,
    )


def _cut_pieces(plan: Plan, record: RangeRecord, source: Source) -> tuple[Slice, ...]:
    """Return what the range's tasks read, where several do."""
    tasks = max(plan.read.tasks, plan.write.tasks)
    if tasks < 2:
        return ()
    cut = source.cut(plan.read, record.bounds, parts=tasks)
    return tuple(source.slice(plan.read, bounds, f"{record.slice_id}.{number}") for number, bounds in enumerate(cut))


def find_last_write(writes: LastWrites, record: RangeRecord, runner: Runner) -> LastWrite | None:
    """Return what the target is known to hold of a range, as far as an attempt by this runner may rely on it."""
    last = writes.find(record)
    if last is None or runner.returns_results:
        return last
    # A range that is found unchanged has no marker: without a result nothing would say that it was compared.
    return replace(last, proves=False) if last.epoch else None


def is_too_large(record: RangeRecord, error: Exception, lost: set[int]) -> bool:
    """Whether an attempt failed for its memory: it said so, or its process ended without a word for the second time.

    ``lost``: ranges whose process has ended so before; this one is added.
    """
    again = isinstance(error, WorkerLost) and record.seq in lost
    if isinstance(error, WorkerLost):
        lost.add(record.seq)
    return again or isinstance(error, OutOfMemory)


def guard_log(source: Source, hydration_id: str, plan: Plan) -> None:
    """Let the policy act where the log that the source keeps for a hydration endangers it: its error is raised."""
    if plan.consistency is not Consistency.CATCH_UP:
        return
    try:
        open_log(source, hydration_id, plan).guard(replaying=plan.replays)
    except SourceUnavailable as error:
        log.warning("What the source keeps of its log is not known: %s", error)


def release_log(source: Source, hydration_id: str, marker: Marker) -> None:
    """Let the source forget the log that the sink has committed; what goes wrong now goes with a later one."""
    upto = find_released_position([marker])
    if upto is None:
        return
    try:
        source.log(hydration_id).release(upto)
    except BackpressureError as error:
        log.warning("The source still keeps its log before %s: %s", upto.label, error)


def await_marker(
    sink: Sink, plan: Plan, record: RangeRecord, *, poll: PollPolicy, clock: Clock, renew: Callable[[], None]
) -> Marker | None:
    """Return the marker of a range as soon as the sink answers; ``None`` where it has none that counts.

    ``renew``: keeps the lane's leases meanwhile. ``SinkUnavailable`` where that takes longer than a lease.
    """

    def look() -> dict[str, Marker] | None:
        try:
            return sink.markers(record.plan_id, [record.slice_id])
        except SinkUnavailable as error:
            log.warning("The sink does not answer; range %s stays in flight meanwhile: %s", record.seq, error)
            renew()
            return None

    found = poll.until(look, timeout=LEASE_SECONDS, clock=clock)
    if found is None:
        raise SinkUnavailable(f"The sink did not say within {LEASE_SECONDS:g} s whether range {record.seq} is in.")
    marker = found.get(record.slice_id)
    # A revoked marker keeps late attempts out; it commits nothing. One of an earlier snapshot is to be replaced.
    if marker is None or marker.revoked or plan.is_outdated(marker.plan_id, marker.epoch):
        return None
    check_marked(marker.bounds, record.bounds.to_json(), slice_id=record.slice_id, plan_id=record.plan_id)
    return marker
