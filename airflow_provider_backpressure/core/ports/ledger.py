"""The ledger's port: what the domain asks of the tables that record everything that happened."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_backpressure.core.gate.cluster_queue import Queue, Steering
from airflow_provider_backpressure.core.gate.credit_limits import Limit
from airflow_provider_backpressure.core.gate.hydration_record import GateState, Hydration, Permit, RangeCounts, Span
from airflow_provider_backpressure.core.gate.signals import Decision, MemoryReading
from airflow_provider_backpressure.core.gate.task_activity import Activity
from airflow_provider_backpressure.core.progress.lag import Course, Sight
from airflow_provider_backpressure.core.progress.notified_events import Notice
from airflow_provider_backpressure.core.progress.rates_and_eta import Sample, WorkerStatistics
from airflow_provider_backpressure.core.progress.source_position import Seen, Upstream
from airflow_provider_backpressure.core.progress.summary import HydrationSummary, Views
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, StageTime


@dataclass(frozen=True, kw_only=True)
class History:
    """For how long plans that are not their hydrations' any more are kept, and how many of a hydration."""

    seconds: float = 90 * 86400.0
    plans: int | None = 20
    """``None``: any number."""


class Pruning(Protocol):
    """Forgetting it. What a run needs is never forgotten: the plan of a hydration with its ranges, and every credit."""

    def find_superseded(self, kept: History, *, hydration_id: str | None = None) -> list[str]:
        """Return plans whose ranges may go: others are their hydrations' now, and none of their ranges is in flight.

        They are older than ``kept.seconds``, by the last range that was admitted or committed, or more than
        ``kept.plans`` of their hydration are newer. A plan that was never begun is among them as soon as no run has its
        hydration. ``hydration_id``: of this hydration only, whose first ranges an index finds.
        """
        ...

    def prune_plan(self, plan_id: str, *, most: int = 1000) -> int:
        """Forget ranges of a plan, ``most`` at a time, and return how many went.

        None of the plan that is its hydration's now, and none while one of them holds a credit.
        """
        ...

    def sweep(self, *, seconds: float, acts: bool = False) -> int:
        """Forget sources that nothing reads, and what was to be kept for an hour only; return how many rows went.

        ``acts``: what people did longer ago than ``seconds``, too.
        """
        ...


class ObservedReader(Protocol):
    """Reading it."""

    def upstream(self, source_identity: str) -> Seen | None:
        """Return how far a source was seen to be, whichever hydration asked; ``None`` before the first time."""
        ...

    def course(self, hydration_id: str) -> Course | None:
        """Return rates and verdict as of the latest sight; ``None`` before the first one."""
        ...

    def samples(self, hydration_id: str, *, seconds: float) -> list[Sample]:
        """Return the current plan's samples of the last seconds, the oldest first."""
        ...


class Observed(ObservedReader, Protocol):
    """Writing it."""

    def claim_look(self, source_identity: str, *, seconds: float) -> bool:
        """Whether the caller is to ask the source now: nobody has claimed that in the last seconds."""
        ...

    def keep_upstream(self, source_identity: str, upstream: Upstream) -> None:
        """Keep how far a source is."""
        ...

    def record_sight(self, hydration_id: str, sight: Sight, *, least_seconds: float) -> Course:
        """Keep what a look has found and return the course after it; the same where the sight is no newer.

        The statistics get its frontiers and rates, and a sample is kept.
        """
        ...

    def record_memory(self, hydration_id: str, reading: MemoryReading) -> None:
        """Keep a sample with the executors' memory."""
        ...

    def note(self, hydration_id: str, present: Mapping[str, float], *, looked: Collection[str]) -> Notice:
        """Store the conditions, and return the alerts that are new, as ``note_alerts`` does."""
        ...

    def prune_samples(self, hydration_id: str, *, seconds: float, rows: int, most: int = 1000) -> int:
        """Forget samples that are older, or more, than is kept, ``most`` at a time; return how many went."""
        ...


