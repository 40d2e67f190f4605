"""A discrete-event simulation of sources, sinks and Spark clusters of any size, around the real lanes and gate.

Hydrator, limiter, planner, law and ledger (in memory) are the product's own; time is a number that jumps from event to
event. A range waits for a slot of its cluster, is read at the source's pace, written at the sink's, and committed some
time later. Nothing here knows of credits: what a run shows of them is what the product does.
"""

from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any

import greenlet

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter, gate_decision
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution import lane_runner as hydrator_module
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.gate.hydration_record import Permit
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec, SliceResult
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from tests.support.cluster import Cluster, EventClock, Job, Station
from tests.support.ledger_model import LedgerModel

POLL = PollPolicy(initial=1.0, maximum=5.0)
LOOK_SECONDS = 5.0
"""How often a deferred lane's trigger looks at the gate."""
DEFERRAL_SECONDS = 4.0
"""From the trigger's event to the resumed task, as Airflow takes it."""
Waited = namedtuple("Waited", "done not_done")


class Session(MemoryRunner):
    """A lane's way to its cluster."""

    def __init__(self, flow: "Flow", life: int) -> None:
        super().__init__(source=flow.source, sink=flow.target)
        self.session_id = f"{flow.source.identity}-{life}"
        self.flow, self.clock = flow, flow.clock
        self.finished: set[Future[RangeResult]] = set()
        self._lane: tuple[Any, int] | None = None
        self._waits = count()

    def memory(self) -> MemoryReading:
        """See ``Runner.memory``."""
        return self.flow.cluster.memory()

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See ``Runner.run``."""
        future: Future[RangeResult] = Future()
        rows, memory = self.flow.shape(spec.seq)
        learned = self.flow.ledger.gate(spec.hydration_id).range_memory_bytes is not None
        self.flow.running += 1
        self.flow.cluster.submit(Job(spec=spec, future=future, session=self, rows=rows, memory=memory, learned=learned))
        return future

    def begin(self, job: Job) -> None:
        """Let a job that has its slot read, write and commit."""
        life, flow = job.life, self.flow

        def still(then: Callable[[], object]) -> Callable[[], object]:
            return lambda: then() if job.life == life else None

        def write() -> None:
            flow.sink.enter(job.rows, still(wait_for_commit))

        def wait_for_commit() -> None:
            self.clock.at(self.clock.now + flow.commit_latency, still(lambda: self._commit(job)))

        flow.reads.enter(job.rows, still(write))

    def _commit(self, job: Job) -> None:
        spec = job.spec
        (piece,) = spec.slices
        marker = self.flow.target.commit(spec, piece, self.source.read(piece.query))
        result = SliceResult(
            slice_id=piece.slice_id,
            rows=marker.rows,
            bytes=marker.bytes,
            checksum=marker.checksum,
            peak_memory_bytes=job.memory,
        )
        job.future.set_result(RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=(result,)))
        self.finished.add(job.future)
        self.flow.running -= 1
        self.flow.cluster.release(job)
        if self._lane is not None:
            lane, number = self._lane
            self.clock.at(self.clock.now, lambda: self._wake(lane, number))

    def wait(self, jobs: Any, timeout: float) -> Waited:
        """Stand until one of the lane's jobs is done, or the time is over."""
        if not self.finished:
            lane, number = greenlet.getcurrent(), next(self._waits)
            self._lane = lane, number
            self.clock.at(self.clock.now + timeout, lambda: self._wake(lane, number))
            self.clock.stand()
        done, self.finished = self.finished, set()
        return Waited(done, set())

    def _wake(self, lane: Any, number: int) -> None:
        if self._lane == (lane, number):
            self._lane = None
            lane.switch()


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a commit found and left behind."""

    at: float
    seq: int
    credits: int
    in_flight: int
    pressure: float
    """The gate's, looked at right after the commit."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What an admission found."""

    at: float
    seq: int
    in_flight: int
    """Jobs, with the range itself."""
    credits: int
    seen: bool
    """Whether the memory's reading was younger than its deadline."""


class WatchedLedger(LedgerModel):
    """Tells of every admission, whoever asked for it."""

    def __init__(self, now: Callable[[], datetime], admitted: Callable[[str, int], None]) -> None:
        super().__init__(now=now)
        self._admitted = admitted
        self.latest = -1
        """The range that was committed last."""

    def admit(self, hydration_id: str, **request: Any) -> Permit | None:
        """See ``Ledger.admit``."""
        permit = super().admit(hydration_id, **request)
        if permit is not None:
            self._admitted(hydration_id, permit.range.seq)
        return permit

    def commit(self, plan_id: str, seq: int, **values: Any) -> bool:
        """See ``Ledger.commit``."""
        self.latest = seq
        return super().commit(plan_id, seq, **values)


