"""The composition root: from what a DAG declares and Airflow's connections to opened ports, and back to closed ones."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.core.admission.health_measurements import HealthWatch
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter, Readings, read_gate
from airflow_provider_backpressure.core.config import LEAST_POLLS, Budget, Consistency, Mode, NewColumn, Refresh
from airflow_provider_backpressure.core.endpoints import DeclaredTable, Endpoint, endpoint_of
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase, RangeCounts
from airflow_provider_backpressure.core.monitoring.committed_frontier import unread
from airflow_provider_backpressure.core.monitoring.ledger_pruning import end_run
from airflow_provider_backpressure.core.monitoring.source_observer import Observation, Observer
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.preconditions import check_held
from airflow_provider_backpressure.core.planning.previewer import Probes
from airflow_provider_backpressure.core.poll_policy import Clock, SystemClock
from airflow_provider_backpressure.core.ports import Runner, Source, Unread
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.core.transitions import supersession_error
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.verifier import Verifier
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LedgerRefused, PlanOutdated, SnapshotLost
from airflow_provider_backpressure.hooks import metrics
from airflow_provider_backpressure.hooks.backpressure import DEFAULT_CONN_ID, BackpressureHook
from airflow_provider_backpressure.hooks.metrics import Places
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint, with_related
from airflow_provider_backpressure.hooks.spark_and_yarn import open_runner


class SourceDeclaration(DeclaredTable, Protocol):
    """A source as a DAG declares it: names, no connection."""

    @property
    def consistencies(self) -> tuple[str, ...]:
        """What may be asked for, the default first."""
        ...

    def open(self, endpoint: Endpoint) -> Source:
        """Open it."""
        ...


class SinkDeclaration(DeclaredTable, Protocol):
    """A sink as a DAG declares it: names, no connection."""

    modes: ClassVar[tuple[Mode, ...]]
    """How rows may enter it."""

    @property
    def key(self) -> tuple[str, ...] | None:
        """Columns that ``upsert`` goes by; ``None`` for the source's key."""
        ...

    def open(self, endpoint: Endpoint) -> Sink:
        """Open it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """One hydration as declared: everything a run needs but the connections themselves."""

    source: SourceDeclaration
    sink: SinkDeclaration
    spark_conn_id: str
    backpressure_conn_id: str = DEFAULT_CONN_ID
    budget: Budget = field(default_factory=Budget)
    mode: Mode = Mode.APPEND
    consistency: Consistency | None = None
    """``None`` for the source's own default."""
    on_new_column: NewColumn = NewColumn.STOP
    refresh: Refresh = Refresh.ONCE
    transform: Transform | None = None
    function: Callable[..., Any] | str | None = None
    """The Python transform itself, where the DAG passes a callable; ``module:function`` where the ledger keeps it."""
    owner: str
    task_id: str = ""
    """Of the task that declares it."""
    run: str = ""
    """The run that has planned it with other tables of its task, and not found it up to date."""

    def load_function(self) -> Callable[..., Any] | None:
        """Return the Python transform; ``None`` where there is none, or none that can be imported here."""
        if not isinstance(self.function, str):
            return self.function
        module, _, name = self.function.partition(":")
        try:
            return getattr(import_module(module), name, None)
        except ImportError:
            return None

    @contextmanager
    def open(self) -> Iterator["HydrationSession"]:
        """Resolve every connection, open the ports, and close them all in the end."""
        with self.open_shared() as shared, shared.open(self) as session:
            yield session

    @contextmanager
    def open_shared(self) -> Iterator["SharedPorts"]:
        """Open what hydrations between the same connections share, and close it in the end."""
        with ExitStack() as stack:
            ledger, push = BackpressureHook(self.backpressure_conn_id).open_ledger_and_push()
            stack.enter_context(closing(ledger))
            if push is not None:
                # What was published last is on its way before the process ends, which it may do without another word.
                stack.callback(push.flush, ledger)
            sides = (self.source, self.sink)
            endpoints = {side.conn_id: endpoint(side.conn_id, *side.conn_types) for side in sides if side.conn_id}
            runner = open_runner(
                self.spark_conn_id,
                endpoints=endpoints,
                transform=self.load_function(),
                # One table's ranges are as large as pays a job, but for its last one.
                shares=bool(getattr(self.source, "tables", ())),
            )
            stack.enter_context(closing(runner))
            yield SharedPorts(ledger=ledger, push=push, runner=runner, endpoints=endpoints)


