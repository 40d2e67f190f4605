"""A lane of tables that share a log: their ranges and the windows of the log, in turns.

While ranges are read, the source keeps its log. So every minute the lane lets those in flight end, and replays the log
up to then. All windows are for all tables, also for those of which ranges are left, whether they are read next or have
failed. A range that begins behind them sees all that they bring, and an attempt of before is refused: each turn has an
epoch of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.default_limits import LOG_RESTARTS
from airflow_provider_backpressure.core.execution.concurrent_hydrations import Finished
from airflow_provider_backpressure.core.execution.lane_submission import LaneResult, Outcome
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LedgerUnavailable,
    PlanOutdated,
    RangeFailed,
    SnapshotLost,
    Terminal,
)
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.operators.lane_progress import ENDED, LaneClock
from airflow_provider_backpressure.operators.several_tables import PlannedTables, TablePair
from airflow_provider_backpressure.operators.several_tables_lane import Drain, TableLane, Turn
from airflow_provider_backpressure.operators.shared_log_hydration import TableStream
from airflow_provider_backpressure.triggers import AdmissionTrigger

TURN_SECONDS = 60.0
"""Seconds for which ranges are begun before windows go in between."""

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
        for left in reversed(range(LOG_RESTARTS)):
            try:
                self._read_again()
                self._drain_in_turns(drain, follow, clock)
                if not self.found.waiting:
                    self._fail_unread()
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
                sharing = {*self.stream.pairs}
                self.lane.hydrations = {pair: one for pair, one in self.lane.hydrations.items() if pair in sharing}
                self.found.failed = {pair: why for pair, why in self.found.failed.items() if pair not in sharing}
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
            self.lane.failed.pop(pair.table, None)
            with self.stream.leave_out_refused(pair), self.lane.tables.open(pair) as opened:
                opened.close_plan()
        if again:
            known = self.stream.find_members()
            self.lane.hydrations.update({pair: known[pair] for pair in again if pair in known})

    def _drain_in_turns(self, drain: Drain, follow: Follow, clock: LaneClock) -> None:
        """Drain the tables, and replay windows in between; windows that are open come first.

        Where the windows wait at their gate, ranges are read to their end: the windows are planned again behind them.
        """
        begun = self.stream.has_windows()
        while True:
            epochs = self.stream.fence(between=True)
            unread, closed = self._find_unread(), False
            if begun and unread:
                closed = self._replay(follow).outcome is Outcome.CLOSED or self.stream.has_open_windows()
                epochs = self.stream.fence(between=True) if closed else epochs
                unread = self._find_unread()
            until = clock.monotonic() + TURN_SECONDS if unread and not closed else None
            self.lane.turn = Turn(until=until, epochs=epochs, replayed=self.stream.find_replayed())
            if not self._drain(drain, clock):
                return
            begun = True

    def _find_unread(self) -> dict[TablePair, Hydration]:
        """Return the tables of which this lane has ranges to read, and that have not failed in this task."""
        gone = {*self.stream.left_out, *self.stream.parked, *self.found.failed}
        return {
            pair: one
            for pair, one in self.stream.find_unread().items()
            if pair in self.planned.ids and pair not in gone and pair.table not in self.lane.failed
        }

    def _drain(self, drain: Drain, clock: LaneClock) -> bool:
        """Drain the tables until the turn is over; whether ranges are left that nothing but the turn keeps from going.

        Raise ``SnapshotLost`` where one of them has found that the log is lost for all.
        """
        gone = {*self.stream.left_out, *self.stream.parked}
        self.lane.hydrations = {pair: one for pair, one in self.lane.hydrations.items() if pair not in gone}
        self.found.failed = {pair: error for pair, error in self.found.failed.items() if pair not in self._own()}
        now = self.lane.run(drain, clock=clock)
        self.found.waiting = now.waiting
        for pair, result in now.done.items():
            before = self.found.done.get(pair)
            committed = result.committed + (before.committed if before else 0)
            self.found.done[pair] = replace(result, committed=committed)
        self.found.failed.update(now.failed)
        for pair, error in now.failed.items():
            if pair in self.stream.pairs and isinstance(error, SnapshotLost) and not isinstance(error, PlanOutdated):
                raise error
        paused = {pair for pair, result in now.done.items() if result.outcome is Outcome.PAUSED}
        left = paused | now.waiting.keys()
        if paused:
            self.lane.hydrations = {pair: one for pair, one in self.lane.hydrations.items() if pair in left}
        return bool(paused)

    def _fail_unread(self) -> None:
        """Let a table fail that has ranges left of which this task has none in flight."""
        for pair in self._find_unread():
            self.found.failed[pair] = LedgerUnavailable(
                f"Ranges of {pair.table} are left, in flight in another task or opened again: a later try reads them."
            )

    def _own(self) -> set[TablePair]:
        return {*self.stream.pairs} & self.lane.hydrations.keys()

    def _is_final(self, error: Exception) -> bool:
        """Whether no try of this task follows that may end otherwise."""
        return isinstance(error, Terminal) or not self.lane.tables.retries

    def _follow(self, follow: Follow) -> None:
        """Replay the windows behind the ranges, until the tables are as their sources were.

        Tables with ranges left get them too, so that the next try or run continues with these.
        """
        self.stream.fence(between=False)
        self._result = self._replay(follow)

    def _replay(self, follow: Follow) -> LaneResult:
        """Replay windows; a table that they cannot be replayed into is left out, and the others continue.

        What may pass is left to a retry of the task first: a table that was left out is read again as a whole.
        """
        while True:
            try:
                with self.stream.open() as opened:
                    result, self._reminder = follow(opened, opened.ledger.hydration(self.stream.id))
            except (Terminal, RangeFailed) as error:
                if not self._is_final(error) or not self.stream.park(error):
                    raise
            else:
                self.committed += result.committed
                self._fail_left_out()
                return result

    def _fail_left_out(self) -> None:
        self.found.failed = {**self.stream.left_out, **self.stream.parked, **self.found.failed}

    def _fail(self, error: BackpressureError) -> None:
        """Let every table fail that shares the log: none of them has its changes."""
        if self._is_final(error):
            self.stream.keep_failure(error)
        self._fail_left_out()
        own = [pair for pair in self.planned.ids if pair in self.stream.pairs]
        self.found.failed.update({pair: error for pair in own if pair not in self.found.failed})
