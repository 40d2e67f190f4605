"""The lane's loop: next range → permit → submit → await the sink's commit → write it down, several at once."""

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.default_limits import LEASE_SECONDS, MAX_ATTEMPTS
from airflow_provider_backpressure.core.execution.kept_snapshot import KeptSnapshot
from airflow_provider_backpressure.core.execution.lane_submission import (
    Job,
    LaneResult,
    LeftRanges,
    Outcome,
    await_marker,
    find_last_write,
    guard_log,
    is_too_large,
    release_log,
    spec_for,
)
from airflow_provider_backpressure.core.execution.stage_sampler import StageSampler, count_rows
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.gate.hydration_record import Refusal
from airflow_provider_backpressure.core.planning.range_splitter import RangeSplitter, parts_for
from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy, SystemClock
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.push.gate_wait import Parked, Sleeping, Waiting
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.core.reconciliation.last_writes import LastWrites
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult
from airflow_provider_backpressure.core.stage_metrics import Stage, StageClock, State, total
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LedgerRefused,
    LedgerUnavailable,
    PlanSuperseded,
    RangeFailed,
    SinkUnavailable,
    SnapshotLost,
    Terminal,
)

log = logging.getLogger(__name__)

READ_INTERVAL = 4.0
"""Seconds between two looks at what is on its way, rows and stages; figures are to be at most 5 s old."""


