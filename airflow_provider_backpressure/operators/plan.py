"""The task that plans: everything is checked and written down before the first row moves."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

from airflow.sdk import Context

from airflow_provider_backpressure import exceptions
from airflow_provider_backpressure.airflow_compat import AirflowSkipException
from airflow_provider_backpressure.base_operator import TransformTask, failure_of, may_retry
from airflow_provider_backpressure.core.config import Consistency, Mode, NewColumn, Refresh
from airflow_provider_backpressure.core.default_limits import MAX_MAPPED_TASKS, TABLES_PLANNED_AT_ONCE
from airflow_provider_backpressure.core.execution.concurrent_hydrations import WorkPool
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.gate.task_activity import Step
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration, Terminal
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession, SinkDeclaration, SourceDeclaration
from airflow_provider_backpressure.hooks.recorded_declaration import to_json
from airflow_provider_backpressure.operators.dag_checks import check_planned_once
from airflow_provider_backpressure.operators.failed_tables import check_failed
from airflow_provider_backpressure.operators.hydrate import check_one_task
from airflow_provider_backpressure.operators.moved_connections import find_moved, follow_connections
from airflow_provider_backpressure.operators.run_conf import ALLOW_DELETES, FORETELL, RESTART, SAME_ROWS, read_wish
from airflow_provider_backpressure.operators.several_tables import (
    KEY,
    OBSERVED_AFTER,
    PlannedTables,
    TablePair,
    TableSet,
    find_pairs,
    is_several,
    open_tables,
    parse_pairs,
    read_planner,
    run_of,
)
from airflow_provider_backpressure.operators.shared_log_hydration import TableStream, find_stream

OPEN = (RangeState.PLANNED, RangeState.ADMITTED, RangeState.FAILED)
DONE = (Verdict.UNCHANGED, Verdict.MOVED)
"""Verdicts that leave nothing to do."""
ONE_TABLE = "A task for each range goes with one table: give each table a hydrate() of its own, or leave it out."
READ_ONCE = "it is read once, and refresh='each_run' would read it again"


class PlanSnapshotOperator(TransformTask):
    """Plans a hydration, or finds the plan that is to be resumed, or skips where nothing is left to do.

    A run triggered with ``{"backpressure": "restart"}`` makes a new plan, once: clearing or retrying it resumes that
    plan. One triggered with ``{"backpressure": "plan"}`` writes down what a plan would be, for the page, and skips: no
    plan is made, and nothing is written into the target. ``{"backpressure": "allow_deletes"}`` lets a run under
    ``mirror`` delete any number of rows, of several tables those that were stopped for it.
    ``{"backpressure": "same_rows"}`` says that another database, which took the source's place, has all rows that were
    committed, so that increments continue.

    Of a source with several tables each is planned as a hydration of its own, several at once. Tables that cannot be
    planned fail the task at its end; the others are planned, and left alone by a retry. The tasks behind it get what
    was planned as ``tables=plan.output["tables"]``.

    Returns ``{"hydration_id", "plan_id", "ranges"}``, or with ``each_range`` the open ranges' numbers, for ``expand``;
    the ids are pushed under their own keys too.

    Where a source that was declared static holds another number of rows than was committed, the task warns and skips.

    :param mode: how rows enter the target: ``append``, ``upsert``, ``replace`` or ``mirror``
    :param consistency: what the ranges have in common, of what the source offers; its own default where not given
    :param on_new_column: what becomes of a column that was added to the source and may be NULL: ``stop`` or ``add``
    :param refresh: whether each run that finds everything committed reads the whole again (``each_run``) or not
        (``once``)
    :param each_range: return the ranges' numbers, at most 1,024, for one task each
    """

    def __init__(
        self,
        *,
        mode: str = Mode.APPEND,
        consistency: str | None = None,
        on_new_column: str = NewColumn.STOP,
        refresh: str | None = None,
        each_range: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.planned = _names(self)
        check_planned_once(self, self.planned)
        self.mode = as_mode(mode, self.sink)
        self.consistency = None if consistency is None else as_consistency(consistency, self.source.consistencies)
        self.on_new_column = as_new_column(on_new_column)
        wanted = self.consistency or Consistency(self.source.consistencies[0])
        self.refresh = as_refresh(refresh, continues=continues(self.source, wanted), mode=self.mode)
        self.each_range = each_range
        if each_range and is_several(self.source):
            raise InvalidDeclaration(ONE_TABLE)
        if each_range:
            # Otherwise the tasks of the ranges would be refused, when the plan is made and the first of them runs.
            check_one_task(wanted, what="a task for each range")

    def execute(self, context: Context) -> Any:
        """Plan."""
        if is_several(self.source):
            return self._plan_tables(context)
        with self.open_ports(context) as opened:
            if read_wish(context) == FORETELL:
                raise AirflowSkipException(f"This run only plans: {self._foretell(opened)}.")
            hydration = opened.planner().register()
            if hydration.plan is None and self._follow_connections(context, opened, hydration.id):
                hydration = opened.planner().register()
            self.take_turn(context, opened, hydration.id)
            planned = self._plan(context, opened, opened.ledger.hydration(hydration.id))
            ids = {"hydration_id": planned.hydration.id, "plan_id": planned.plan.plan_id}
            for key, value in ids.items():
                context["ti"].xcom_push(key, value)
            if planned.verdict in DONE:
                self._skip(planned)
            if self.each_range:
                return self._open_ranges(opened, planned)
            return {**ids, "ranges": planned.ranges}

    def _follow_connections(self, context: Context, opened: HydrationSession, new: str) -> bool:
        """Whether there was a hydration that the connections led to before: it has moved to where they lead by now.

        ``new``: the id of the one that was registered there, which is not needed then.
        """
        moved = find_moved(opened, opened.ledger.hydrations(owner=opened.declaration.owner))
        if moved is None:
            return False
        opened.ledger.forget(new)
        self.take_turn(context, opened, moved.id)
        follow_connections(opened, moved, restart=read_wish(context) == RESTART)
        return True

    def _plan(
        self,
        context: Context,
        opened: HydrationSession,
        hydration: Hydration,
        *,
        run: str = "",
        stream: str = "",
        again: bool = False,
    ) -> Planned:
        """Plan one hydration, as it was read since this run has it.

        ``run``: its name, where it plans several at once; of these only those may delete any number of rows that were
        stopped for it. ``stream``: id of the log that it shares, and ``again`` whether it lacks changes of that.
        """
        wish = read_wish(context)
        stopped = exceptions.ALLOW_DELETES in (hydration.failure or "")
        allowed = wish == ALLOW_DELETES and (not run or stopped)
        planner = replace(
            opened.planner(),
            run=run_of(context),
            allow_deletes=allowed,
            has_same_rows=wish == SAME_ROWS,
            stream=stream,
        )
        begun = time.monotonic()

        def write() -> None:
            seconds = time.monotonic() - begun
            self.log.info("Planning %s for %.0f s: catalogue and boundaries.", opened.sink.identity, seconds)

        delay = OBSERVED_AFTER if run else 0.0
        with self.report(context, opened, hydration.id, Step.PLANNING, write=write, delay=delay) as heartbeat:
            planned = planner.plan(restart=wish == RESTART, again=again, hydration=hydration)
        # Whether anything is to be done for a table that shares its log, the windows of that log say.
        done = not _is_work(planned)
        declared = replace(opened.declaration, run="" if done else run)
        opened.ledger.keep_declaration(planned.hydration.id, to_json(declared), activity=heartbeat.after)
        if planned.verdict is Verdict.RESUMED:
            opened.ledger.retry_failed(planned.plan.plan_id)
        if done:
            opened.ledger.let_go(planned.hydration.id, run=context["ti"].run_id)
        log = self.log.warning if planned.verdict is Verdict.MOVED else self.log.info
        log("Plan %s of %s %s: %s.", planned.plan.plan_id, opened.sink.identity, planned.verdict.value, planned.note)
        return planned

    def _plan_tables(self, context: Context) -> dict[str, Any]:
        """Plan every table that this run has not planned yet. The others are planned where some fail."""
        instance = context["ti"]
        with open_tables(self, context, retries=may_retry(instance)) as tables:
            source: Any = self.source
            every = find_pairs(source, self.sink, tables.shared.endpoints.get(source.conn_id))
            known = tables.find(every)
            restart = read_wish(context) == RESTART
            stream = None if read_wish(context) == FORETELL else find_stream(tables, every, known, restart=restart)
            log = stream.find_hydration() if stream is not None else None
            tables.over = self.await_runs([*known.values(), *([log] if log else [])], instance)
            lost: dict[TablePair, Exception] = {}
            mine = {pair: found for pair, found in known.items() if read_planner(found) == run_of(context)}
            kept = {
                pair: found.id
                for pair, found in mine.items()
                if found.failure is None and (found.holder is not None or tables.is_done(found))
            }
            if len(kept) == len(every) and not any(found.holder for found in mine.values()):
                # The run was cleared after all of it was done.
                kept = {}
            if stream is not None:
                lost = self._prepare(stream, restart=restart, run=run_of(context))
                # What lacks changes is planned again, also where this run has planned it before.
                kept = {pair: id_ for pair, id_ in kept.items() if pair not in stream.again}
            pool = WorkPool(
                work=lambda pair: self._plan_table(context, tables, pair, stream, known.get(pair)),
                most=lambda: TABLES_PLANNED_AT_ONCE,
                on_end=tables.report,
            )
            stuck = tables.check_gone(every)
            todo = [pair for pair in every if pair not in kept and pair not in lost]
            with tables.expect(todo):
                found = pool.run(todo)
            failed = {**found.failed, **stuck, **lost}
            shared = stream.pairs if stream is not None else ()
            ids = {**kept, **{pair: one.hydration.id for pair, one in found.done.items() if one and _is_work(one)}}
            if stream is not None and not self._plan_windows(stream, failed, may_retry(instance)):
                ids = {pair: id_ for pair, id_ in ids.items() if pair not in shared}
            result = PlannedTables(
                ids={pair: ids[pair] for pair in every if pair in ids and pair not in failed},
                failed={pair.table: failure_of(error) for pair, error in failed.items()},
                stream=stream.id if stream is not None else "",
                sharing=shared,
            )
            instance.xcom_push(KEY, result.to_json())
            planned = [one for pair, one in found.done.items() if one and pair in ids]
            facts = {
                "tables": len(every),
                "planned": len(planned),
                "ranges": sum(one.ranges for one in planned if one.verdict not in DONE),
                "up_to_date": len(found.done) - len(planned),
            }
            self.log.info("Of %s tables %s were planned by now: %s.", len(every), len(result.ids), facts)
            check_failed(failed, total=len(every) + len(stuck), before={})
            if not result.ids:
                raise AirflowSkipException(f"Nothing is left to do for {len(every)} tables; each has its line above.")
            return facts

    def _prepare(self, stream: TableStream, *, restart: bool, run: str) -> dict[TablePair, Exception]:
        """Let the source keep the log that tables share; an error of it is that of each of these tables."""
        try:
            stream.prepare(run=run, restart=restart)
        except BackpressureError as error:
            stream.keep_failure(error)
            return dict.fromkeys(stream.pairs, error)
        stream.keep_failure(None)
        for pair, why in stream.again.items():
            self.log.warning("%s is read again: %s", pair.table, why)
        return {}

    def _plan_windows(self, stream: TableStream, failed: dict[TablePair, Exception], retries: bool) -> bool:
        """Plan what the log is replayed for next; whether anything is to be done for the tables that share it.

        Nothing is planned while a retry may still plan a table: the windows would leave it out.
        """
        own = [failed[pair] for pair in stream.pairs if pair in failed]
        if retries and not all(isinstance(error, Terminal) for error in own):
            return True
        if len(own) == len(stream.pairs):
            return False
        try:
            active = stream.plan_next()
        except BackpressureError as error:
            stream.keep_failure(error)
            failed.update({pair: error for pair in stream.pairs if pair not in failed})
            return False
        failed.update({pair: error for pair, error in stream.left_out.items() if pair not in failed})
        if not active:
            stream.let_go()
        return active

    def _plan_table(
        self,
        context: Context,
        tables: TableSet,
        pair: TablePair,
        stream: TableStream | None,
        before: Hydration | None,
    ) -> Planned | None:
        """Plan one of the tables; ``None`` where the run only shows what a plan would be. ``before``: as it was."""
        with tables.open(pair) as opened:
            if read_wish(context) == FORETELL:
                self.log.info("%s: this run only plans: %s.", pair.table, self._foretell(opened))
                return None
            run = context["ti"].run_id
            if before is not None and before.plan is not None and (stream is None or before.plan.stream != stream.id):
                # The others have moved with the log that they share.
                follow_connections(opened, before, restart=read_wish(context) == RESTART)
            hydration = opened.planner().register(run=run)
            tables.hold(hydration)
            if hydration.holder != run:
                hydration = opened.ledger.hydration(hydration.id)
            shares = stream is not None and pair in stream.pairs
            planned = self._plan(
                context,
                opened,
                hydration,
                run=run_of(context),
                stream=stream.id if stream is not None and shares else "",
                again=stream is not None and pair in stream.again,
            )
            if hydration.failure is not None:
                opened.ledger.keep_failure(hydration.id, None)
            return planned

    def _foretell(self, opened: HydrationSession) -> dict[str, Any]:
        """Write down what a plan would be. It takes no turn, and leaves a hydration that is known as it is."""
        planner = opened.planner()
        preview = planner.preview()
        facts = preview.to_json(target=opened.sink.identity, mode=self.mode, credits=self.budget.credits)
        known = opened.find()
        hydration = known if known and known.owner == planner.owner else planner.register()
        kept = {**facts, "at": datetime.now(UTC).isoformat()}
        opened.ledger.keep_preview(hydration.id, json.dumps(kept))
        return facts

    def _skip(self, planned: Planned) -> NoReturn:
        once = self.refresh is Refresh.ONCE and not continues(self.source, planned.plan.consistency)
        raise AirflowSkipException(f"{planned.note}; {READ_ONCE}" if once else planned.note)

    def _open_ranges(self, opened: HydrationSession, planned: Planned) -> list[int]:
        found = opened.ledger.ranges(planned.plan.plan_id, states=OPEN, limit=MAX_MAPPED_TASKS + 1)
        if len(found) > MAX_MAPPED_TASKS:
            raise InvalidDeclaration(
                f"More than {MAX_MAPPED_TASKS:,} ranges are open, too many for one task each: use lanes instead "
                "(task_per_range=False), which need no task per range, or larger ranges."
            )
        return [record.seq for record in found]


def _names(task: PlanSnapshotOperator) -> set[tuple[object, ...]]:
    """Return what each hydration that a task plans is known by; a pattern goes by itself."""
    source, sink = task.source, task.sink
    one = TablePair(getattr(source, "tables", "") or source.table, sink.table)
    pairs = parse_pairs(source, sink) or [one]
    # What is mapped is known to a run only.
    known = [pair for pair in pairs if all(isinstance(name, str) for name in pair)]
    return {(source.conn_id, table, type(sink), sink.conn_id, target) for table, target in known}


def _is_work(planned: Planned) -> bool:
    """Whether a table stays with its run: something is to be done for it, or its log may have changes for it."""
    return planned.verdict not in DONE or bool(planned.plan.stream)


def as_mode(mode: str, sink: SinkDeclaration) -> Mode:
    """Return the mode of that name; :class:`InvalidDeclaration` lists those that the sink has."""
    if mode not in sink.modes:
        *others, last = sink.modes
        offered = f"one of {', '.join(sink.modes)}" if others else repr(str(last))
        raise InvalidDeclaration(f"mode must be {offered} for {type(sink).__name__}, not {mode!r}.")
    return Mode(mode)


def as_new_column(policy: str) -> NewColumn:
    """Return the policy of that name; :class:`InvalidDeclaration` lists those there are."""
    try:
        return NewColumn(policy)
    except ValueError as error:
        raise InvalidDeclaration(f"on_new_column must be one of {', '.join(NewColumn)}, not {policy!r}.") from error


def continues(source: SourceDeclaration, consistency: str | None) -> bool:
    """Whether later runs read what is new: from a log, or above the value committed last."""
    by_log = consistency in (Consistency.CATCH_UP, Consistency.OFFSETS)
    return by_log or getattr(source, "increment_column", None) is not None


def as_refresh(refresh: str | None, *, continues: bool, mode: Mode) -> Refresh:
    """Return the refresh of that name; :class:`InvalidDeclaration` lists those there are, and says where none fits."""
    try:
        wanted = Refresh(refresh or (Refresh.EACH_RUN if mode is Mode.MIRROR else Refresh.ONCE))
    except ValueError as error:
        raise InvalidDeclaration(f"refresh must be one of {', '.join(Refresh)}, not {refresh!r}.") from error
    if mode is Mode.MIRROR and (continues or wanted is Refresh.ONCE):
        raise InvalidDeclaration(
            "mode='mirror' compares the whole table in each run: leave refresh='once', increment_column= and "
            "consistency='catch_up' out, and use mode='upsert' for a topic."
        )
    if wanted is Refresh.EACH_RUN and continues:
        raise InvalidDeclaration(
            "refresh='each_run' reads the whole source again, but later runs of this one read only what is new: "
            "leave refresh out, or read a table without increment_column= and consistency='catch_up'."
        )
    if wanted is Refresh.EACH_RUN and mode is Mode.APPEND:
        raise InvalidDeclaration(
            "refresh='each_run' with mode='append' would add every row again: use mode='replace', 'upsert' or 'mirror'."
        )
    return wanted


def as_consistency(consistency: str, offered: tuple[str, ...]) -> Consistency:
    """Return the consistency of that name; :class:`InvalidDeclaration` lists those that the source offers."""
    if consistency not in offered:
        raise InvalidDeclaration(f"consistency must be one of {', '.join(offered)}, not {consistency!r}.")
    return Consistency(consistency)
