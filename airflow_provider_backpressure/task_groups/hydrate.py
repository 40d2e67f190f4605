"""``hydrate``: the whole of a hydration as one task group."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from inspect import signature
from typing import Any

from airflow.sdk import TaskGroup, TriggerRule, task_group

from airflow_provider_backpressure.base_operator import DEFAULT_ARGS, HydrationTask
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.declaration_checks import check_kind, check_name
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.core.table_selection import placeholder
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.backpressure import DEFAULT_CONN_ID
from airflow_provider_backpressure.hooks.hydration_session import SinkDeclaration, SourceDeclaration
from airflow_provider_backpressure.operators import (
    HydrateOperator,
    PlanSnapshotOperator,
    SubmitRangeOperator,
    VerifyHydrationOperator,
)
from airflow_provider_backpressure.operators.dag_checks import warn_if_read_once
from airflow_provider_backpressure.operators.hydrate import check_one_task
from airflow_provider_backpressure.operators.lane_progress import Listener, as_listeners
from airflow_provider_backpressure.operators.plan import ONE_TABLE, as_consistency, continues
from airflow_provider_backpressure.operators.several_tables import KEY, is_several, parse_pairs
from airflow_provider_backpressure.operators.verify import as_verify
from airflow_provider_backpressure.sensors import ExecutorMemorySensor, HydrationQueueSensor, SinkCommitSensor


@dataclass(frozen=True, kw_only=True)
class HydrationOptions:
    """What :func:`hydrate` was given, but for the group's name. It is passed whole, so that no option is lost."""

    source: Any
    sink: Any
    spark_conn_id: str
    budget: Budget | None
    consistency: str | None
    mode: str
    transform: str | Transform | Callable[..., Any] | None
    on_new_column: str
    refresh: str | None
    verify: str | bool
    lanes: int
    task_per_range: bool
    on_event: Listener | Sequence[Listener] | None
    backpressure_conn_id: str

    def select(self, operator: type) -> dict[str, Any]:
        """Return the options that an operator takes."""
        return {name: getattr(self, name) for name in _taken(operator)}

    def build(self, operator: type, task_id: str, **more: Any) -> Any:
        """Return a task of the operator, with the options that it takes and with ``more``."""
        return operator(task_id=task_id, **self.select(operator), **more)


@cache
def _taken(operator: type) -> list[str]:
    own = [each for each in operator.__mro__ if issubclass(each, HydrationTask)]
    taken = {name for each in own for name in signature(each.__init__).parameters}
    return [field.name for field in fields(HydrationOptions) if field.name in taken]


def hydrate_tables(options: HydrationOptions, group_id: str | None) -> TaskGroup:
    """Return the group of several tables: as many tasks as for one, however many tables there are."""
    if options.task_per_range:
        raise InvalidDeclaration(ONE_TABLE)
    parse_pairs(options.source, options.sink)
    placeholder(options.sink)
    options = complete(options)
    with TaskGroup(group_id or "hydrate_tables", add_suffix_on_collision=group_id is None) as group:
        group.default_args = {**DEFAULT_ARGS, **_chosen(group)}
        _warn_if_read_once(options, group)
        plan = options.build(PlanSnapshotOperator, "plan_snapshot")
        # What was planned is drained though other tables could not be; where nothing is to be done, plan skips.
        more = {"tables": plan.output[KEY], "trigger_rule": TriggerRule.NONE_SKIPPED}
        ranges = _lanes(options, **more)
        done = options.build(VerifyHydrationOperator, "verify_hydration", **more)
        plan >> ranges >> done
    return group


ONE_BY_ONE = (
    "Rows of a topic are upserted in its order, by one lane: leave out lanes and task_per_range, or use mode='append'."
)
BY_KEY = "consistency='catch_up' changes and deletes rows by their key: it needs mode='upsert', and no transform."
NOT_FOLLOWED = (
    "verify='full' compares tables that are followed by consistency='catch_up' from PostgreSQL into PostgreSQL only: "
    "use verify='target'."
)
INCREMENTS_MOVE = (
    "verify='full' reads the rows of an increment again when the source may have moved on: use verify='target', or "
    "consistency='static' for a table in which rows only come."
)


