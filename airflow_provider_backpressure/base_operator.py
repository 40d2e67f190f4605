"""What operators and sensors have in common: their parameters, how these are templated, how errors leave them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any, NoReturn

from airflow.sdk import BaseOperator, BaseOperatorLink, Context

from airflow_provider_backpressure import openlineage, settings
from airflow_provider_backpressure.airflow_compat import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from airflow_provider_backpressure.core.admission.gate_watcher import Watch
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.gate.task_activity import Activity, Step
from airflow_provider_backpressure.core.monitoring.heartbeat import Heartbeat
from airflow_provider_backpressure.core.monitoring.source_observer import nobodys_error
from airflow_provider_backpressure.core.snapshot.ranges import lane
from airflow_provider_backpressure.core.snapshot.spark_messages import ZONE, Transform
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration, Terminal
from airflow_provider_backpressure.hooks.backpressure import DEFAULT_CONN_ID, is_running
from airflow_provider_backpressure.hooks.hydration_session import (
    Declaration,
    HydrationSession,
    SinkDeclaration,
    SourceDeclaration,
)
from airflow_provider_backpressure.hooks.recorded_declaration import text
from airflow_provider_backpressure.hooks.spark_and_yarn import memory_url
from airflow_provider_backpressure.links import HydrationLink
from airflow_provider_backpressure.openlineage import Lineage
from airflow_provider_backpressure.triggers import AdmissionsTrigger, AdmissionTrigger, TurnTrigger

DEFAULT_ARGS = {"retries": 2, "retry_delay": timedelta(seconds=30)}
"""What a DAG's ``default_args`` may change: a hydration is made to be retried."""


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Let terminal errors fail the task for good; transient ones pass as they are, so that Airflow retries."""
    try:
        yield
    except Terminal as error:
        raise AirflowFailException(str(error)) from error


def may_retry(instance: Any) -> bool:
    """Whether Airflow tries the task again."""
    return bool(getattr(instance, "try_number", 1) <= getattr(instance, "max_tries", 0))


def failure_of(error: BaseException) -> str:
    """Return why a task has failed, for people: sentences of our own errors hold no secret, others may."""
    if isinstance(error, BackpressureError):
        return str(error)
    return f"{type(error).__name__}: the task's log says more."


def lane_name(context: Context, *parts: str) -> str:
    """Return a name that is the same for each try of a task instance: DAG, run, and ``parts`` or task and map index."""
    instance = context["ti"]
    own = parts or (instance.task_id, str(instance.map_index))
    return lane(instance.dag_id, instance.run_id, *own)


def range_lane(context: Context, seq: int) -> str:
    """Return the lane of one range: the sensor that reserves a credit and the task that submits the range share it."""
    return lane_name(context, f"range-{seq}")


class HydrationTask(BaseOperator):
    """Base of every task of a hydration.

    :param source: what is read (templated in all its fields)
    :param sink: what is written (templated in all its fields)
    :param spark_conn_id: Airflow connection of type ``spark_connect``, or ``spark`` for spark-submit
    :param budget: what the hydration may take
    :param backpressure_conn_id: Airflow connection of type ``backpressure``, the ledger
    """

    template_fields: Collection[str] = ("source", "sink")
    operator_extra_links: Collection[BaseOperatorLink] = (HydrationLink(),)
    hydration_id = ""
    """What it works on; empty before it has found that."""
    begins_work = True
    """Whether a failure before it is over once it has its turn; a sensor only waits."""
    _waited = False
    """Whether it has waited at the gate and continues: a range that failed meanwhile stays failed."""

    def __init__(
        self,
        *,
        source: SourceDeclaration,
        sink: SinkDeclaration,
        spark_conn_id: str,
        budget: Budget | None = None,
        backpressure_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.sink = sink
        self.spark_conn_id = spark_conn_id
        self.budget = budget or Budget()
        self.backpressure_conn_id = backpressure_conn_id
        self.lineages: dict[str, Lineage] = {}
        """What it moved, by hydration; empty where OpenLineage is not installed."""

    def render_template(
        self, content: Any, context: Context, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render strings inside frozen declarations too, by making new ones."""
        if not is_dataclass(content) or isinstance(content, type) or hasattr(content, "resolve"):
            return super().render_template(content, context, jinja_env, seen_oids)
        changes: Mapping[str, Any] = {
            field.name: self.render_template(value, context, jinja_env, seen_oids)
            for field in fields(content)
            if field.init and not isinstance(value := getattr(content, field.name), Enum)
        }
        return replace(content, **changes)

    def declaration(self, context: Context) -> Declaration:
        """Return what this task was declared to do."""
        # Of the task's own fields by their names; Airflow's owner of a task is another thing.
        names = {field.name for field in fields(Declaration)} & vars(self).keys()
        return Declaration(**{**{name: getattr(self, name) for name in names}, "owner": context["ti"].dag_id})

    @contextmanager
    def open_ports(self, context: Context) -> Iterator[HydrationSession]:
        """Open the ports for the time of a task, with errors as Airflow understands them."""
        with airflow_errors(), self.declaration(context).open() as opened:
            try:
                yield opened
            except (AirflowSkipException, AirflowRescheduleException):
                raise
            except (Exception, AirflowTaskTimeout) as error:
                self._keep_failure(context["ti"], opened, error)
                raise

    def wait_deferred(
        self,
        *,
        hydration_id: str,
        budget: Budget,
        watch: Watch,
        reasons: Iterable[str] = (),
        plan_id: str = "",
        seq: int | None = None,
        lane: str | None = None,
        timeout: float | None = None,
        remind_after: float | None = None,
    ) -> NoReturn:
        """Free the worker slot until the trigger fires; the task then begins again.

        ``remind_after``: seconds after which it fires anyway, to report that the gate is still closed.
        """
        self.log.info("The gate is closed: %s. The task gives its worker slot back.", "; ".join(reasons) or "no credit")
        with airflow_errors():
            trigger = self.make_trigger(
                hydration_id=hydration_id,
                budget=budget,
                watch=watch,
                source=self.source,
                plan_id=plan_id,
                seq=seq,
                lane=lane,
                remind_after=remind_after,
            )
        self.defer(trigger=trigger, method_name="resume", timeout=timeout)

    def make_trigger(
        self, *, hydration_id: str, budget: Budget, watch: Watch, source: SourceDeclaration, **more: Any
    ) -> AdmissionTrigger:
        """Return what waits at the gate of one hydration."""
        return AdmissionTrigger(
            hydration_id=hydration_id,
            backpressure_conn_id=self.backpressure_conn_id,
            budget=budget.to_json(),
            watch=watch.value,
            memory_url=memory_url(self.spark_conn_id),
            poll_interval=settings.poll_policy().maximum,
            source=text(source),
            **more,
        )

    def wait_deferred_for(self, waits: Sequence[AdmissionTrigger]) -> NoReturn:
        """Free the worker slot until one of these triggers fires; the task then begins again."""
        self.log.info("%s hydrations wait at their gates. The task gives its worker slot back.", len(waits))
        self.defer(trigger=AdmissionsTrigger(waits=[trigger.serialize()[1] for trigger in waits]), method_name="resume")
        raise AssertionError("a deferral ends the method")

    def take_turn(self, context: Context, opened: HydrationSession, hydration_id: str) -> None:
        """Take the hydration for this run alone, or defer until the run that has it is over or has released it."""
        instance = context["ti"]
        self._lead_to(hydration_id, instance)
        holder = opened.ledger.hold(hydration_id, run=instance.run_id)
        if holder != instance.run_id and not is_running(instance.dag_id, holder):
            holder = opened.ledger.hold(hydration_id, run=instance.run_id, over=holder)
        if holder == instance.run_id:
            if self.begins_work and not self._waited:
                opened.ledger.keep_failure(hydration_id, None)
            return
        self.await_run(hydration_id, holder, instance)

    def await_run(self, hydration_id: str, holder: str, instance: Any) -> NoReturn:
        """Defer until the run that has the hydration is over or has released it."""
        self.log.info("Run %s has this hydration: this run waits its turn, and gives its worker slot back.", holder)
        trigger = TurnTrigger(
            hydration_id=hydration_id,
            backpressure_conn_id=self.backpressure_conn_id,
            dag_id=instance.dag_id,
            run_id=holder,
        )
        self.defer(trigger=trigger, method_name="resume")
        raise AssertionError("a deferral ends the method")

    def await_runs(self, hydrations: Iterable[Hydration], instance: Any) -> frozenset[str]:
        """Return the other runs that have some of these, all of which are over; defer while one of them is running."""
        held = {found.holder: found.id for found in hydrations if found.holder not in (None, instance.run_id)}
        for holder, hydration_id in held.items():
            if is_running(instance.dag_id, str(holder)):
                self.await_run(hydration_id, str(holder), instance)
        return frozenset(map(str, held))

    def report(
        self,
        context: Context,
        opened: HydrationSession,
        hydration_id: str,
        step: Step,
        *,
        write: Callable[[], None],
        delay: float = 0.0,
    ) -> Heartbeat:
        """Return what reports, while it is entered, that this task works and what it does.

        ``write`` writes a line. ``delay``: seconds before the first report.
        """
        instance = context["ti"]
        activity = Activity(step=step, lane=lane_name(context), try_number=getattr(instance, "try_number", None))
        return Heartbeat(ledger=opened.ledger, hydration_id=hydration_id, activity=activity, write=write, delay=delay)

    def _keep_failure(self, instance: Any, opened: HydrationSession, error: BaseException) -> None:
        """Keep why this task has failed for good, where its run still has the hydration."""
        again = not isinstance(error, Terminal | AirflowFailException) and may_retry(instance)
        if not self.hydration_id:
            return
        with nobodys_error("Why the task has failed is not kept"):
            if again:
                self._keep_error(opened, failure_of(error))
            elif opened.ledger.hydration(self.hydration_id).holder in (instance.run_id, None):
                opened.ledger.keep_failure(self.hydration_id, failure_of(error))

    def _keep_error(self, opened: HydrationSession, error: str) -> None:
        """Keep why this try has failed, for as long as Airflow waits until it tries again."""
        activity = opened.ledger.hydration(self.hydration_id).activity
        if activity is not None:
            opened.ledger.keep_activity(self.hydration_id, replace(activity, error=error))

    def _lead_to(self, hydration_id: str, instance: Any) -> None:
        """Let the task's links lead there at once: Airflow itself stores them when the task ends."""
        self.hydration_id = hydration_id
        for link in self.operator_extra_links:
            instance.xcom_push(link.xcom_key, link.get_link(self, ti_key=instance))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the facets for OpenLineage of a task that has ended, well or not; ``None`` where it moved nothing."""
        return openlineage.operator_lineage([*self.lineages.values()]) if self.lineages else None

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after a deferral. The trigger's event is only logged: everything is read again."""
        self.log.info("Resumed: %s.", event["sentence"].rstrip("."))
        self._waited = "waited" in event
        return self.execute(context)


class TransformTask(HydrationTask):
    """A task that reads rows, and so knows what becomes of them on the way.

    :param transform: a SELECT over the view ``source`` (templated), or a callable that takes and gives a DataFrame
    """

    template_fields: Collection[str] = (*HydrationTask.template_fields, "transform")

    def __init__(self, *, transform: str | Transform | Callable[..., Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Airflow calls a callable in a template field, so the function itself is kept apart.
        self.function = transform if callable(transform) else None
        self.transform = as_transform(transform)


def as_transform(transform: str | Transform | Callable[..., Any] | None) -> Transform | None:
    """Return the transform as a plan keeps it; a callable is passed to the runner and leaves an empty reference."""
    if transform is None or isinstance(transform, Transform):
        return transform
    if isinstance(transform, str):
        return Transform(sql=transform, zone=ZONE)
    if callable(transform):
        return Transform(python="", zone=ZONE)
    raise InvalidDeclaration(f"transform must be a SELECT or a callable, not {type(transform).__name__}.")