class LedgerReader(ObservedReader, Protocol):
    """Reading the ledger. Errors: ``LedgerUnavailable``; ``LedgerRefused`` where its tables are missing."""

    def hydration(self, hydration_id: str) -> Hydration:
        """Return one; ``LedgerRefused`` where there is none of that id."""
        ...

    def find(self, *, environment: str, source_identity: str, sink_identity: str) -> Hydration | None:
        """Return the hydration of this source and sink."""
        ...

    def hydrations(self, *, owner: str | None = None) -> list[Hydration]:
        """Return all, or those of one owner, the latest changed first."""
        ...

    def gate(self, hydration_id: str) -> GateState:
        """Return the gate's state in one read."""
        ...

    def counts(self, plan_id: str) -> RangeCounts:
        """Count a plan's ranges by state."""
        ...

    def ranges(
        self, plan_id: str, *, states: Sequence[RangeState] | None = None, after_seq: int = -1, limit: int | None = None
    ) -> list[RangeRecord]:
        """Return ranges in the order of ``seq``, paged by ``after_seq`` and ``limit``."""
        ...

    def range(self, plan_id: str, seq: int) -> RangeRecord:
        """Return one range; ``LedgerRefused`` where there is none."""
        ...

    def find_abandoned(self, hydration_id: str, *, lane: str | None = None) -> list[RangeRecord]:
        """Return admitted ranges whose lease has run out, and all that ``lane`` holds (from an earlier life of it)."""
        ...

    def statistics(self, hydration_id: str) -> list[WorkerStatistics]:
        """Return the statistics, one row per worker."""
        ...

    def rate(self, hydration_id: str, *, seconds: float = 60.0) -> float | None:
        """Return rows committed per second over the latest samples; ``None`` with fewer than two."""
        ...

    def flow(self, hydration_id: str, *, seconds: float = 60.0) -> dict[Stage, StageTime]:
        """Return what the stages did in the last seconds, over all workers; empty where nothing was recorded."""
        ...

    def probe(self, hydration_id: str) -> str | None:
        """Return the latest probe's curve as :meth:`Ledger.keep_probe` was given it; ``None`` before one."""
        ...

    def preview(self, hydration_id: str) -> str | None:
        """Return what a plan would be as :meth:`Ledger.keep_preview` was given it; ``None`` before one."""
        ...

    def spans(self, hydration_id: str) -> list[Span]:
        """Return the phases that a hydration has been in, in order; the last one is still open."""
        ...

    def push_counts(self) -> list[str]:
        """Return what the channel of each process has done that said so within the last hour, see ``keep_push``."""
        ...


