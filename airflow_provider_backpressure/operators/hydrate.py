"""The task that drains many ranges: a lane."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_provider_backpressure import openlineage, settings
from airflow_provider_backpressure.base_operator import TransformTask, airflow_errors, lane_name, may_retry
from airflow_provider_backpressure.core.admission.gate_watcher import Watch
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.execution.concurrent_hydrations import Finished
from airflow_provider_backpressure.core.execution.kept_snapshot import SNAPSHOTS, TOO_SHORT
from airflow_provider_backpressure.core.execution.lane_submission import LaneResult, Outcome
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.gate.task_activity import Step
from airflow_provider_backpressure.core.progress.notified_events import Kind, event
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from airflow_provider_backpressure.core.table_selection import placeholder
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration, PlanOutdated, QuarantineFull, SnapshotLost
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession, Taken
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.hooks.spark_and_yarn import memory_url
from airflow_provider_backpressure.openlineage import Lineage
from airflow_provider_backpressure.operators.failed_tables import check_failed
from airflow_provider_backpressure.operators.lane_progress import (
    ENDED,
    LaneClock,
    Listener,
    ProgressLog,
    Teller,
    as_listeners,
    start_line,
)
from airflow_provider_backpressure.operators.several_tables import (
    OBSERVED_AFTER,
    PlannedTables,
    TablePair,
    find_pairs,
    is_several,
    open_tables,
)
from airflow_provider_backpressure.operators.several_tables_lane import TableLane, Turn
from airflow_provider_backpressure.operators.shared_log_hydration import TableStream, as_stream
from airflow_provider_backpressure.operators.shared_log_lane import StreamLane
from airflow_provider_backpressure.operators.verify import as_verify
from airflow_provider_backpressure.triggers import AdmissionTrigger

ONE_TASK = "A snapshot lives in the one task that keeps it, so {} need consistency='static'."
IN_ORDER = "A log is replayed in its order, one window after another, so consistency='catch_up' goes without {}."


def check_one_task(consistency: Consistency, *, what: str) -> None:
    """Raise :class:`InvalidDeclaration` where ranges are to be shared by tasks that one task has to drain."""
    if consistency is Consistency.SNAPSHOT:
        raise InvalidDeclaration(ONE_TASK.format(what))
    if consistency is Consistency.CATCH_UP:
        raise InvalidDeclaration(IN_ORDER.format(what))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a lane drains one hydration."""

    clock: LaneClock
    share: int
    """Most ranges that it keeps in flight."""
    inline_wait: float = field(default_factory=settings.inline_wait)
    """Seconds to wait at a closed gate."""
    turn: Turn | None = None
    """Until when, where windows are replayed between ranges."""