def hydrate(
    source: SourceDeclaration,
    sink: SinkDeclaration,
    *,
    spark_conn_id: str,
    budget: Budget | None = None,
    consistency: str | None = None,
    mode: str = "append",
    transform: str | Transform | Callable[..., Any] | None = None,
    on_new_column: str = "stop",
    refresh: str | None = None,
    verify: str | bool = Verify.TARGET,
    lanes: int = 1,
    task_per_range: bool = False,
    on_event: Listener | Sequence[Listener] | None = None,
    backpressure_conn_id: str = DEFAULT_CONN_ID,
    group_id: str | None = None,
) -> TaskGroup:
    """Hydrate a sink from a source: plan, drain the ranges, verify. Every argument is checked at parse.

    :param source: what is read, for example ``PostgresSource(conn_id="shop_db", table="public.orders")``; with
        ``tables`` a hydration for each of them
    :param sink: what is written, for example ``PostgresSink(conn_id="warehouse", table="raw.orders")``
    :param spark_conn_id: Airflow connection of type ``spark_connect`` (ranges are jobs on one warm session) or
        ``spark`` (each range is an application by spark-submit, and is planned thirty times as large)
    :param budget: what the hydration may take
    :param consistency: ``snapshot`` (a PostgreSQL source's default): every range as the table was at one moment, from
        one task that keeps the moment; ``static``: the table stands still while it is read; ``catch_up``: each range
        at its own time, then what the source's log says was changed, also in later runs
    :param mode: ``append``, ``upsert``, ``replace``, or ``mirror``, which makes the target equal to the source in each
        run and writes only the rows that differ
    :param transform: a SELECT over the view ``source``, or a callable that takes and gives a DataFrame
    :param on_new_column: what becomes of a column that was added to the source and may be NULL: ``stop``, or ``add`` it
        to the target with the next plan
    :param refresh: what a run does that finds everything committed: ``once``, the default, nothing; ``each_run`` reads
        the whole again, under ``replace`` or ``upsert``. A run that finds ranges open ends those instead
    :param verify: ``target`` (``True``), ``full``, or ``none`` (``False``)
    :param lanes: tasks that drain the ranges; one is enough for all but the widest clusters
    :param task_per_range: one task for each range, after two sensors; for at most 1,024 ranges
    :param on_event: notifiers of Airflow's, or callables that take a task's context, which the lanes call for what
        needs attention: a gate closed for too long, not keeping up, data at risk, a full quarantine
    :param backpressure_conn_id: Airflow connection of the ledger
    :param group_id: id of the task group; ``hydrate_<table>`` where it is not given
    """
    check_sides(source, sink, spark_conn_id, budget)
    given = dict(locals())
    del given["group_id"]
    options = HydrationOptions(**given)
    return hydrate_tables(options, group_id) if getattr(source, "tables", ()) else hydrate_table(options, group_id)


def check_sides(source: Any, sink: Any, spark_conn_id: Any, budget: Any) -> None:
    """Raise :class:`InvalidDeclaration` where an argument is of another kind, as where the two sides are swapped."""
    for name, side, is_kind in (
        ("source", source, hasattr(source, "consistencies")),
        ("sink", sink, hasattr(sink, "conn_types") and hasattr(sink, "key")),
    ):
        if not is_kind or isinstance(side, type):
            raise InvalidDeclaration(
                f"hydrate's {name} must be a {name}, as {EXAMPLES[name]}, not {type(side).__name__}."
            )
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidDeclaration(f"hydrate's budget must be a Budget, as Budget(credits=4), not {budget!r}.")
    check_kind("hydrate's spark_conn_id", spark_conn_id, str)
    check_name("hydrate's spark_conn_id", spark_conn_id)


EXAMPLES = {
    "source": 'PostgresSource(conn_id="shop", table="public.orders")',
    "sink": 'PostgresSink(conn_id="warehouse", table="raw.orders")',
}


def complete(options: HydrationOptions) -> HydrationOptions:
    """Return the options with their defaults; :class:`InvalidDeclaration` for those that do not go together."""
    offered = options.source.consistencies
    consistency = as_consistency(options.consistency or offered[0], offered)
    listeners = as_listeners(options.on_event)
    options = replace(options, budget=options.budget or Budget(), consistency=consistency, on_event=listeners)
    _check(options)
    return options


