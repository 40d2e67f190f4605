"""One hydration with its lanes, Spark, sink and ledger as actors on one thread, under a virtual clock.

Planner, hydrator, limiter, gate and the ledger's law are the real ones; ledger and sink are those of ``testing``.
"""

import itertools
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from airflow_provider_backpressure.core.admission import permits_and_reservations
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution import lane_runner as hydrator_module
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning import planner as planner_module
from airflow_provider_backpressure.core.planning import range_splitter as recut_module
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.reconciliation import reindexer as reindexing_module
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LedgerRefused,
    LedgerUnavailable,
    RunnerUnavailable,
    SinkRefused,
    SinkUnavailable,
)
from airflow_provider_backpressure.testing import MemorySource
from tests.support.actors import Actor, ActorClock, Ended, Link, VirtualClock, pause
from tests.support.simulated import SimulatedLedger, SimulatedSink, SimulatedSpark

ROWS = 3
"""Rows of a range."""
POLL = PollPolicy(initial=1.0, maximum=5.0)
Waited = namedtuple("Waited", "done not_done")


class World:
    """One hydration, its lanes and Spark. The latest one is that of the stage, see :func:`stage`."""

    current: ClassVar["World"]

    def __init__(self, *, ranges: int, credits: int) -> None:
        World.current = self
        self.clock = VirtualClock()
        self.source = MemorySource(keys=range(ranges * ROWS))
        self.sink = SimulatedSink()
        self.ledger = SimulatedLedger(now=self.clock.datetime)
        self.spark = SimulatedSpark(self)
        self.sink_link = Link(name="sink", error=SinkUnavailable)
        self.ledger_link = Link(name="ledger", error=LedgerUnavailable)
        self.budget = Budget(credits=credits, range_rows=ROWS)
        self.lanes: dict[str, Actor] = {}
        self.clocks: dict[str, ActorClock] = {}
        self.zombies: list[Actor] = []
        self.planning: Actor | None = None
        self.must_plan = True
        """Whether the next run begins with its first task: nothing is planned yet, or a backup was put back."""
        self.restored = self.emptied = False
        """Whether a backup was ever put back, and whether a person wants the target emptied and planned again."""
        self.named: list[str] = []
        """What a planner has refused to go on with."""
        self.seen: Counter[str] = Counter()
        """How often something came about that a schedule is there for."""
        self.reads: set[tuple[str, int]] = set()
        self.numbers = itertools.count(1)
        self.on_reach: Callable[[Step, str], None] = lambda step, tag: None
        self.ledger_backup = self.ledger.back_up(self.clock)
        self.sink_backup = self.sink.back_up()

    # What there is

    @property
    def hydration_id(self) -> str | None:
        """The hydration, once it is registered."""
        return self.ledger.entry.figures.id if self.ledger.entry else None

    @property
    def plan(self) -> Plan | None:
        """The plan that the ledger has."""
        return self.ledger.entry.plan if self.ledger.entry else None

    @property
    def records(self) -> list[RangeRecord]:
        """The ranges of that plan."""
        return self.ledger.ranges(self.plan.plan_id) if self.plan else []

    @property
    def complete(self) -> bool:
        """Whether everything is committed."""
        plan = self.plan
        return plan is not None and not self.must_plan and self.ledger.counts(plan.plan_id).open == 0

    def actors(self) -> list[Actor]:
        """Return everybody who can take a step, zombies too."""
        every = [*self.lanes.values(), *self.zombies, *(task.actor for task in self.spark.tasks)]
        if self.planning is not None:
            every.append(self.planning)
        return [one for one in every if one.alive]

    # What they do

    def live(self, lane: str) -> None:
        """Begin a life of a lane; a former one that has not ended goes on as a zombie. First of all comes the plan."""
        if self.must_plan:
            if self.planning is None or not self.planning.alive:
                self.planning = Actor("planner", self._plan)
            return
        former = self.lanes.pop(lane, None)
        if former is not None and former.alive:
            self.zombies.append(former)
        clock = self.clocks[lane] = ActorClock(time=self.clock)
        self.lanes[lane] = Actor(f"lane {lane}", lambda: self._drain(lane, clock))

    def plan_at_once(self) -> None:
        """Plan without a stop."""
        self._planner(linked=False).plan()
        self.must_plan = False

    def restart(self) -> None:
        """A person empties the target and asks for a new plan; what runs for the old one goes on as it may."""
        if self.must_plan:
            return
        self.sink.rows.clear()
        self._planner(linked=False).plan(restart=True)

    def restore_ledger(self) -> None:
        """Put the ledger's backup back. Nothing of Airflow runs meanwhile; Spark knows nothing of it."""
        self._down()
        self.ledger.restore_from(self.ledger_backup, self.clock)

    def restore_sink(self) -> None:
        """Put the sink's backup back."""
        self._down()
        self.sink.restore_from(self.sink_backup)

    def _down(self) -> None:
        for actor in self.actors():
            if not actor.name.startswith("task"):
                actor.kill()
        self.must_plan = self.restored = True

    @property
    def behind(self) -> bool:
        """Whether the ledger knows of something that the sink has lost, or of another plan that is no older."""
        plan, held = self.plan, self.sink.plan
        if plan is None or not plan.epoch:
            return False
        if held is None or self.sink.last_epoch < plan.epoch:
            return True
        if held.plan_id != plan.plan_id:
            return self.sink.last_epoch == plan.epoch
        committed = {record.slice_id for record in self.records if record.state is RangeState.COMMITTED}
        return not committed <= set(self.sink.markers(plan.plan_id))

    def driver_dies(self) -> None:
        """Nobody waits for the tasks any more; whether they end too, and when, is open."""
        for task in self.spark.tasks:
            task.tell(RunnerUnavailable("Spark Connect does not answer."))

    def _plan(self) -> None:
        """The first task of a run: plan, or go on. What is refused because of a backup is in a person's hand then."""
        planner, behind = self._planner(linked=True), self.behind
        hydration = planner.register()
        try:
            if self.emptied:
                self.sink.rows.clear()
                planner.plan(restart=True)
            else:
                planner.plan()
                assert not (behind and self.behind), "a sink from an older backup was not named"
        except LedgerRefused as error:
            self._named(error, behind)
            self._take_its_word(planner, hydration)
        except SinkRefused as error:
            # A late task of before has come in, or the ledger is from before the plan had the target.
            self._named(error, self.restored)
            self.emptied = True
            return
        self.must_plan = self.emptied = False

    def _named(self, error: BackpressureError, expected: bool) -> None:
        assert expected, f"what was not restored was refused: {error}"
        self.named.append(str(error))

    def _take_its_word(self, planner: Planner, hydration: Hydration) -> None:
        """Do what the sentence says: go on from where the sink is, or plan again where it has no plan."""
        try:
            if planner.reindex(hydration, who="a person", accept=True) is None:
                planner.plan()
        except LedgerRefused:
            self.emptied = True
            self.sink.rows.clear()
            planner.plan(restart=True)

    def _planner(self, *, linked: bool) -> Planner:
        return Planner(
            source=self.source,
            sink=self.sink_link.to(self.sink) if linked else self.sink,
            runner=self.spark,
            ledger=self.ledger_link.to(self.ledger) if linked else self.ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="dag",
            cluster="spark",
        )

    def _drain(self, lane: str, clock: ActorClock) -> None:
        """Do what ``HydrateOperator`` does."""
        planner = self._planner(linked=True)
        hydration = planner.register()
        assert hydration.plan is not None, "planned before"
        if not hydration.plan.epoch:
            planner.take_target(hydration, hydration.plan)
        hydrator = self._hydrator(lane, clock, planner, hydration.id)
        try:
            hydrator.run()
        except Ended:
            hydrator.cancel()

    def _hydrator(self, lane: str, clock: ActorClock, planner: Planner, hydration_id: str) -> Hydrator:
        ledger = planner.ledger
        plan = ledger.hydration(hydration_id).plan
        assert plan is not None
        return Hydrator(
            hydration_id=hydration_id,
            plan=plan,
            lane=lane,
            ledger=ledger,
            source=self.source,
            sink=planner.sink,
            runner=self.spark,
            limiter=Limiter(
                ledger=ledger, hydration_id=hydration_id, budget=self.budget, memory=self.spark.memory, clock=clock
            ),
            budget=self.budget,
            share=self.budget.credits,
            poll=POLL,
            clock=clock,
        )

    # Where they stop

    def reach(self, step: Step, tag: str) -> None:
        """Stop at a failpoint."""
        self.on_reach(step, tag)
        pause(step)

    def wait(self, jobs: Any, timeout: float, return_when: str = "") -> Waited:
        """Stand until one of the futures is done: in the place of ``concurrent.futures.wait``, in the jobs' order."""
        until = self.clock.now + timeout
        while True:
            done = [job for job in jobs if job.done()]
            if done or self.clock.now >= until:
                return Waited(done, [job for job in jobs if not job.done()])
            pause("its jobs")

    # What must hold

    def read(self, spec: RangeSpec) -> None:
        """Note that a slice is read from the source."""
        marker = self.sink.markers(spec.plan_id).get(spec.slices[0].slice_id)
        assert marker is None, "a range that is committed was read again"
        self.seen["read again"] += (spec.plan_id, spec.seq) in self.reads
        self.reads.add((spec.plan_id, spec.seq))

    def check(self) -> None:
        """Hold at every instant: nothing doubled, no credit lost or made up, the ledger never ahead."""
        rows, entry, plan = self.sink.rows, self.ledger.entry, self.plan
        assert len(rows) == len(set(rows)), "a row is in the sink twice"
        if entry is None or plan is None:
            return
        assert len(entry.in_flight) == self.ledger.admitted(entry.figures.id), "a credit is lost or made up"
        if self.must_plan or not plan.epoch:
            return
        committed = [record for record in self.records if record.state is RangeState.COMMITTED]
        markers = self.sink.markers(plan.plan_id)
        assert {record.slice_id for record in committed} <= set(markers), "the ledger ran ahead of the sink"
        progress = total_progress(list(entry.statistics.values()))
        assert progress.committed == sum(markers[record.slice_id].rows for record in committed), "progress differs"

    def check_end(self) -> None:
        """Hold at the end: everything is there once, and nothing is left over."""
        self.check()
        assert sorted(self.sink.rows) == list(self.source.keys), "target and source differ"
        hydration_id, plan = self.hydration_id, self.plan
        assert hydration_id is not None
        assert plan is not None
        gate = self.ledger.gate(hydration_id)
        assert (gate.in_flight, gate.waiting) == (0, 0), "a credit is left over"
        assert {entry.running for entry in self.ledger.queue()} <= {False}, "a token of the queue is left over"
        left = [record for record in self.records if record.state is not RangeState.REVOKED]
        bounds = [self.source.slice(plan.read, record.bounds, record.slice_id).query for record in left]
        assert sorted(key for query in bounds for key in self.source.read(query)) == list(self.source.keys), (
            "the ledger's ranges do not cover the source once"
        )
        self.seen["ranges cut"] += sum(record.state is RangeState.REVOKED for record in self.records)
        self.seen["older sink named"] += len(self.named)
        self.ledger.finish(hydration_id)


class _Numbers:
    """Numbers in the place of random identifiers, so that a schedule is played alike each time."""

    @staticmethod
    def uuid4() -> SimpleNamespace:
        """Return the next."""
        return SimpleNamespace(hex=f"{next(World.current.numbers):032x}")


@contextmanager
def stage() -> Iterator[pytest.MonkeyPatch]:
    """Let the product's parts stop where an actor has to, for the world that was made last."""
    from tests.support.ledger_model import ledger as ledger_module

    with pytest.MonkeyPatch.context() as patch:
        for module in (hydrator_module, recut_module, reindexing_module, permits_and_reservations):
            patch.setattr(module.log, "disabled", True)
        for module in (planner_module, ledger_module):
            patch.setattr(module, "uuid", _Numbers)
        patch.setattr(hydrator_module, "reach", lambda step, tag: World.current.reach(step, tag))
        patch.setattr(hydrator_module, "wait", lambda jobs, **options: World.current.wait(jobs, **options))
        yield patch