@dataclass(frozen=True, kw_only=True)
class SharedPorts:
    """What hydrations between the same connections share: the ledger, the logins, one Spark session."""

    ledger: Ledger
    push: Push | None
    """This process's end of the ledger's channel, if it has one."""
    runner: Runner
    endpoints: Mapping[str, Endpoint]
    """Where the connections of source and sink lead to, by their ids."""
    probes: Probes = field(default_factory=Probes)

    @contextmanager
    def open(
        self, declared: Declaration, make: Callable[..., "HydrationSession"] | None = None
    ) -> Iterator["HydrationSession"]:
        """Open source and sink of one hydration, and close them in the end. Threads may do so at once.

        ``make``: makes the session, where it is another one than a table's.
        """
        check_same_cluster(declared)
        with ExitStack() as stack:
            upstream = with_related(endpoint_of(self.endpoints, declared.source.conn_id), declared.source)
            source = stack.enter_context(closing(declared.source.open(upstream)))
            sink = stack.enter_context(closing(declared.sink.open(endpoint_of(self.endpoints, declared.sink.conn_id))))
            opened = (make or HydrationSession)(
                declaration=declared,
                environment=settings.environment(),
                ledger=self.ledger,
                source=source,
                sink=sink,
                runner=self.runner,
                endpoint=upstream,
                push=self.push,
                probes=self.probes,
            )
            stack.callback(opened.health.close_and_wait)
            yield opened


def check_same_cluster(declared: Declaration) -> None:
    """Raise ``InvalidDeclaration`` where a table is of another cluster than the one that the ranges run on.

    Also where a table of the cluster would be written into itself.
    """
    for side in (declared.source, declared.sink):
        named = getattr(side, "spark_conn_id", declared.spark_conn_id)
        if named != declared.spark_conn_id:
            raise InvalidDeclaration(
                f"{side.table} is a table of the cluster {named!r}, and the hydration runs on "
                f"{declared.spark_conn_id!r}: give both the same spark_conn_id."
            )
    are_both = all(hasattr(side, "spark_conn_id") for side in (declared.source, declared.sink))
    if are_both and declared.source.table.replace("`", "").lower() == declared.sink.table.lower():
        raise InvalidDeclaration(f"{declared.sink.table} cannot be written into itself: name another table.")


OPENED = frozenset({"source", "sink", "budget", "run"})
"""Fields of a declaration that a planner takes once they are opened or fitted to the runner, or from a running task."""
PLANNED_OPTIONS = {each.name for each in fields(Declaration)} & {each.name for each in fields(Planner)} - OPENED
"""Fields that a planner takes as they are declared, by their names: a new one reaches it by being in both."""


class Taken(NamedTuple):
    """What a lane continues with, as it was read before its target was asked."""

    hydration: Hydration
    plan: Plan
    counts: RangeCounts


