"""The snapshot that a lane keeps: opened for a plan once, counted while ranges are read, and closed with the lane."""

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from airflow_provider_backpressure.core.config import Budget, Consistency
from airflow_provider_backpressure.core.planning.preconditions import tell_submitted
from airflow_provider_backpressure.core.poll_policy import Clock
from airflow_provider_backpressure.core.ports import Keeper, Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Marker, MirrorTarget, Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.verification.snapshot_verifier import SnapshotVerifier
from airflow_provider_backpressure.core.verification.source_reader import SourceReader
from airflow_provider_backpressure.exceptions import BackpressureError, PlanOutdated, PlanSuperseded, SnapshotLost

log = logging.getLogger(__name__)


SNAPSHOTS = 3
"""How many snapshots one try of the task may take, one after the other."""

TOO_SHORT = (
    f"{SNAPSHOTS} snapshots were lost in one try of this task, each before the whole table was read in it. Find what "
    "ends the lane's connection or rewrites the table, allow a larger Budget(snapshot_age=...), or use "
    "consistency='catch_up', which needs no long snapshot."
)


class SnapshotCount:
    """Counts the rows of a snapshot in a thread, while ranges are read."""

    def __init__(self, keeper: Keeper) -> None:
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="count")
        self._counting: Future[int | None] | None = pool.submit(keeper.count)
        pool.shutdown(wait=False)

    def apply(self, plan: Plan, *, wait: bool = False) -> Plan | None:
        """Return the plan with the count, once; ``None`` while it is not known, and where it cannot be."""
        total = self._result(wait=wait)
        if total is None:
            return None
        frontier = dict.fromkeys(plan.frontier, total) if len(plan.frontier) == 1 else plan.frontier
        return replace(plan, total=total, frontier=frontier, counted=True)

    def _result(self, *, wait: bool) -> int | None:
        if self._counting is None or not (wait or self._counting.done()):
            return None
        counting, self._counting = self._counting, None
        try:
            return counting.result()
        except BackpressureError as error:
            log.warning("How many rows the snapshot holds is not known: %s", error)
            return None


