"""A lane of tables that share a log: their ranges first, then the windows of the log for all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.execution.lane_result import LaneResult, Outcome
from airflow_provider_backpressure.core.execution.work_pool import Finished
from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    PlanOutdated,
    RangeFailed,
    SnapshotLost,
    Terminal,
)
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.operators.lane_progress import ENDED, LaneClock
from airflow_provider_backpressure.operators.table_lane import Drain, TableLane
from airflow_provider_backpressure.operators.table_set import PlannedTables, TablePair
from airflow_provider_backpressure.operators.table_stream import TableStream
from airflow_provider_backpressure.triggers import AdmissionTrigger

LOGS = 3
"""How many times one try of the task may find the log lost, and begin it again with its tables."""

Follow = Callable[[HydrationSession, Hydration], tuple[LaneResult, float | None]]
"""Drains the windows of the log."""


@dataclass(kw_only=True)
class StreamLane:
    """Drains the tables of a lane, and then the windows of the log that some of them share."""

    lane: TableLane
    stream: TableStream
    planned: PlannedTables
    committed: int = 0
    """Windows that were committed."""
    found: Finished[TablePair, LaneResult] = field(default_factory=Finished)
    """What became of the tables."""
    _result: LaneResult | None = None
    _reminder: float | None = None

    def run(self, drain: Drain, follow: Follow, *, clock: LaneClock) -> Finished[TablePair, LaneResult]:
        """Drain until every table is as its source was, has failed, or waits at a gate.

        A log that was given up, as is declared, begins again, and its tables are read again with it.
        """
        for left in reversed(range(LOGS)):
            try:
                self._read_again()
                self._drain(drain, clock)
                if not self.found.waiting and not self._awaits_retry():
                    self._follow(follow)
                return self.found
            except ENDED:
                raise
            except SnapshotLost as error:
                if not left:
                    self._fail(error)
                    return self.found
                self.lane.tables.task.log.warning("%s", error)
                self.lane.select(self.planned)
                self.lane.hydrations = {
                    pair: one for pair, one in self.lane.hydrations.items() if pair in self.stream.pairs
                }
            except BackpressureError as error:
                self._fail(error)
                return self.found
        raise AssertionError("the last one returns")

    def list_waits(self) -> list[AdmissionTrigger]:
        """Return what waits at the gates."""
        if self.found.waiting:
            return self.lane.waits(self.found.waiting)
        closed = self._result is not None and self._result.outcome is Outcome.CLOSED
        return [self.stream.make_trigger(remind_after=self._reminder)] if closed else []

    def _read_again(self) -> None:
        """Plan tables again that lack changes of the log: a task was killed when it had begun the log again."""
        self.stream.prepare()
        self.stream.left_out.clear()
        again = [pair for pair in self.stream.again if pair in self.planned.ids]
        for pair in again:
            self.lane.tables.task.log.warning("%s is read again: %s", pair.table, self.stream.again[pair])
            with self.lane.tables.open(pair) as opened:
                opened.close_plan()
        if again:
            known = self.stream.find_members()
            self.lane.hydrations.update({pair: known[pair] for pair in again if pair in known})

    def _drain(self, drain: Drain, clock: LaneClock) -> None:
        """Drain the tables; raise ``SnapshotLost`` where one of them has found that the log is lost for all."""
        self.found.failed = {pair: error for pair, error in self.found.failed.items() if pair not in self._own()}
        now = self.lane.run(drain, clock=clock)
        self.found.waiting = now.waiting
        self.found.done.update(now.done)
        self.found.failed.update(now.failed)
        for pair, error in now.failed.items():
            if pair in self.stream.pairs and isinstance(error, SnapshotLost) and not isinstance(error, PlanOutdated):
                raise error

    def _own(self) -> set[TablePair]:
        return {*self.stream.pairs} & self.lane.hydrations.keys()

    def _awaits_retry(self) -> bool:
        """Whether a table may be read by the next try: windows that are planned now would leave it out."""
        own = [error for pair, error in self.found.failed.items() if pair in self.stream.pairs]
        return self.lane.tables.retries and not all(isinstance(error, Terminal) for error in own)

    def _follow(self, follow: Follow) -> None:
        """Replay the windows; a table that they cannot be replayed into is left out, and the others continue.

        What may pass is left to a retry of the task first: a table that was left out is read again as a whole.
        """
        while self._result is None:
            try:
                with self.stream.open() as opened:
                    self._result, self._reminder = follow(opened, opened.ledger.hydration(self.stream.id))
            except (Terminal, RangeFailed) as error:
                waits = self.lane.tables.retries and not isinstance(error, Terminal)
                if waits or not self.stream.park(error):
                    raise
        self.committed += self._result.committed
        self.found.failed = {**self.stream.left_out, **self.stream.parked, **self.found.failed}

    def _fail(self, error: BackpressureError) -> None:
        """Let every table fail that shares the log: none of them has its changes."""
        if isinstance(error, Terminal) or not self.lane.tables.retries:
            self.stream.keep_failure(error)
        own = [pair for pair in self.planned.ids if pair in self.stream.pairs]
        self.found.failed.update({pair: error for pair in own if pair not in self.found.failed})
