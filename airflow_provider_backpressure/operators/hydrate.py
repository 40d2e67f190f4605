"""The task that drains many ranges: a lane."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_provider_backpressure import openlineage, settings
from airflow_provider_backpressure.base_operator import TransformTask, airflow_errors, lane_name
from airflow_provider_backpressure.connectors.postgres.identifiers import quote_if_needed
from airflow_provider_backpressure.core.admission.watcher import Watch
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.execution.lane_result import LaneResult, Outcome
from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.progress.alerts import Kind, event
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from airflow_provider_backpressure.core.table_selection import TableName, in_files, placeholder, targets
from airflow_provider_backpressure.exceptions import InvalidDeclaration, QuarantineFull, SnapshotLost, SourceRefused
from airflow_provider_backpressure.hooks.endpoints import endpoint
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.openlineage import Lineage
from airflow_provider_backpressure.operators.lane_progress import (
    ENDED,
    LaneClock,
    Listener,
    ProgressLog,
    Teller,
    as_listeners,
)

SNAPSHOTS = 3
"""How many snapshots one try of the task may take, one after the other."""
ONE_TASK = "A snapshot lives in the one task that keeps it, so {} need consistency='static'."
IN_ORDER = "A log is replayed in its order, one window after another, so consistency='catch_up' goes without {}."


def check_one_task(consistency: Consistency, *, what: str) -> None:
    """Raise :class:`InvalidDeclaration` where ranges are to be shared by tasks that one task has to drain."""
    if consistency is Consistency.SNAPSHOT:
        raise InvalidDeclaration(ONE_TASK.format(what))
    if consistency is Consistency.CATCH_UP:
        raise InvalidDeclaration(IN_ORDER.format(what))


class HydrateOperator(TransformTask):
    """Drains the planned ranges through the gate, several at once, until none is left.

    At a closed gate with nothing in flight it waits for a moment and then frees its worker slot until the gate
    opens. Retried or cleared, it first settles what its earlier try left in flight, and continues from the ledger.

    Under ``snapshot`` consistency it keeps the source's snapshot open and so stays in its slot; a retry cannot continue
    in a snapshot that is gone, so it closes the plan, clears what that wrote, and reads from the beginning.

    Under ``catch_up`` it replays the source's log behind the ranges, until the target has caught up.

    :param lanes: how many such tasks share the hydration's credits
    :param lane_index: which of them this is, from 0; for ``expand``
    :param on_event: notifiers of Airflow's, or callables that take a task's context, for what needs attention
    """

    def __init__(
        self,
        *,
        lanes: int = 1,
        lane_index: int = 0,
        on_event: Listener | Sequence[Listener] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 <= lane_index < lanes:
            raise InvalidDeclaration(f"A lane's index must be between 0 and {lanes - 1}, not {lane_index}.")
        self.lanes = lanes
        self.lane_index = lane_index
        self.on_event = as_listeners(on_event)
        self._clock: LaneClock | None = None
        self._parked = 0.0

    def execute(self, context: Context) -> dict[str, Any]:
        """Drain, or defer at a gate that stays closed. Returns how many ranges this task committed."""
        self._clock = LaneClock()
        with self.open_ports(context) as opened:
            hydration, plan = opened.hydration()
            if self.lanes > 1:
                check_one_task(plan.consistency, what="several lanes")
            self.take_turn(context, opened, hydration.id)
            # A retry does not plan again, so it looks by itself whether the ledger was restored meanwhile.
            opened.follow_sink()
            opened.take_target()
            teller = self._teller(context, opened)
            # Events that became due while the task waited are reported at once; those of an earlier run are over.
            if self._parked:
                teller.look(*opened.latest(hydration.id))
            else:
                teller.begin(hydration.id)
            self._account(context, opened, hydration.id)
            with opened.observation(hydration.id, tell=teller.look), notify_if_full(teller, hydration):
                result = self._follow(context, opened, hydration.id, plan.unit)
            if result.outcome is Outcome.CLOSED:
                teller.look(*opened.latest(hydration.id))
        if result.outcome is Outcome.CLOSED:
            self.wait_deferred(
                hydration_id=hydration.id,
                budget=opened.budget,
                watch=Watch.GATE,
                reasons=result.decision.reasons if result.decision else (),
                remind_after=teller.later,
            )
        return {"hydration_id": hydration.id, "committed": result.committed}

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """See ``HydrationTask.resume``. What it has waited without a slot is time at the closed gate too."""
        self._parked = float(event.get("waited", 0.0))
        return super().resume(context, event)

    def _teller(self, context: Context, opened: HydrationSession) -> Teller:
        return Teller(
            listeners=self.on_event,
            context=context,
            ledger=opened.ledger,
            closed_seconds=settings.gate_closed_seconds(),
            log=self.log,
        )

    def _account(self, context: Context, opened: HydrationSession, hydration_id: str) -> None:
        if self._parked:
            times = {Stage.ADMIT: StageTime(backpressured=self._parked)}
            opened.ledger.record_flow(hydration_id, worker=lane_name(context), times=times)
            self._parked = 0.0

    def _follow(self, context: Context, opened: HydrationSession, hydration_id: str, unit: str) -> LaneResult:
        """Return what the lane did of the plan, and of those that follow it in the same run."""
        committed = 0
        while True:
            progress = ProgressLog(ledger=opened.ledger, hydration_id=hydration_id, log=self.log, unit=unit)
            result = self._drain(context, opened, progress)
            progress.write()
            self._note(context, opened)
            committed += result.committed
            if result.outcome is not Outcome.DONE or not opened.planner().follow():
                return replace(result, committed=committed)
            unit = opened.hydration()[1].unit

    def _note(self, context: Context, opened: HydrationSession) -> None:
        """Keep what this task has moved, before the next plan resets the counts; nothing without OpenLineage."""
        if not openlineage.is_installed():
            return
        hydration, plan = opened.hydration()
        lane, before = lane_name(context), self.lineage
        own = [row for row in opened.ledger.statistics(hydration.id) if row.worker_id == lane]
        self.lineage = Lineage(
            plan=plan,
            rows=sum(row.messages_received for row in own) + ((before.rows or 0) if before else 0),
            bytes=sum(row.bytes_received for row in own) + ((before.bytes or 0) if before else 0),
        )

    def _drain(self, context: Context, opened: HydrationSession, progress: ProgressLog) -> LaneResult:
        """Return what the lane did; a plan whose snapshot is lost is closed and made again, a few times."""
        for left in reversed(range(SNAPSHOTS)):
            hydrator = opened.hydrator(
                lane=lane_name(context),
                share=math.ceil(self.budget.credits / self.lanes),
                inline_wait=settings.inline_wait(),
                clock=self._clock,
                on_commit=progress.log_if_due,
            )
            try:
                return hydrator.run()
            except ENDED:
                hydrator.cancel()
                raise
            except SnapshotLost as error:
                if not left:
                    raise
                self.log.warning("%s The plan is closed and the source is read again from its beginning.", error)
                opened.close_plan()
        raise AssertionError("the last one returns or raises")

    def on_kill(self) -> None:
        """Let the lane end its jobs and give their credits back; called within a signal handler."""
        if self._clock is not None:
            self._clock.end()


@contextmanager
def notify_if_full(teller: Teller, hydration: Hydration) -> Iterator[None]:
    """Report that no more rows may be quarantined, as that error leaves the task."""
    try:
        yield
    except QuarantineFull as error:
        teller.tell(event(Kind.QUARANTINE_FULL, str(error), hydration))
        raise


def each_target(source: Any, sink: Any, tables: list[TableName]) -> dict[str, str]:
    """Return each table's target by the table, as the sink spells it."""
    spell = quote_if_needed if getattr(sink, "in_sql", False) else in_files
    return targets(tables, getattr(sink, placeholder(sink)), spell=spell)


class ListTablesOperator(BaseOperator):
    """Looks up the tables that a source's pattern means; returns ``[{"table", "target"}, …]`` for ``expand_kwargs``.

    A pattern that means no table fails: it is more likely mistyped than meant.

    :param source: a source with ``tables="schema.pattern*"``
    :param sink: its target, with ``{table}`` in its name
    """

    template_fields: Collection[str] = ()

    def __init__(self, *, source: Any, sink: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        placeholder(sink)
        self.source = source
        self.sink = sink

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Look them up."""
        with airflow_errors():
            found = self.source.found(endpoint(self.source.conn_id, *self.source.conn_types))
            if not found:
                raise SourceRefused(
                    f"No table of {self.source.conn_id} that its login may read is called {self.source.tables}."
                )
            into = each_target(self.source, self.sink, found)
        self.log.info("%s tables are called %s.", len(into), self.source.tables)
        return [{"table": table, "target": target} for table, target in into.items()]