class Ledger(LedgerReader, Views, Observed, Queue, Steering, Pruning, Protocol):
    """Writing the ledger. Every method is one short transaction."""

    def register(
        self,
        *,
        environment: str,
        source_identity: str,
        sink_identity: str,
        owner: str,
        cluster: str,
        credits: int,
        sink_server: str = "",
        connections: int | None = None,
        hydration_id: str | None = None,
        run: str | None = None,
    ) -> Hydration:
        """Return the hydration of this source and sink, made where it is missing.

        ``hydration_id``: the id that a missing one had in a ledger that was lost; another one where that is taken.
        ``run``: takes the hydration for itself where nobody has it, as by :meth:`hold`.

        The declared credits and cluster are taken over; ``LedgerRefused`` names the owner where it is another one.
        ``connections`` limits what all hydrations into ``sink_server`` have in flight, unless a person has said so.
        """
        ...

    def hold(self, hydration_id: str, *, run: str, over: str | None = None) -> str:
        """Let a run have the hydration for itself where nobody has it, or the run ``over`` has; return who has it.

        Whether a run is over is for the caller to know. Asking again changes nothing.
        """
        ...

    def let_go(self, hydration_id: str, *, run: str) -> bool:
        """Let the next run have it; ``False`` where this run does not hold it (any more)."""
        ...

    def save_plan(self, hydration_id: str, plan: Plan, ranges: Iterable[PlannedRange]) -> int:
        """Store a new plan with its ranges and return their number. Statistics begin again with the plan's total."""
        ...

    def restore(self, hydration_id: str, plan: Plan, records: Iterable[RangeRecord], *, who: str, why: str) -> None:
        """Take a plan with its ranges over from the sink, in the place of all that the ledger holds of that plan.

        The hydration goes to rehydration, and statistics begin with what is committed. Who and why stay in the control
        table. ``LedgerRefused`` while a range of the hydration is in flight under a lease that has not run out.
        """
        ...

    def take_over(self, hydration_id: str, plan: Plan, *, before: Plan | None = None) -> None:
        """Write down the newer epoch under which a new life of the lane continues the same plan.

        Nothing where another plan is the current one by now. ``before``: the plan as the caller has stored it last,
        which makes no difference but to how quickly that goes.
        """
        ...

    def begin_snapshot(self, hydration_id: str, plan: Plan) -> int | None:
        """Write down that a plan is read in a new snapshot, and in the same step plan its committed ranges again.

        Their rows no longer count as progress. Return how many there were; ``None``, and nothing is changed, where
        another plan or a later life of the lane has taken over. Ranges in flight and skipped ones stay as they are.
        """
        ...

    def admit(
        self,
        hydration_id: str,
        *,
        lane: str,
        session_id: str,
        lease_seconds: float,
        memory_bytes: int = 0,
        memory_limit: int | None = None,
        seq: int | None = None,
    ) -> Permit | None:
        """Give the next planned range (or ``seq``) a credit under the hydration's row lock, or ``None``.

        ``None`` while paused, while it is not the hydration's turn, while every credit is in flight or every connection
        of the sink's server, while what the cluster's ranges reserve leaves no ``memory_bytes`` of ``memory_limit``,
        and where no such range is planned. All are reserved together.

        The permit's range has a new attempt number and tag. Asked for a ``seq`` that this very lane holds already under
        an unexpired lease and whose attempt has no session yet (``session_id`` empty at reservation), the reservation
        becomes the permit: same attempt, lease renewed, session written.
        """
        ...

    def renew(self, hydration_id: str, *, lane: str, lease_seconds: float) -> int:
        """Renew the leases of every range that the lane has in flight and return how many there are."""
        ...

    def commit(
        self,
        plan_id: str,
        seq: int,
        *,
        worker: str,
        attempt: int,
        rows: int,
        bytes: int,
        checksum: str,
        limit: Limit,
        pressure: float,
        memory_bytes: int | None = None,
        epoch: int | None = None,
    ) -> bool:
        """Write down that the sink has committed a range; ``False`` where that was written already.

        ``epoch``: the plan's, as the lane knows it; ``PlanSuperseded`` where a later life of the lane has taken the
        plan over: what was committed in an earlier snapshot does not count in a later one.

        In the same transaction the credit comes back, the worker's statistics grow, credits follow the limit's law,
        commit latency and memory per range are learned (moving mean; moving maximum), and a sample is kept.
        """
        ...

    def release(self, plan_id: str, seq: int, *, attempt: int, error: str, fail: bool = False) -> bool:
        """Take the credit back from an attempt that came to nothing: planned again, or failed. ``False`` if not its."""
        ...

    def recut(self, plan_id: str, seq: int, *, attempt: int, pieces: Sequence[Bounds]) -> list[int]:
        """Put planned ranges of these bounds in the place of one, which is revoked, and return their numbers.

        For a range of the current plan that is planned, or that ``attempt`` holds, whose credit is released then;
        otherwise nothing is changed and nothing returned. Their numbers follow the plan's last; they share what was
        expected.
        """
        ...

    def retry_failed(self, plan_id: str) -> int:
        """Plan failed ranges again, as a person's retry of the task means it; return how many there were."""
        ...

    def reopen(self, plan_id: str, seq: int, *, who: str, why: str | None = None) -> bool:
        """Plan a committed or failed range of the current plan again; ``False`` where it is neither.

        What it had committed no longer counts as progress. Who, when and why stay in the control table.
        """
        ...

    def finish(self, hydration_id: str, *, plan_id: str | None = None) -> Hydration:
        """Go to steady state where every range of the plan is committed; the total becomes exact. Idempotent.

        ``LedgerRefused`` where a range is still open. ``plan_id``: the plan that was verified; ``PlanSuperseded`` where
        the hydration has another one by now.
        """
        ...

    def record_decision(self, hydration_id: str, decision: Decision) -> None:
        """Keep the gate's latest decision with all its reasons."""
        ...

    def record_flow(self, hydration_id: str, *, worker: str, times: Flow) -> None:
        """Keep what a worker's stages did since it last said so; for an hour."""
        ...

    def record_read(self, hydration_id: str, *, worker: str, in_flight_rows: int) -> None:
        """Keep what a worker has read beyond what is committed; ``snapshot_read`` never goes back."""
        ...

    def keep_probe(self, hydration_id: str, curve: str) -> None:
        """Keep what a probe has measured, as JSON, in the place of the one before."""
        ...

    def keep_preview(self, hydration_id: str, facts: str) -> None:
        """Keep what a plan would be, as JSON, in the place of what was kept before."""
        ...

    def keep_declaration(self, hydration_id: str, declaration: str | None, *, activity: Activity | None = None) -> None:
        """Keep what the hydration was declared to do, as JSON without secrets; ``None`` where it cannot be kept.

        ``activity``: kept with it, as by :meth:`keep_activity`.
        """
        ...

    def keep_failure(self, hydration_id: str, failure: str | None) -> None:
        """Keep why a task of the hydration has failed, with the time; ``None`` where a task works on it again.

        ``failure`` is shown to people: it must hold no secret.
        """
        ...

    def keep_activity(self, hydration_id: str, activity: Activity | None = None) -> None:
        """Keep a heartbeat of a task: that it was heard now, and what it does; ``None`` leaves the latter as it is."""
        ...

    def hear(self, ids: Collection[str]) -> None:
        """Note that the task which has these hydrations was heard now, also where it works on others of them."""
        ...

    def keep_push(self, process: str, counts: str) -> None:
        """Keep what a process's channel has done, as JSON, in the place of what it said before; for an hour."""
        ...

    def move(self, hydration_id: str, *, source_identity: str, sink_identity: str) -> None:
        """Let a hydration be known by other addresses of its source and sink, as its plan is. Idempotent.

        One that is known by them and has no plan is forgotten; ``LedgerRefused`` where it has one.
        """
        ...

    def forget(self, hydration_id: str) -> None:
        """Remove a hydration with all that belongs to it but the acts of people. Idempotent.

        ``LedgerRefused`` while a range of it is in flight.
        """
        ...

    def close(self) -> None:
        """Give connections back; idempotent."""
        ...