class HydrateOperator(TransformTask):
    """Drains the planned ranges through the gate, several at once, until none is left.

    At a closed gate with nothing in flight it waits for a moment and then frees its worker slot until the gate
    opens. Retried or cleared, it first settles what its earlier try left in flight, and continues from the ledger.

    Under ``snapshot`` consistency it keeps the source's snapshot open and so stays in its slot. A retry cannot continue
    in a snapshot that is gone: it takes another one and brings what is committed to its moment, or where the plan does
    not allow that closes the plan, clears what that wrote, and reads from the beginning.

    Under ``catch_up`` it replays the source's log behind the ranges, until the target has caught up. Several tables of
    a PostgreSQL database or a MySQL server share one log: its windows follow the ranges of all of them.

    Of several tables it drains as many at once as the cluster's queue has tokens. A table that fails stops alone and
    fails the task at its end; a retry continues with what is open.

    :param lanes: how many such tasks share the hydration's credits
    :param lane_index: which of them this is, from 0; for ``expand``
    :param tables: of a source with several tables what was planned of them: ``plan.output["tables"]``
    :param verify: how the task that follows verifies. ``"full"`` under ``snapshot`` is this task's work too: once every
        range is committed it reads the source again in the snapshot that it keeps, and compares both
    :param on_event: notifiers of Airflow's, or callables that take a task's context, for what needs attention
    """

    template_fields: Collection[str] = (*TransformTask.template_fields, "tables")

    def __init__(
        self,
        *,
        lanes: int = 1,
        lane_index: int = 0,
        tables: Any = None,
        verify: str | bool = Verify.TARGET,
        on_event: Listener | Sequence[Listener] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.verify = as_verify(verify)
        if not 0 <= lane_index < lanes:
            raise InvalidDeclaration(f"A lane's index must be between 0 and {lanes - 1}, not {lane_index}.")
        self.lanes = lanes
        self.lane_index = lane_index
        self.on_event = as_listeners(on_event)
        self._clock: LaneClock | None = None
        self._parked: dict[str, float] = {}
        self._page: tuple[str | None] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Drain, or defer at a gate that stays closed. Returns how many ranges this task committed."""
        self._clock = LaneClock()
        if is_several(self.source):
            return self._drain_tables(context, PlannedTables.from_json(self.tables))
        with self.open_ports(context) as opened:
            hydration, plan = opened.hydration()
            if self.lanes > 1:
                check_one_task(plan.consistency, what="several lanes")
            self.take_turn(context, opened, hydration.id)
            result, remind_after = self._hydrate(context, opened, hydration, Pace(clock=self._clock, share=self._share))
        if result.outcome is Outcome.CLOSED:
            self.wait_deferred(
                hydration_id=hydration.id,
                budget=opened.budget,
                watch=Watch.GATE,
                reasons=result.decision.reasons if result.decision else (),
                remind_after=remind_after,
            )
        return {"hydration_id": hydration.id, "committed": result.committed}

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """See ``HydrationTask.resume``. What it has waited without a slot is time at the closed gate too."""
        self._parked = dict.fromkeys(event.get("hydration_ids", [""]), float(event.get("waited", 0.0)))
        return super().resume(context, event)

    @property
    def _share(self) -> int:
        return math.ceil(self.budget.credits / self.lanes)

    def _spark_page(self) -> str | None:
        """Return Spark's page, looked up once: each look at a connection is a request to Airflow."""
        if self._page is None:
            self._page = (memory_url(self.spark_conn_id),)
        return self._page[0]

    def _drain_tables(self, context: Context, planned: PlannedTables) -> dict[str, Any]:
        """Drain what was planned, as many hydrations at once as may be; one that fails or waits stops nobody else."""
        assert self._clock is not None
        with open_tables(self, context, retries=may_retry(context["ti"])) as tables:
            lane = TableLane(tables=tables, lanes=self.lanes, lane_index=self.lane_index, resumed=self._waited)
            lane.select(planned)
            stream = as_stream(tables, planned) if lane.has_name(planned.stream) else None
            log = stream.find_hydration() if stream is not None else None
            held = [*lane.hydrations.values(), *([log] if log else [])]
            tables.heard |= {found.id for found in held}
            tables.over = self.await_runs(held, context["ti"])
            found, waits, windows = self._drain_lane(context, lane, stream, planned)
            if not waits:
                total = len(planned.ids) + len(planned.failed)
                check_failed(found.failed, total=total, before={**planned.failed, **lane.failed})
        if waits:
            self.wait_deferred_for(waits)
        committed = sum(result.committed for result in found.done.values())
        return {"tables": len(found.done), "committed": committed + windows}

    def _drain_lane(
        self, context: Context, lane: TableLane, stream: TableStream | None, planned: PlannedTables
    ) -> tuple[Finished[TablePair, LaneResult], list[AdmissionTrigger], int]:
        """Return what became of the tables, what is to be waited for, and how many windows of their log went in."""
        own = self._clock
        assert own is not None

        def drain(
            opened: HydrationSession, hydration: Hydration, clock: LaneClock, share: int | None
        ) -> tuple[LaneResult, float | None]:
            pace = Pace(clock=clock, share=share or self._share, inline_wait=0.0, turn=lane.turn)
            return self._hydrate(context, opened, hydration, pace)

        if stream is None:
            found = lane.run(drain, clock=own)
            return found, lane.waits(found.waiting) if found.waiting else [], 0
        shared = StreamLane(lane=lane, stream=stream, planned=planned)
        pace = Pace(clock=own, share=self.budget.credits)
        found = shared.run(drain, lambda opened, hydration: self._hydrate(context, opened, hydration, pace), clock=own)
        return found, shared.list_waits(), shared.committed

    def _hydrate(
        self, context: Context, opened: HydrationSession, hydration: Hydration, pace: "Pace"
    ) -> tuple[LaneResult, float | None]:
        """Return what the lane did of one hydration, and the seconds until an event that lasts is due."""
        # A retry does not plan again, so it looks by itself whether the ledger was restored meanwhile.
        taken = opened.take_target()
        teller = self._teller(context, opened)
        # Events that became due while the task waited are reported at once; those of an earlier run are over.
        if parked := self._parked.pop(hydration.id, self._parked.pop("", 0.0)):
            teller.look(*opened.latest(hydration.id))
            times = {Stage.ADMIT: StageTime(backpressured=parked)}
            opened.ledger.record_flow(hydration.id, worker=lane_name(context), times=times)
        else:
            teller.begin(hydration.id)
        label = f"{opened.declaration.source.table}: " if is_several(self.source) else ""
        self.log.info("%s", start_line(opened, hydration, self._spark_page(), taken))
        progress = ProgressLog(ledger=opened.ledger, hydration_id=hydration.id, log=self.log, label=label)
        if label:
            progress.postpone()
        delay = OBSERVED_AFTER if label else 0.0
        with (
            self.report(context, opened, hydration.id, Step.RANGES, write=progress.write, delay=delay),
            opened.observation(hydration.id, tell=teller.look, delay=delay),
            notify_if_full(teller, hydration),
        ):
            result = self._follow(context, opened, progress, pace, taken)
        if result.outcome is Outcome.CLOSED:
            teller.look(*opened.latest(hydration.id))
        return result, teller.later

    def _teller(self, context: Context, opened: HydrationSession) -> Teller:
        return Teller(
            listeners=self.on_event,
            context=context,
            ledger=opened.ledger,
            closed_seconds=settings.gate_closed_seconds(),
            log=self.log,
        )

    def _follow(
        self, context: Context, opened: HydrationSession, progress: ProgressLog, pace: "Pace", taken: Taken | None
    ) -> LaneResult:
        """Return what the lane did of the plan, and of those that follow it in the same run."""
        committed, follows = 0, taken is None or taken.plan.consistency is Consistency.CATCH_UP
        while True:
            result = self._drain(context, opened, progress, pace, taken)
            taken = None
            progress.end(result)
            self._note(context, opened)
            committed += result.committed
            if result.outcome is not Outcome.DONE or not follows or not opened.follow():
                return replace(result, committed=committed)

    def _note(self, context: Context, opened: HydrationSession) -> None:
        """Keep what this task has moved, before the next plan resets the counts; nothing without OpenLineage."""
        if not openlineage.is_installed():
            return
        hydration, plan = opened.hydration()
        lane, before = lane_name(context), self.lineages.get(hydration.id)
        own = [row for row in opened.ledger.statistics(hydration.id) if row.worker_id == lane]
        self.lineages[hydration.id] = Lineage(
            plan=plan,
            rows=sum(row.messages_received for row in own) + ((before.rows or 0) if before else 0),
            bytes=sum(row.bytes_received for row in own) + ((before.bytes or 0) if before else 0),
        )

    def _drain(
        self, context: Context, opened: HydrationSession, progress: ProgressLog, pace: "Pace", taken: Taken | None
    ) -> LaneResult:
        """Return what the lane did; where the snapshot is lost another one is taken, a few times."""
        for left in reversed(range(SNAPSHOTS)):
            hydrator = opened.hydrator(
                lane=lane_name(context),
                share=pace.share,
                inline_wait=pace.inline_wait,
                until=pace.turn.until if pace.turn else None,
                clock=pace.clock,
                on_commit=progress.log_if_due,
                reads_again=self.verify is Verify.FULL,
                taken=taken,
            )
            taken = None
            if pace.turn:
                hydrator.plan = pace.turn.take(hydrator.hydration_id, hydrator.plan)
            try:
                return hydrator.run()
            except ENDED:
                hydrator.cancel()
                raise
            except SnapshotLost as error:
                if not left:
                    raise SnapshotLost(f"{error} {TOO_SHORT}") from error
                if hydrator.plan.survives and not isinstance(error, PlanOutdated):
                    self.log.warning("%s What is committed stays, and the lane continues in a new snapshot.", error)
                    continue
                opened.check_own_log(error)
                self.log.warning("%s The plan is closed and the source is read again from its beginning.", error)
                opened.close_plan(hydrator.plan)
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
            found = find_pairs(self.source, self.sink, endpoint(self.source.conn_id, *self.source.conn_types))
        self.log.info("%s tables are called %s.", len(found), self.source.tables)
        return [pair._asdict() for pair in found]
