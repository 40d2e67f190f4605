"""The task that plans: everything is checked and written down before the first row moves."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

from airflow.sdk import Context

from airflow_provider_backpressure.airflow_compat import AirflowSkipException
from airflow_provider_backpressure.base_operator import TransformTask
from airflow_provider_backpressure.core.config import Consistency, Mode, NewColumn, Refresh
from airflow_provider_backpressure.core.planning.results import Planned, Verdict
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession, SourceDeclaration
from airflow_provider_backpressure.hooks.recorded_declaration import to_json
from airflow_provider_backpressure.operators.hydrate import check_one_task

MAX_TASKS = 1024
"""Most ranges that become tasks; Airflow's own limit of a mapped task."""
OPEN = (RangeState.PLANNED, RangeState.ADMITTED, RangeState.FAILED)
RESTART, FORETELL, ALLOW_DELETES = "restart", "plan", "allow_deletes"
"""What a run may be triggered for by its ``backpressure``."""
READ_ONCE = "it is read once, and refresh='each_run' would read it again"


class PlanSnapshotOperator(TransformTask):
    """Plans a hydration, or finds the plan that is to be resumed, or skips where nothing is left to do.

    A run triggered with ``{"backpressure": "restart"}`` makes a new plan, once: clearing or retrying it resumes that
    plan. One triggered with ``{"backpressure": "plan"}`` writes down what a plan would be, for the page, and skips: no
    plan is made, and nothing is written into the target. ``{"backpressure": "allow_deletes"}`` lets a run under
    ``mirror`` delete any number of rows.

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
        self._check_alone()
        self.mode = as_mode(mode)
        self.consistency = None if consistency is None else as_consistency(consistency, self.source.consistencies)
        self.on_new_column = as_new_column(on_new_column)
        wanted = self.consistency or Consistency(self.source.consistencies[0])
        self.refresh = as_refresh(refresh, continues=continues(self.source, wanted), mode=self.mode)
        self.each_range = each_range
        if each_range:
            # Otherwise the tasks of the ranges would be refused, when the plan is made and the first of them runs.
            check_one_task(wanted, what="a task for each range")

    def _check_alone(self) -> None:
        """Refuse a second plan of one hydration: both would take the target from each other."""
        tasks, mine = self.dag.tasks if self.has_dag() else (), _names(self)  # type: ignore[no-untyped-call]
        for other in tasks:
            if isinstance(other, PlanSnapshotOperator) and other is not self and _names(other) == mine:
                raise InvalidDeclaration(
                    f"DAG {self.dag_id!r} hydrates {self.sink.table} from {self.source.table} in {other.task_id} "
                    "already: leave one of them out."
                )

    def execute(self, context: Context) -> Any:
        """Plan."""
        with self.open_ports(context) as opened:
            planner, wish = replace(opened.planner(), run=_run(context)), _wish(context)
            if wish == FORETELL:
                self._foretell(opened)
            hydration = planner.register()
            self.take_turn(context, opened, hydration.id)
            planner = replace(planner, allow_deletes=wish == ALLOW_DELETES)
            planned = planner.plan(restart=wish == RESTART)
            opened.ledger.keep_declaration(hydration.id, to_json(opened.declaration))
            if planned.verdict is Verdict.RESUMED:
                opened.ledger.retry_failed(planned.plan.plan_id)
            ids = {"hydration_id": planned.hydration.id, "plan_id": planned.plan.plan_id}
            for key, value in ids.items():
                context["ti"].xcom_push(key, value)
            if planned.verdict in (Verdict.UNCHANGED, Verdict.MOVED):
                opened.ledger.let_go(hydration.id, run=context["ti"].run_id)
            self._tell(planned)
            if self.each_range:
                return self._open_ranges(opened, planned)
            return {**ids, "ranges": planned.ranges}

    def _foretell(self, opened: HydrationSession) -> NoReturn:
        """Write down what a plan would be. It takes no turn, and leaves a hydration that is known as it is."""
        planner = opened.planner()
        preview = planner.preview()
        facts = preview.to_json(target=opened.sink.identity, mode=self.mode, credits=self.budget.credits)
        known = opened.find()
        hydration = known if known and known.owner == planner.owner else planner.register()
        kept = {**facts, "at": datetime.now(UTC).isoformat()}
        opened.ledger.keep_preview(hydration.id, json.dumps(kept))
        raise AirflowSkipException(f"This run only plans: {facts}.")

    def _tell(self, planned: Planned) -> None:
        if planned.verdict is Verdict.MOVED:
            self.log.warning("%s", planned.note)
        if planned.verdict in (Verdict.UNCHANGED, Verdict.MOVED):
            once = self.refresh is Refresh.ONCE and not continues(self.source, planned.plan.consistency)
            raise AirflowSkipException(f"{planned.note}; {READ_ONCE}" if once else planned.note)
        self.log.info("Plan %s %s: %s.", planned.plan.plan_id, planned.verdict.value, planned.note)

    def _open_ranges(self, opened: HydrationSession, planned: Planned) -> list[int]:
        found = opened.ledger.ranges(planned.plan.plan_id, states=OPEN, limit=MAX_TASKS + 1)
        if len(found) > MAX_TASKS:
            raise InvalidDeclaration(
                f"More than {MAX_TASKS:,} ranges are open, too many for one task each: use lanes instead "
                "(task_per_range=False), which need no task per range, or larger ranges."
            )
        return [record.seq for record in found]


def _names(task: PlanSnapshotOperator) -> tuple[object, ...]:
    return task.source.conn_id, task.source.table, type(task.sink), task.sink.conn_id, task.sink.table


def _run(context: Context) -> str:
    """Return the name of the run, which no other run has."""
    return f"{context['ti'].dag_id}/{context['ti'].run_id}"


def _wish(context: Context) -> str | None:
    """Return what the run was triggered for, beyond continuing."""
    wish = (context["dag_run"].conf or {}).get("backpressure")
    if wish not in (None, RESTART, FORETELL, ALLOW_DELETES):
        raise InvalidDeclaration(
            f'The run\'s "backpressure" may only be "{RESTART}", "{FORETELL}" or "{ALLOW_DELETES}", not {wish!r}.'
        )
    return wish


def as_mode(mode: str) -> Mode:
    """Return the mode of that name; :class:`InvalidDeclaration` lists those there are."""
    try:
        return Mode(mode)
    except ValueError as error:
        raise InvalidDeclaration(f"mode must be one of {', '.join(Mode)}, not {mode!r}.") from error


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