@dataclass(frozen=True, kw_only=True)
class HydrationSession:
    """A declared hydration with its ports open."""

    declaration: Declaration
    environment: str
    ledger: Ledger
    source: Source
    sink: Sink
    runner: Runner
    endpoint: Endpoint
    """Of the source."""
    push: Push | None = None
    """This process's end of the ledger's channel, if it has one."""
    probes: Probes = field(default_factory=Probes)

    @cached_property
    def health(self) -> HealthWatch:
        """What the budget watches of source, sink and other databases."""
        places = Places(source=lambda: self.source, sink=lambda: self.sink, unread=self._unread)
        return HealthWatch(budget=self._watchful, open=places.open, asked=self.declaration.budget.signals)

    def _unread(self) -> Unread | None:
        found = self.find()
        return unread(found.plan if found else None, self.ledger)

    def readings(self) -> Callable[[], Readings]:
        """Return what asks for the latest readings, once the first looks were made."""
        self.health.start()
        self.health.settle()
        return self.health.readings

    @property
    def budget(self) -> Budget:
        """The declared budget, its defaults as they fit the runner, with the signals that are watched in any case."""
        return self._watchful.fit(self.runner.overhead_seconds)

    @cached_property
    def _watchful(self) -> Budget:
        declared = self.declaration
        asked = declared.budget.signals
        safety = getattr(declared.source, "safety_signals", lambda consistency: ())(declared.consistency)
        more = tuple(each for each in safety if not any((each.kind, each.on) == (own.kind, own.on) for own in asked))
        # A deadline that is too short for looks was declared for a budget without signals.
        fits = declared.budget.signal_deadline >= LEAST_POLLS * declared.budget.signal_interval
        return replace(declared.budget, signals=(*asked, *more)) if more and fits else declared.budget

    def planner(self) -> Planner:
        """Return the planner."""
        declared = self.declaration
        return Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            key=declared.sink.key or (),
            environment=self.environment,
            cluster=declared.spark_conn_id,
            probes=self.probes,
            check_signals=self.health.check,
            **{name: getattr(declared, name) for name in PLANNED_OPTIONS},
        )

    def follow(self) -> bool:
        """Plan what follows the plan that was drained, in the same run; ``False`` where nothing does."""
        return self.planner().follow()

    def check_own_log(self, lost: SnapshotLost) -> None:
        """Raise ``lost`` where that is a log which the table shares with others: it begins again for all of them."""
        if self.hydration()[1].stream and not isinstance(lost, PlanOutdated):
            raise lost

    def close_plan(self, drained: Plan | None = None) -> None:
        """Close the current plan, and make another one as it was asked for.

        ``drained``: the plan of a lane that has lost its snapshot. ``PlanSuperseded`` where another lane has taken the
        hydration over or ended that plan meanwhile: what is in the target is of that one.
        """
        hydration, plan = self.hydration()
        ended = hydration.phase is Phase.STEADY_STATE and hydration.verified
        if drained is not None and (ended or (plan.plan_id, plan.epoch) != (drained.plan_id, drained.epoch)):
            raise supersession_error(drained.plan_id, drained.epoch)
        planner = replace(self.planner(), mode=plan.mode, consistency=plan.consistency, stream=plan.stream)
        planner.close(hydration, plan)

    def take_target(self) -> "Taken | None":
        """Let a ledger that is older than the sink follow it within its plan, before a lane continues with it.

        Then complete what was begun where a planner was killed between ledger and sink. Returns what the lane continues
        with; ``None`` where it has to read that. ``LedgerRefused`` and ``SinkRefused`` where the target is gone or
        another one since the plan took it.
        """
        hydration, plan = self.hydration()
        counts = self.ledger.counts(plan.plan_id)
        who = self.declaration.owner
        followed = self.planner().reindex(hydration, who=who, within_plan=True, counts=counts) is not None
        if followed:
            hydration, plan = self.hydration()
        if plan.epoch:
            check_held(plan, self.sink)
        else:
            self.planner().take_target(hydration, plan)
        return None if followed or not plan.epoch else Taken(hydration, plan, counts)

    def find(self) -> Hydration | None:
        """Return the hydration of this source and sink, if the ledger knows it."""
        return self.ledger.find(
            environment=self.environment, source_identity=self.source.identity, sink_identity=self.sink.identity
        )

    def hydration(self) -> tuple[Hydration, Plan]:
        """Return the hydration and its plan; ``LedgerRefused`` where nothing was planned yet."""
        found = self.find()
        if found is None or found.plan is None:
            raise LedgerRefused(
                f"There is no plan yet for {self.source.identity} into {self.sink.identity}: "
                "run its plan_snapshot task first."
            )
        return found, found.plan

    def latest(self, hydration_id: str) -> tuple[Hydration, Course | None]:
        """Return the hydration as it is now, and its course."""
        return self.ledger.hydration(hydration_id), self.ledger.course(hydration_id)

    def limiter(self, hydration_id: str) -> Limiter:
        """Return the gate as this process sees it."""
        return Limiter(
            ledger=self.ledger,
            hydration_id=hydration_id,
            budget=self.budget,
            memory=self.runner.memory,
            health=self.readings(),
            read_gate=self.push.read_gate if self.push else read_gate,
        )

    def hydrator(
        self,
        *,
        lane: str,
        share: int = 1,
        inline_wait: float,
        until: float | None = None,
        clock: Clock | None = None,
        on_commit: Callable[[], None] | None = None,
        reads_again: bool = False,
        taken: "Taken | None" = None,
    ) -> Hydrator:
        """Return the loop of one lane. ``reads_again``: it compares the source, of a plan that is not verified yet.

        ``taken``: what :meth:`take_target` has read a moment ago.
        """
        hydration, plan = taken[:2] if taken is not None else self.hydration()
        return Hydrator(
            hydration_id=hydration.id,
            plan=plan,
            lane=lane,
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=self.limiter(hydration.id),
            budget=self.budget,
            share=share,
            inline_wait=inline_wait,
            until=until,
            poll=settings.poll_policy(),
            clock=clock or SystemClock(),
            on_commit=on_commit,
            reads_again=reads_again and self._may_read_again(hydration, plan),
            push=self.push,
        )

    def _may_read_again(self, hydration: Hydration, plan: Plan) -> bool:
        """Whether the source may be compared: rows of a hydration that has ended are not brought to another moment.

        But for those that are repaired.
        """
        if hydration.phase is not Phase.STEADY_STATE or plan.read_again_epoch:
            return True
        return self.ledger.counts(plan.plan_id).open > 0

    def observation(
        self,
        hydration_id: str,
        *,
        tell: Callable[[Hydration, Course | None], None] | None = None,
        delay: float = 0.0,
    ) -> Observation:
        """Return what keeps the statistics up with the source while it is entered; over a connection of its own.

        ``tell`` is called after each look, in the observation's thread; the first is after ``delay`` seconds.
        """

        def on_look(hydration: Hydration, course: Course | None) -> None:
            metrics.send(self.ledger, hydration, course)
            if tell is not None:
                tell(hydration, course)

        return Observation(
            observer=Observer(
                ledger=self.ledger,
                hydration_id=hydration_id,
                open=self._another_source,
                tell=on_look,
            ),
            kept=settings.samples_kept(),
            delay=delay,
        )

    def _another_source(self) -> Source:
        return self.declaration.source.open(self.endpoint)

    def prune(self, hydration_id: str, plan: Plan) -> None:
        """Forget what the hydration needs no more once ``plan`` is complete; the setting says how much is kept."""
        kept, samples = settings.history(), settings.samples_kept()
        end_run(self.ledger, self.sink, hydration_id, plan, kept=kept, samples=samples)

    def completion(self, plan: Plan) -> Completion:
        """Return the check that a plan has to pass before anything ends or is published."""
        return Completion(plan=plan, ledger=self.ledger, sink=self.sink)

    def verifier(
        self, plan: Plan, hydration_id: str, *, on_range: Callable[[int, int | None], None] | None = None
    ) -> Verifier:
        """Return the verifier of a plan; ``on_range`` is called with the number of ranges that are done."""
        return Verifier(
            plan=plan,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            hydration_id=hydration_id,
            on_range=on_range,
        )