@dataclass(kw_only=True)
class KeptSnapshot:
    """The snapshot of one lane's life, if the plan wants one. Nothing is opened before :meth:`open`."""

    hydration_id: str
    ledger: Ledger
    source: Source
    sink: Sink
    runner: Runner
    budget: Budget
    clock: Clock
    reads_again: bool = False
    """Whether the source is compared with what was committed, before the snapshot is let go."""
    _keeper: Keeper | None = None
    _since: float = 0.0
    _count: SnapshotCount | None = None

    @property
    def is_open(self) -> bool:
        """Whether a snapshot is kept now."""
        return self._keeper is not None

    @property
    def seconds(self) -> float | None:
        """How old the snapshot is that is kept now."""
        return self.clock.monotonic() - self._since if self._keeper else None

    @property
    def name(self) -> str | None:
        """What a task imports the snapshot by; ``None`` where none is kept."""
        return self._keeper.snapshot if self._keeper else None

    def fence_earlier(self, plan: Plan) -> Plan:
        """Refuse what an earlier life has submitted and what is not committed yet: it reads in another snapshot.

        Returns the plan with the epoch that holds the target now. So each snapshot has an epoch of its own, which is
        in the markers of its ranges.
        """
        if plan.consistency is not Consistency.SNAPSHOT or not (
            self.ledger.counts(plan.plan_id).open or self.must_read_again(plan)
        ):
            return plan
        tell_submitted(self.sink, self.ledger)
        epoch = self.sink.renew(plan.plan_id)
        if epoch is None:
            raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {plan.write.target}.")
        before, plan = plan, replace(plan, epoch=epoch)
        self.ledger.take_over(self.hydration_id, plan, before=before)
        return plan

    def check_earlier(self, plan: Plan) -> None:
        """Raise ``SnapshotLost`` where an earlier life has committed ranges in its snapshot, and others are left.

        Also where none is left, and the source is still to be compared. The sink is asked too, which that life is kept
        out of by now: an attempt that it had given up may have committed late. Not for a plan whose ranges a later
        snapshot corrects.
        """
        if plan.consistency is not Consistency.SNAPSHOT or plan.survives:
            return
        counts = self.ledger.counts(plan.plan_id)
        if not counts.open and not self.must_read_again(plan):
            return
        committed = counts.committed or sum(not marker.revoked for marker in self.sink.markers(plan.plan_id).values())
        if committed:
            raise SnapshotLost(
                f"{committed} of {counts.total} ranges of plan {plan.plan_id} were read in a snapshot that ended with "
                "the lane that kept it."
            )

    def check_marker(self, plan: Plan, marker: Marker | None) -> Marker | None:
        """Return the marker that an attempt of this life has found; ``SnapshotLost`` where it is of an earlier one.

        In a bucket nothing keeps that life's file out which was on its way there when the target got its new epoch.
        """
        of_one_moment = plan.consistency is Consistency.SNAPSHOT and not plan.survives
        if marker is not None and of_one_moment and marker.epoch < plan.epoch:
            raise SnapshotLost(
                f"The slice {marker.slice_id} of plan {plan.plan_id} was committed late, out of a lost snapshot."
            )
        return marker

    def must_read_again(self, plan: Plan) -> bool:
        """Whether all is committed, and the source was not compared with it while its snapshot was kept."""
        if not self._compares(plan) or plan.is_read_again:
            return False
        counts = self.ledger.counts(plan.plan_id)
        return bool(counts.committed) and not counts.open

    def _compares(self, plan: Plan) -> bool:
        # What a transform makes is not compared with the source.
        return self.reads_again and plan.consistency is Consistency.SNAPSHOT and plan.transform is None

    def open(self, plan: Plan) -> Plan:
        """Open the snapshot that a plan wants, where it is not open yet; return the plan as it is read from here on.

        ``PlanOutdated`` where the plan cannot be continued in it, ``PlanSuperseded`` where a later life has the plan.
        """
        if plan.consistency is not Consistency.SNAPSHOT or self._keeper is not None:
            return plan
        self._since = self.clock.monotonic()
        self._keeper = self.source.keep(plan)
        # The plan's own count is of an earlier moment.
        plan = replace(plan, counted=False)
        if plan.survives:
            plan = self._begin(plan)
        self._count = SnapshotCount(self._keeper) if plan.total_exact else None
        return plan

    def _begin(self, plan: Plan) -> Plan:
        """Plan again what was committed in an earlier snapshot, so that it is brought to the moment of this one."""
        target = self.sink.mirror(plan.write)
        files = target.files()
        if plan.snapshot_epoch and files != plan.files:
            raise PlanOutdated(
                f"The rows of {plan.write.fence} lie in other files than when plan {plan.plan_id} began (TRUNCATE, "
                "VACUUM FULL, CLUSTER or another table), or its columns were added, dropped or renamed."
            )
        counts = self.ledger.counts(plan.plan_id)
        if counts.committed:
            log.warning(
                "%s of %s ranges were read in a snapshot that is gone. They are read again in a new one and compared; "
                "only those that differ are written.",
                counts.committed,
                counts.total,
            )
            plan = self._with_brake(plan, target)
            target.index_ranges(plan.rewrite_key)
        plan = replace(plan, snapshot_epoch=plan.epoch, files=plan.files or files)
        if self.ledger.begin_snapshot(self.hydration_id, plan) is None:
            raise PlanSuperseded(f"A later life of this lane has taken plan {plan.plan_id} over.")
        return plan

    def _with_brake(self, plan: Plan, target: MirrorTarget) -> Plan:
        """Return a mirror with its limit of deletes, which counts the rows that it has brought itself meanwhile."""
        most = plan.write.most_deleted
        if most is None:
            return plan
        most = max(most, math.floor(target.rows() * self.budget.max_deletes))
        return replace(plan, write=replace(plan.write, most_deleted=most))

    def check(self) -> None:
        """Raise ``SnapshotLost`` where the snapshot that is kept is gone."""
        if self._keeper is not None:
            self._keeper.check()

    def check_age(self) -> None:
        """Raise ``SnapshotLost`` where the snapshot may not be kept any longer; for a lane with nothing in flight."""
        most, seconds = self.budget.snapshot_age, self.seconds
        if most is not None and seconds is not None and seconds >= most:
            raise SnapshotLost(f"The snapshot is {seconds:.0f} s old and given up: Budget(snapshot_age={most:g}).")

    def finish(self, plan: Plan, look: Callable[[], None]) -> Plan:
        """Compare the source with what is committed, where that is asked for, and count it; return the plan with both.

        ``look`` is called all the while. ``VerificationFailed`` where ranges differ, ``SnapshotLost`` where the
        snapshot is gone meanwhile.
        """
        if self._keeper is not None and self.must_read_again(plan):
            reader = SourceReader(
                plan=plan, source=self.source, sink=self.sink, runner=self.runner, snapshot=self._keeper.snapshot
            )
            log.info("Every range is committed. The source is read again in the same snapshot, to be compared.")
            SnapshotVerifier(ledger=self.ledger, reader=reader, look=look).verify()
            plan = replace(plan, read_again_epoch=plan.epoch)
            self.ledger.take_over(self.hydration_id, plan)
        return self.count(plan, wait=True)

    def count(self, plan: Plan, *, wait: bool = False) -> Plan:
        """Return the plan with the number of rows in the snapshot, once that is known, and write it down."""
        counted = self._count.apply(plan, wait=wait) if self._count else None
        if counted is None:
            return plan
        self.ledger.take_over(self.hydration_id, counted, before=plan)
        return counted

    def close(self) -> None:
        """Let the snapshot go; idempotent."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
