"""A lane of several tables: which of them it drains, how many at once, and what it waits for."""

import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.core.admission.gate_watcher import Watch
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.default_limits import HYDRATIONS_AT_ONCE
from airflow_provider_backpressure.core.execution.concurrent_hydrations import Finished, WorkPool
from airflow_provider_backpressure.core.execution.lane_submission import LaneResult, Outcome
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.gate.signals import QUEUE
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.exceptions import LedgerUnavailable
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.operators.lane_progress import LaneClock
from airflow_provider_backpressure.operators.several_tables import PlannedTables, TablePair, TableSet
from airflow_provider_backpressure.triggers import AdmissionTrigger
from airflow_provider_backpressure.triggers.admission import MOST_GATES

ALONE = (Consistency.SNAPSHOT, Consistency.CATCH_UP, Consistency.OFFSETS)
"""Consistencies whose ranges one lane has to drain: each table is one lane's."""
LIMIT_SECONDS = 5.0
"""Seconds after which the queue's number of tokens is read again."""
REMIND_SECONDS = 60.0
"""Seconds after which a task that waits for more than that looks at all of them."""

Drain = Callable[[HydrationSession, Hydration, LaneClock, int | None], tuple[LaneResult, float | None]]
"""Drains one hydration: by this clock, with this share of its credits (``None``: the lane's own)."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A time in which ranges are read, between windows of the log that their tables share."""

    until: float | None
    """When, by a clock, no more ranges are begun; ``None``: until none is left."""
    epochs: Mapping[str, int]
    """Under which ranges of tables that share the log are read, by the ids of hydrations."""
    replayed: str
    """The position to which windows of the log were replayed by then."""

    def take(self, hydration_id: str, plan: Plan) -> Plan:
        """Return the plan as its ranges are read in this turn: they have to see what windows have brought.

        ``LedgerUnavailable`` where another lane has taken the table since: its windows may be on their way.
        """
        if not plan.stream:
            return plan
        if plan.epoch != self.epochs.get(hydration_id):
            raise LedgerUnavailable(
                f"Another lane continues plan {plan.plan_id} of {plan.write.fence} (epoch {plan.epoch})."
            )
        return replace(plan, read=replace(plan.read, replayed=self.replayed))