@dataclass(eq=False, kw_only=True)
class Flow:
    """One hydration: its source's pace, the sink and the cluster that it shares with others, and its lanes."""

    clock: EventClock
    sink: Station
    cluster: Cluster
    ranges: int
    budget: Budget
    name: str = "one"
    lanes: int = 1
    read_rate: float = float("inf")
    """Rows per second of the source; see ``reads`` for its changes."""
    commit_latency: float = 0.1
    """Seconds from the last row to the sink's commit."""
    shape: Callable[[int], tuple[float, int]] = lambda seq: (100_000.0, 64 * 2**20)
    """Rows of a range and the memory it takes."""
    moments: list[Moment] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    running: int = 0
    """Jobs that were submitted and have committed nothing yet, whatever the ledger says."""
    done_at: float | None = None

    def __post_init__(self) -> None:
        """Plan the hydration and let its lanes begin."""
        self.reads = Station(self.clock, self.read_rate)
        self.source = MemorySource(keys=range(self.ranges), identity=f"memory://{self.name}")
        self.target = MemorySink(identity=f"memory://into-{self.name}")
        self.ledger = WatchedLedger(self.clock.datetime, self._admitted)
        self.planned = Planner(
            source=self.source,
            sink=self.target,
            runner=Session(self, 0),
            ledger=self.ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="dag",
            cluster="spark",
        ).plan()
        self.id = self.planned.hydration.id
        self._left = self.lanes
        for number in range(self.lanes):
            lane = greenlet.greenlet(partial(self._lane, f"lane {number}"), parent=greenlet.getcurrent())
            self.clock.at(self.clock.now, lane.switch)

    def _lane(self, name: str) -> None:
        """One life after another, each ended by a deferral, until every range is in."""
        for life in count(1):
            session = Session(self, life)
            greenlet.getcurrent().session = session
            limiter = Limiter(
                ledger=self.ledger,
                hydration_id=self.id,
                budget=self.budget,
                memory=session.memory,
                clock=self.clock,
            )
            hydrator = Hydrator(
                hydration_id=self.id,
                plan=self.planned.plan,
                lane=name,
                ledger=self.ledger,
                source=self.source,
                sink=self.target,
                runner=session,
                limiter=limiter,
                budget=self.budget,
                share=-(-self.budget.credits // self.lanes),
                poll=POLL,
                clock=self.clock,
            )
            hydrator.on_commit = partial(self._committed, session)
            if hydrator.run().outcome is Outcome.DONE:
                self._left -= 1
                self.done_at = None if self._left else self.clock.now
                return
            while not limiter.look()[1].open:
                self.clock.sleep(LOOK_SECONDS)
            self.clock.sleep(DEFERRAL_SECONDS)

    def _admitted(self, hydration_id: str, seq: int) -> None:
        gate, reading = self.ledger.gate(hydration_id), self.cluster.memory()
        self.admissions.append(
            Admission(
                at=self.clock.now,
                seq=seq,
                in_flight=self.running + 1,
                credits=gate.credits,
                seen=reading.age_seconds <= self.budget.signal_deadline,
            )
        )

    def _committed(self, session: Session) -> None:
        gate = self.ledger.gate(self.id)
        decision = gate_decision(gate, session.memory(), self.budget, baseline_bytes=self.cluster.baseline)
        self.moments.append(
            Moment(
                at=self.clock.now,
                seq=self.ledger.latest,
                credits=gate.credits,
                in_flight=gate.in_flight,
                pressure=decision.pressure,
            )
        )


def install(monkeypatch: Any) -> None:
    """Let a lane of the simulation wait in the simulation's time."""

    def wait(jobs: Any, timeout: float, return_when: str = "") -> Waited:
        return greenlet.getcurrent().session.wait(jobs, timeout)

    monkeypatch.setattr(hydrator_module.log, "disabled", True)
    monkeypatch.setattr(hydrator_module, "wait", wait)


def run(clock: EventClock, *flows: Flow, until: float = 10**7) -> None:
    """Let time pass until every hydration is through; ``AssertionError`` where one never is."""
    while any(flow.done_at is None for flow in flows):
        assert clock.step(), "nothing will ever happen again, and a hydration is not through"
        assert clock.now < until, f"not through after {until:g} s"