def count_leased(ledger: Ledger, hydration_id: str) -> int:
    """Return how many ranges of a hydration are in flight under a lease that has not run out."""
    return max(0, ledger.gate(hydration_id).in_flight - len(ledger.find_abandoned(hydration_id)))


PAGE = 1_000
GLANCES = 200
"""Hydrations of a page."""


def every_range(
    ledger: LedgerReader, plan_id: str, states: Sequence[RangeState] | None = None
) -> Iterator[RangeRecord]:
    """Yield ranges in the order of ``seq``, of all states or of those asked for."""
    after = -1
    while page := ledger.ranges(plan_id, states=states, after_seq=after, limit=PAGE):
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].seq


def list_submitted(ledger: LedgerReader, plan_id: str) -> list[str] | None:
    """Return the slices of a plan that were submitted and are not committed; ``None`` for a plan that is not known.

    Those of ranges that were cut are among them, which the plan itself does not know.
    """
    if not ledger.counts(plan_id).total:
        return None
    ranges = every_range(ledger, plan_id)
    return [each.slice_id for each in ranges if each.attempt and each.state is not RangeState.COMMITTED]


def every_summary(ledger: Views) -> Iterator[HydrationSummary]:
    """Yield the state of every hydration: those that hydrate first."""
    offset = 0
    while page := ledger.glances(limit=GLANCES, offset=offset):
        yield from page
        offset += GLANCES