@dataclass(kw_only=True)
class Hydrator:
    """Drains the ranges of one plan through the gate. One instance is one lane's life; it is not shared by threads."""

    hydration_id: str
    plan: Plan
    lane: str
    ledger: Ledger
    source: Source
    sink: Sink
    runner: Runner
    limiter: Limiter
    budget: Budget
    share: int = 1
    """Most ranges that this lane keeps in flight."""
    inline_wait: float = 30.0
    """Seconds to wait at a closed gate before giving the worker slot back."""
    until: float | None = None
    """When, by the clock, no more ranges are submitted, but for a first one: windows of a log go in between."""
    reads_again: bool = False
    """Whether the source is compared with what is committed, in the snapshot that this lane keeps."""
    max_attempts: int = MAX_ATTEMPTS
    poll: PollPolicy = field(default_factory=PollPolicy)
    clock: Clock = field(default_factory=SystemClock)
    on_commit: Callable[[], None] | None = None
    """Called after each commit in the ledger, for progress lines."""
    push: Push | None = None
    """Says when a closed gate is worth another look; without it the clock does."""
    waiting: Waiting = field(init=False)
    _kept: KeptSnapshot = field(init=False)
    _writes: LastWrites = field(init=False)
    _jobs: dict["Future[RangeResult]", Job] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)
    _lost: set[int] = field(default_factory=set)
    """Ranges whose process ended without a word: once by chance, twice most likely for their memory."""
    _committed: int = 0
    _alone: bool = False
    _submitted: bool = False
    _left: LeftRanges = field(default_factory=LeftRanges)
    _next_renewal: float = 0.0
    _next_read: float = 0.0
    _admitting: StageClock = field(init=False)
    _stages: StageSampler = field(init=False)

    def __post_init__(self) -> None:
        """Clock the gate by the lane's own clock, and wait by it."""
        self._admitting = StageClock(clock=self.clock.monotonic)
        self._stages = StageSampler(before=Stage.READ_AND_TRANSFORM if self.plan.transform else Stage.READ)
        self._writes = LastWrites(self.plan, self.sink)
        self._kept = KeptSnapshot(
            hydration_id=self.hydration_id,
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            budget=self.budget,
            clock=self.clock,
            reads_again=self.reads_again,
        )
        self.limiter.snapshot_seconds = lambda: self._kept.seconds
        self.waiting = Sleeping(clock=self.clock)
        if self.push is not None:
            self.waiting = Parked(push=self.push, hydration_id=self.hydration_id, ledger=self.ledger, clock=self.clock)

    def run(self) -> LaneResult:
        """Loop until nothing is left or the gate stays closed.

        Raises ``RangeFailed`` when a range has used up its attempts and any ``Terminal`` error of one at once; other
        ranges in flight are settled first, so that no credit is left behind. ``SnapshotLost``: ranges were committed in
        a snapshot that is gone or too old; another lane continues a plan that survives, others have to be closed.
        ``PlanOutdated``: this one too. A snapshot is kept from the first range until the lane ends, which waits at a
        closed gate for as long as that takes.
        """
        result: LaneResult | None = None
        try:
            result = self._loop()
            return result
        finally:
            self._kept.close()
            self._leave(others_work=result is not None and result.crowded_out)

    def _loop(self) -> LaneResult:
        self.plan = self._kept.fence_earlier(self.plan)
        self.recover()
        self.ledger.retry_failed(self.plan.plan_id)
        self._kept.check_earlier(self.plan)
        self._guard_log()
        if self._kept.must_read_again(self.plan):
            self._open_snapshot()
        began = self.clock.monotonic()
        self._next_renewal, self._next_read = began + LEASE_SECONDS / 4, began + READ_INTERVAL
        closed_since: float | None = None
        waits = self.poll.waits()
        while True:
            self._admitting.to(State.BUSY)
            refusal = self._admit()
            # A full share is as good as a refusal: what waits is held back by what has not been committed yet.
            self._admitting.to(State.IDLE if refusal is not None and refusal.exhausted else State.BACKPRESSURED)
            if self._jobs:
                closed_since, waits = None, self.poll.waits()
                self.waiting.done()
                self._await_jobs()
            elif self._is_paused():
                return LaneResult(outcome=Outcome.PAUSED, committed=self._committed)
            elif refusal is None or refusal.exhausted:
                self.plan = self._kept.finish(self.plan, self._look_around)
                return LaneResult(outcome=Outcome.DONE, committed=self._committed)
            else:
                self._kept.check_age()
                now = self.clock.monotonic()
                closed_since = now if closed_since is None else closed_since
                left = closed_since + self.inline_wait - now
                if left <= 0 and not self._kept.is_open:
                    return LaneResult(outcome=Outcome.CLOSED, committed=self._committed, decision=refusal.decision)
                # A snapshot's keeper is looked after all the while.
                self.waiting.wait(
                    refusal.decision, pause=next(waits), most=self.poll.maximum if self._kept.is_open else left
                )
                self.reap_expired()

    def run_one(self, record: RangeRecord) -> None:
        """Submit the attempt that this lane holds a permit for, and settle it. It stays whole: nobody has its parts."""
        self._alone = True
        self._submit(record)
        while self._jobs:
            self._await_jobs()

    def cancel(self) -> None:
        """End this lane's jobs and give their credits back, as when its task is marked failed or cleared.

        The ledger says which they are: a lane may be interrupted between a permit and its submission.
        """
        self._jobs.clear()
        for record in self.ledger.find_abandoned(self.hydration_id, lane=self.lane):
            if record.lane == self.lane:
                self._end(record)
                self._resolve(record, error="cancelled")
        self._leave()

    def _leave(self, *, others_work: bool = False) -> None:
        """Write down what is left, and give the token back unless other lanes need it: nobody waits for its lease."""
        self.waiting.done()
        try:
            self._record_flow()
            if not others_work:
                self.ledger.leave(self.hydration_id)
        except LedgerUnavailable as error:
            log.warning("The place in the cluster's queue ends by its lease: %s", error)

    def recover(self) -> None:
        """Settle what an earlier life of this lane, or a lane that fell silent, has left in flight."""
        for record in self.ledger.find_abandoned(self.hydration_id, lane=self.lane):
            log.info("Range %s of an earlier attempt is still in flight: ending and settling it.", record.seq)
            self._end(record)
            self._resolve(record, error="its lane ended before it was committed")

    def reap_expired(self) -> None:
        """Settle ranges in flight whose lane fell silent until its lease ran out."""
        for record in self.ledger.find_abandoned(self.hydration_id):
            log.warning("The lease of range %s has run out: ending and settling it.", record.seq)
            self._end(record)
            self._resolve(record, error="its lease ran out")

    def _admit(self) -> Refusal | None:
        """Submit ranges until refused or until this lane's share is in flight; return the refusal, if any."""
        while len(self._jobs) < self.share and not self._is_paused():
            self._check_keeper()
            if self._jobs and (known := self._left.find_refusal(now=self.clock.monotonic())):
                return known
            answer = self.limiter.acquire(lane=self.lane, session_id=self.runner.session_id)
            if isinstance(answer, Refusal):
                return self._left.note(answer, now=self.clock.monotonic())
            if not self._cut(answer.range):
                self._submit(answer.range)
        return None

    def _is_paused(self) -> bool:
        """Whether its time is over. What has failed is tried again first: the next life counts from the start."""
        begun = self._submitted and not self._failures
        return begun and self.until is not None and self.clock.monotonic() >= self.until

    def _cut(self, record: RangeRecord) -> bool:
        """Cut a range that is larger than a person wants by now, before it is submitted."""
        if record.plan_id != self.plan.plan_id:
            return False
        try:
            return self._open_splitter.cut(record, parts_for(record, self.limiter.range_rows), tried=record.attempt > 1)
        except BackpressureError as error:
            self.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error=str(error))
            raise

    def _halve(self, record: RangeRecord) -> bool:
        """Cut a range whose attempt has failed, where that can be done now: otherwise it counts as any failure."""
        try:
            return not self._alone and self._open_splitter.cut(record, 2, tried=True)
        except (SinkUnavailable, PlanSuperseded) as error:
            log.warning("Range %s stays whole for now: %s", record.seq, error)
            return False

    @property
    def _open_splitter(self) -> RangeSplitter:
        return RangeSplitter(plan=self.plan, ledger=self.ledger, source=self.source, sink=self.sink)

    def _submit(self, record: RangeRecord) -> None:
        self._submitted = True
        if record.plan_id != self.plan.plan_id:
            self._step_aside(record)
        try:
            self._open_snapshot()
            last, cpus = find_last_write(self._writes, record, self.runner), self.limiter.task_cpus
            spec = spec_for(self.plan, record, self.source, self._kept.name, last, cpus)
        except BackpressureError as error:
            self.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error=str(error))
            raise
        reach(Step.BEFORE_SUBMIT, record.tag or "")
        self._jobs[self.runner.run(spec)] = Job(record, self.clock.monotonic())
        reach(Step.AFTER_SUBMIT, record.tag or "")

    def _open_snapshot(self) -> None:
        before, self.plan = self.plan, self._kept.open(self.plan)
        if self.plan.snapshot_epoch != before.snapshot_epoch:
            self._writes = LastWrites(self.plan, self.sink)

    def _look_around(self) -> None:
        self._check_keeper()
        self._renew()

    def _check_keeper(self) -> None:
        try:
            self._kept.check()
        except SnapshotLost:
            self.cancel()
            raise

    def _step_aside(self, record: RangeRecord) -> None:
        """Give a newer plan's range back to that plan's lanes, settle what is in flight, and stop this lane."""
        error = f"Plan {self.plan.plan_id} was replaced by plan {record.plan_id}: this lane must not continue."
        self.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error=error)
        self._drain()
        raise PlanSuperseded(error)

    def _drain(self) -> None:
        """Settle every job that is in flight; another failure changes nothing any more."""
        while self._jobs:
            self._settle_ended()

    def _await_jobs(self) -> None:
        """Wait until a job ends or it is time to look around, and settle what ended."""
        failure = self._settle_ended()
        self._observe()
        if failure is not None:
            self._drain()
            raise failure

    def _settle_ended(self) -> Exception | None:
        done, _ = wait(self._jobs, timeout=self.poll.maximum, return_when=FIRST_COMPLETED)
        settled = [self._settle(future) for future in done]
        most, now = self.budget.range_timeout, self.clock.monotonic()
        if most is not None:
            settled += [self._time_out(future) for future, job in [*self._jobs.items()] if now - job.began >= most]
        self._renew()
        return next((failure for failure in reversed(settled) if failure is not None), None)

    def _time_out(self, future: "Future[RangeResult]") -> Exception | None:
        """End an attempt that takes longer than a range may; it has failed unless it was committed meanwhile."""
        self._end(record := self._jobs[future].record)
        words = f"Range {record.seq} was not committed within Budget(range_timeout={self.budget.range_timeout:g})."
        return self._settle(future, RangeFailed(words))

    def _settle(self, future: "Future[RangeResult]", error: BaseException | None = None) -> Exception | None:
        """Write down what became of a job; return the error that must stop the lane, if any."""
        self._left = LeftRanges()
        record, error = self._jobs[future].record, error or future.exception()
        # An application whose driver runs elsewhere reports nothing, which is not a measured 0.
        memory = (future.result().peak_memory_bytes or None) if error is None else None
        marker: Marker | None = None
        try:
            marker = self._kept.check_marker(self.plan, self._marker(record))
        except SinkUnavailable as unavailable:
            # Not known to be committed: the credit stays out, and a later life of the lane resolves it.
            del self._jobs[future]
            return unavailable
        except (LedgerRefused, SnapshotLost) as conflict:
            error = conflict
        del self._jobs[future]
        self._stages.settle(record.slice_id, future.result().flow if error is None else None)
        if error is None:
            marker = marker or self._writes.confirm(record, future.result())
        if marker is not None:
            self._commit(record, marker, memory)
            return None
        if error is None:
            error = RangeFailed(f"Range {record.seq} ended without a commit in the sink.")
        if not isinstance(error, Exception):
            raise error
        if is_too_large(record, error, self._lost) and self._halve(record):
            log.warning("Range %s took too much memory and was cut in two: %s", record.seq, error)
            return None
        self._failures[record.seq] = self._failures.get(record.seq, 0) + 1
        last = isinstance(error, Terminal | SnapshotLost) or self._failures[record.seq] >= self.max_attempts
        remedy = "It is not tried again." if last else "It is tried again."
        log.warning(
            "Attempt %s of range %s (%s) failed: %s %s", record.attempt, record.seq, record.bounds, error, remedy
        )
        self.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error=str(error), fail=last)
        if not last:
            return None
        if isinstance(error, Terminal | SnapshotLost):
            return error
        failed = RangeFailed(f"Range {record.seq} failed {self._failures[record.seq]} times; the last time: {error}")
        failed.__cause__ = error
        return failed

    def _marker(self, record: RangeRecord) -> Marker | None:
        return await_marker(self.sink, self.plan, record, poll=self.poll, clock=self.clock, renew=self._renew)

    def _commit(self, record: RangeRecord, marker: Marker, memory_bytes: int | None) -> None:
        """Let the ledger follow the sink."""
        decision = self.limiter.last
        self._failures.pop(record.seq, None)
        reach(Step.BEFORE_LEDGER_COMMIT, record.tag or "")
        fresh = self.ledger.commit(
            record.plan_id,
            record.seq,
            worker=self.lane,
            attempt=marker.attempt,
            rows=marker.rows + marker.quarantined,
            bytes=marker.bytes,
            checksum=marker.checksum,
            limit=self.limiter.limit(record),
            pressure=decision.pressure if decision else 0.0,
            memory_bytes=memory_bytes,
            epoch=self.plan.epoch if self.plan.survives else None,
        )
        reach(Step.AFTER_LEDGER_COMMIT, record.tag or "")
        release_log(self.source, self.hydration_id, marker)
        if fresh:
            self._committed += 1
            if self.on_commit:
                self.on_commit()

    def _guard_log(self) -> None:
        """Let the policy act where the log that the source keeps for this hydration endangers it."""
        try:
            guard_log(self.source, self.hydration_id, self.plan)
        except BackpressureError:
            self.cancel()
            raise

    def _end(self, record: RangeRecord) -> None:
        """End an attempt wherever it still runs: its Spark job, then its connections in the sink."""
        if record.session_id and record.tag:
            self.runner.interrupt(record.session_id, record.tag)
        self.sink.end_attempts(record.plan_id, record.slice_id)

    def _resolve(self, record: RangeRecord, *, error: str) -> None:
        """Commit or release a range whose attempt has been ended, as the sink's marker says."""
        try:
            marker = self._marker(record)
        except LedgerRefused as conflict:
            self.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error=str(conflict), fail=True)
            raise
        if marker is not None:
            self._commit(record, marker, None)
        else:
            self.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error=error)

    def _record_flow(self) -> None:
        times = total({Stage.ADMIT: self._admitting.take()}, self._stages.take())
        self.ledger.record_flow(self.hydration_id, worker=self.lane, times=times)

    def _renew(self) -> None:
        now = self.clock.monotonic()
        if now >= self._next_renewal:
            self.ledger.renew(self.hydration_id, lane=self.lane, lease_seconds=LEASE_SECONDS)
            self._next_renewal = now + LEASE_SECONDS / 4

    def _observe(self) -> None:
        now = self.clock.monotonic()
        mine = {job.record.slice_id: job.began for job in self._jobs.values()}
        self._stages.look(self.source, self.sink, self.plan.plan_id, mine, now=now)
        if now < self._next_read:
            return
        self._next_read = now + READ_INTERVAL
        self._guard_log()
        self.plan = self._kept.count(self.plan)
        # A lane with its full share asks for nothing; what people see of the gate is kept fresh all the same.
        self.limiter.look(anew=True)
        self._record_flow()
        # A reading without a figure too: a sample says that nothing was seen then.
        if self.limiter.reading is not None:
            self.ledger.record_memory(self.hydration_id, self.limiter.reading)
        rows = count_rows(self.sink, self.plan.plan_id, mine)
        if rows is not None:
            self.ledger.record_read(self.hydration_id, worker=self.lane, in_flight_rows=rows)
