"""The composition root: from what a DAG declares and Airflow's connections to opened ports, and back to closed ones."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint, endpoint_of
from airflow_provider_backpressure.core.hydration import Hydration
from airflow_provider_backpressure.core.hydrator import Hydrator
from airflow_provider_backpressure.core.limiter import Limiter
from airflow_provider_backpressure.core.messages import Transform
from airflow_provider_backpressure.core.planner import Planner
from airflow_provider_backpressure.core.polling import Clock, SystemClock
from airflow_provider_backpressure.core.ports import Ledger, Runner, Sink, Source
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.core.verification import Verifier
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.hooks.backpressure import DEFAULT_CONN_ID, BackpressureHook
from airflow_provider_backpressure.hooks.endpoints import endpoint
from airflow_provider_backpressure.hooks.spark import open_runner


class SourceDeclaration(Protocol):
    """A source as a DAG declares it: names, no connection."""

    @property
    def conn_id(self) -> str:
        """Airflow connection of the source."""
        ...

    @property
    def conn_types(self) -> tuple[str, ...]:
        """Types that the connection may be of."""
        ...

    @property
    def table(self) -> str:
        """What is read, as the source names it."""
        ...

    @property
    def consistencies(self) -> tuple[str, ...]:
        """What may be asked for, the default first."""
        ...

    def open(self, endpoint: Endpoint) -> Source:
        """Open it."""
        ...


class SinkDeclaration(Protocol):
    """A sink as a DAG declares it: names, no connection."""

    @property
    def conn_id(self) -> str:
        """Airflow connection of the sink; empty where it needs none."""
        ...

    @property
    def conn_types(self) -> tuple[str, ...]:
        """Types that the connection may be of."""
        ...

    @property
    def table(self) -> str:
        """What is written, as the sink names it."""
        ...

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
    transform: Transform | None = None
    function: Callable[..., Any] | None = None
    """The Python transform itself, where the DAG hands over a callable."""
    owner: str

    @contextmanager
    def open(self) -> Iterator["Opened"]:
        """Resolve every connection, open the ports, and close them all in the end."""
        with ExitStack() as stack:
            ledger = stack.enter_context(closing(BackpressureHook(self.backpressure_conn_id).ledger()))
            sides = (self.source, self.sink)
            endpoints = {side.conn_id: endpoint(side.conn_id, *side.conn_types) for side in sides if side.conn_id}
            source = stack.enter_context(closing(self.source.open(endpoint_of(endpoints, self.source.conn_id))))
            sink = stack.enter_context(closing(self.sink.open(endpoint_of(endpoints, self.sink.conn_id))))
            runner = open_runner(self.spark_conn_id, endpoints=endpoints, transform=self.function)
            stack.enter_context(closing(runner))
            yield Opened(
                declaration=self,
                environment=settings.environment(),
                ledger=ledger,
                source=source,
                sink=sink,
                runner=runner,
            )


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A declared hydration with its ports open."""

    declaration: Declaration
    environment: str
    ledger: Ledger
    source: Source
    sink: Sink
    runner: Runner

    @property
    def budget(self) -> Budget:
        """The declared budget, its defaults as they fit the runner."""
        return self.declaration.budget.fitted(self.runner.overhead_seconds)

    def planner(self) -> Planner:
        """Return the planner."""
        declared = self.declaration
        return Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=declared.mode,
            key=declared.sink.key or (),
            transform=declared.transform,
            consistency=declared.consistency,
            environment=self.environment,
            owner=declared.owner,
            cluster=declared.spark_conn_id,
        )

    def close_plan(self) -> None:
        """Close the current plan, whose snapshot is gone, and make another one as it was asked for."""
        hydration, plan = self.hydration()
        planner = replace(self.planner(), mode=plan.mode, consistency=plan.consistency)
        planner.close(hydration, plan)

    def take_target(self) -> None:
        """Complete what was begun where a planner was killed between ledger and sink."""
        hydration, plan = self.hydration()
        if not plan.epoch:
            self.planner().take_target(hydration, plan)

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

    def limiter(self, hydration_id: str) -> Limiter:
        """Return the gate as this process sees it."""
        return Limiter(
            ledger=self.ledger,
            hydration_id=hydration_id,
            budget=self.budget,
            memory=self.runner.memory,
        )

    def hydrator(
        self,
        *,
        lane: str,
        share: int = 1,
        inline_wait: float,
        clock: Clock | None = None,
        on_commit: Callable[[], None] | None = None,
    ) -> Hydrator:
        """Return the loop of one lane."""
        hydration, plan = self.hydration()
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
            poll=settings.poll_policy(),
            clock=clock or SystemClock(),
            on_commit=on_commit,
        )

    def verifier(self) -> Verifier:
        """Return the verifier of the current plan."""
        return Verifier(plan=self.hydration()[1], source=self.source, sink=self.sink, runner=self.runner)