@dataclass(kw_only=True)
class TableLane:
    """Drains the hydrations of several tables, as many at once as the queue has tokens."""

    tables: TableSet
    lanes: int
    lane_index: int
    resumed: bool
    """Whether the task continues after a deferral: what failed before it stays failed."""
    hydrations: dict[TablePair, Hydration] = field(default_factory=dict)
    """Those that this lane works on."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why tables had failed before the task was deferred."""
    turn: Turn | None = None
    """Until when ranges are read; ``None``: until none is left."""
    _paused: bool = False
    """Whether a table has ranges left in this turn that only its end has kept from being read."""
    _clocks: list[LaneClock] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _reminders: dict[TablePair, float] = field(default_factory=dict)
    _tokens: tuple[float, int] = (0.0, HYDRATIONS_AT_ONCE)

    def select(self, planned: PlannedTables) -> None:
        """Find which of the planned tables this lane works on: those of this run that it has not verified yet."""
        known = {found.id: found for found in self.tables.hydrations()}
        run = self.tables.context["ti"].run_id
        every = {pair: known[id_] for pair, id_ in planned.ids.items() if id_ in known}
        mine = {pair: found for pair, found in every.items() if self._is_mine(pair, found)}
        mine = {pair: found for pair, found in mine.items() if not self.tables.is_done(found)}
        if self.resumed:
            lost = {pair: found for pair, found in mine.items() if found.failure is not None and found.holder == run}
            self.failed = {pair.table: str(found.failure) for pair, found in lost.items()}
            mine = {pair: found for pair, found in mine.items() if pair not in lost}
        # A person's priority decides; lanes of the same tables begin at different ones.
        begin = len(mine) * self.lane_index // self.lanes
        turned = [*mine.items()][begin:] + [*mine.items()][:begin]
        self.hydrations = dict(sorted(turned, key=lambda each: -each[1].priority))

    def run(self, drain: Drain, *, clock: LaneClock) -> Finished[TablePair, LaneResult]:
        """Drain until every table is drained, has failed, waits at its gate, or the turn is over."""
        self._paused = False

        def work(pair: TablePair) -> LaneResult:
            return self._drain(pair, drain)

        pool: WorkPool[TablePair, LaneResult] = WorkPool(
            work=work,
            most=self._count_tokens,
            must_wait=lambda result: result.outcome is Outcome.CLOSED,
            blocks_others=lambda result: result.decision is not None and result.decision.closing == {QUEUE},
            inline_wait=settings.inline_wait(),
            pause=settings.poll_policy().maximum,
            clock=clock,
            cancel=self._cancel,
            on_end=self.tables.report,
        )
        return pool.run(self.hydrations)

    def waits(self, waiting: Mapping[TablePair, LaneResult | None]) -> list[AdmissionTrigger]:
        """Return what waits at the gates of those that were tried; the others would be behind them in the queue."""
        tried = [pair for pair, result in waiting.items() if result is not None]
        first = tried[:MOST_GATES]
        behind = [self.hydrations[pair].id for pair in waiting if pair not in first]
        many = REMIND_SECONDS if len(tried) > len(first) else None
        return [
            self.tables.task.make_trigger(
                hydration_id=self.hydrations[pair].id,
                budget=self.tables.declared.budget.fit(self.tables.shared.runner.overhead_seconds),
                watch=Watch.GATE,
                source=self.tables.declare(pair).source,
                remind_after=_least(self._reminders.get(pair), many),
                also=[] if number else behind,
            )
            for number, pair in enumerate(first)
        ]

    def _is_mine(self, pair: TablePair, found: Hydration) -> bool:
        if self.lanes == 1 or found.plan is None or found.plan.consistency not in ALONE:
            return True
        # By its name, so that it stays with its lane whatever other tables come and go.
        return self.has_name(found.plan.stream or pair.target)

    def has_name(self, name: str) -> bool:
        """Whether what has this name is this lane's: a table, or the tables that share a log, by the log's."""
        return zlib.crc32(name.encode()) % self.lanes == self.lane_index

    def _drain(self, pair: TablePair, drain: Drain) -> LaneResult:
        hydration, ledger = self.hydrations[pair], self.tables.shared.ledger
        clock = LaneClock()
        self._clocks.append(clock)
        if self._over.is_set():
            clock.end()
        plan = hydration.plan
        # The windows of a log that tables share are drained once all of those are read.
        follows = plan is None or (plan.consistency is Consistency.CATCH_UP and not plan.stream)
        shares = plan is not None and bool(plan.stream)
        if not follows and plan is not None and not ledger.counts(plan.plan_id).open:
            if shares and hydration.failure is not None:
                # Its verification has failed, and is tried again. There is no range to be read in a turn.
                self.tables.hold(hydration)
                ledger.keep_failure(hydration.id, None)
            if shares or hydration.failure is None:
                return LaneResult(outcome=Outcome.DONE, committed=0)
        if self._is_paused(clock) or (shares and self._is_opened_again(hydration)):
            return LaneResult(outcome=Outcome.PAUSED, committed=0)
        with self.tables.open(pair) as opened:
            self.tables.hold(hydration)
            if hydration.failure is not None:
                ledger.keep_failure(hydration.id, None)
            alone = plan is not None and plan.consistency in ALONE
            share = self.tables.declared.budget.credits if alone else None
            result, reminder = drain(opened, hydration, clock, share)
        self._paused = self._paused or result.outcome is Outcome.PAUSED
        if reminder is not None:
            self._reminders[pair] = reminder
        return result

    def _is_paused(self, clock: LaneClock) -> bool:
        """Whether the turn is over, and another one follows since a table got on that has ranges left.

        So some table gets on in each turn, and a table alone whose gate is closed is waited for as ever.
        """
        until = self.turn.until if self.turn is not None else None
        return self._paused and until is not None and clock.monotonic() >= until

    def _is_opened_again(self, hydration: Hydration) -> bool:
        """Whether a table that shares a log was whole when the turn began: its ranges are read in the next one."""
        return self.turn is not None and hydration.id not in self.turn.epochs

    def _cancel(self) -> None:
        self._over.set()
        for clock in [*self._clocks]:
            clock.end()

    def _count_tokens(self) -> int:
        """Return how many hydrate at once on the cluster, as of a moment ago."""
        read_at, tokens = self._tokens
        if time.monotonic() >= read_at + LIMIT_SECONDS or not read_at:
            found = self.tables.shared.ledger.get_shared(Shared.HYDRATIONS, self.tables.declared.spark_conn_id)
            tokens = HYDRATIONS_AT_ONCE if found is None else found
            self._tokens = (time.monotonic(), tokens)
        return tokens


def _least(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