def hydrate_table(options: HydrationOptions, group_id: str | None) -> TaskGroup:
    """Return the group of one table; :class:`InvalidDeclaration` for options that do not go together."""
    options = complete(options)
    with TaskGroup(group_id or _group_id(options.source), add_suffix_on_collision=group_id is None) as group:
        group.default_args = {**DEFAULT_ARGS, **_chosen(group)}
        _warn_if_read_once(options, group)
        plan = options.build(PlanSnapshotOperator, "plan_snapshot", each_range=options.task_per_range)
        turn = options.build(HydrationQueueSensor, "wait_for_turn")
        if options.task_per_range:
            ranges: Any = _each_range(options).expand(seq=plan.output)
        else:
            ranges = _lanes(options)
        # An empty table has no range tasks, and their skip must not skip this one; the plan's own skip must.
        rule = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
        done = options.build(VerifyHydrationOperator, "verify_hydration", trigger_rule=rule)
        plan >> turn >> ranges
        [plan, ranges] >> done
    return group


def _lanes(options: HydrationOptions, **more: Any) -> Any:
    if options.lanes == 1:
        return options.build(HydrateOperator, "hydrate_ranges", **more)
    lane = HydrateOperator.partial(task_id="hydrate_ranges", **options.select(HydrateOperator), **more)
    return lane.expand(lane_index=list(range(options.lanes)))


def _each_range(options: HydrationOptions) -> Any:
    @task_group(group_id="hydrate_ranges")
    def hydrate_ranges(seq: int) -> None:
        memory = options.build(ExecutorMemorySensor, "executor_memory")
        commit = options.build(SinkCommitSensor, "sink_commit", seq=seq)
        memory >> commit >> options.build(SubmitRangeOperator, "submit_range", seq=seq)

    return hydrate_ranges


def _warn_if_read_once(options: HydrationOptions, group: TaskGroup) -> None:
    chosen = options.refresh is not None or options.mode == Mode.MIRROR
    if not chosen and not continues(options.source, options.consistency):
        warn_if_read_once(group.dag, stacklevel=4)


def _check(options: HydrationOptions) -> None:
    lanes, most, consistency = options.lanes, (options.budget or Budget()).credits, options.consistency
    if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= most:
        raise InvalidDeclaration(
            f"lanes must be a whole number from 1 to the budget's credits ({most}), not {lanes!r}."
        )
    if options.task_per_range and lanes > 1:
        raise InvalidDeclaration("task_per_range=True has no lanes: give either, not both.")
    if consistency in (Consistency.SNAPSHOT, Consistency.CATCH_UP):
        if options.task_per_range or (lanes != 1 and not is_several(options.source)):
            check_one_task(Consistency(consistency), what="several lanes or a task per range")
        if as_verify(options.verify) is Verify.FULL:
            _check_full(options.source, Consistency(consistency))
    upserts = options.mode == Mode.UPSERT
    if consistency is Consistency.CATCH_UP and (not upserts or options.transform is not None):
        raise InvalidDeclaration(BY_KEY)
    if consistency is Consistency.OFFSETS and upserts and (options.task_per_range or lanes > 1):
        raise InvalidDeclaration(ONE_BY_ONE)
    if consistency is Consistency.OFFSETS and hasattr(options.source, "check_use"):
        verified = as_verify(options.verify) is not Verify.NONE
        finds_rows = verified and not upserts and not getattr(options.sink, "keeps_files", False)
        options.source.check_use(
            upserted_by=(options.sink.key or ()) if upserts else None,
            finds_rows=finds_rows,
            takes_parts=getattr(options.sink, "takes_parts", False),
            transformed=options.transform is not None,
        )
    if options.on_event and options.task_per_range:
        raise InvalidDeclaration("Events are reported by lanes: on_event has no use with task_per_range=True.")


def _check_full(source: Any, consistency: Consistency) -> None:
    """Raise :class:`InvalidDeclaration` where a source that changes cannot be compared with its target in full."""
    if consistency is Consistency.CATCH_UP:
        if not getattr(source, "compares_followed", False):
            raise InvalidDeclaration(NOT_FOLLOWED)
    elif getattr(source, "increment_column", None) is not None:
        raise InvalidDeclaration(INCREMENTS_MOVE)


def _group_id(source: SourceDeclaration) -> str:
    table = source.table if isinstance(source.table, str) else ""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", table.rpartition(".")[2]).strip("_")
    return f"hydrate_{name}" if name and "{" not in table else "hydrate"


def _chosen(group: TaskGroup) -> dict[str, Any]:
    """Return what the DAG's author has chosen for the arguments that have a default here."""
    outer = {**(group.dag.default_args or {}), **((group.parent_group and group.parent_group.default_args) or {})}
    return {name: outer[name] for name in DEFAULT_ARGS if name in outer}
