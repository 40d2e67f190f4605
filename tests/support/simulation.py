"""Lanes and Spark tasks as actors on one thread: whoever may take a step, and who dies, is chosen from outside.

The hydrator, the planner and the ledger are the real ones (the ledger in memory). An actor stops at every failpoint, at
every call over a network and at every wait; there another one may go on, or the actor may be killed, or left standing
for as long as the schedule likes: then it is a zombie, and goes on later.
"""

import contextlib
from collections import Counter, namedtuple
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import greenlet

from airflow_provider_backpressure.core import hydrator as hydrator_module
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.hydrator import Hydrator
from airflow_provider_backpressure.core.limiter import Limiter
from airflow_provider_backpressure.core.messages import RangeResult, RangeSpec, SliceResult
from airflow_provider_backpressure.core.planner import Planned, Planner
from airflow_provider_backpressure.core.polling import PollPolicy
from airflow_provider_backpressure.core.ports import Marker
from airflow_provider_backpressure.core.ranges import RangeState
from airflow_provider_backpressure.core.statistics import total_progress
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LedgerUnavailable,
    PlanSuperseded,
    RangeFailed,
    RunnerUnavailable,
    SinkUnavailable,
    Transient,
)
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource

POLL = PollPolicy(initial=1.0, maximum=5.0)
Waited = namedtuple("Waited", "done not_done")


class Killed(BaseException):
    """SIGKILL: no handler sees it."""


def pause() -> None:
    """Let the schedule decide who goes on; nothing outside of an actor."""
    parent = greenlet.getcurrent().parent
    if parent is not None:
        parent.switch()


def _schedule() -> greenlet.greenlet:
    """Return where every actor comes back to, also one that another actor has started."""
    found = greenlet.getcurrent()
    while found.parent is not None:
        found = found.parent
    return found


class VirtualClock:
    """Time of everybody, the ledger's database too; it moves when the schedule says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Stand until it is time."""
        until = self.now + seconds
        while self.now < until:
            pause()

    def datetime(self) -> datetime:
        """Return the time as a database tells it."""
        return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)


class Actor:
    """A process. It runs when it is told to, up to its next stop."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._greenlet = greenlet.greenlet(self._run, parent=_schedule())

    @property
    def alive(self) -> bool:
        """Whether it has something left to do."""
        return not self._greenlet.dead

    def step(self) -> None:
        """Go on to the next stop."""
        self._greenlet.switch()

    def kill(self) -> None:
        """End it where it stands; it does nothing any more."""
        with contextlib.suppress(Killed):  # raised here where it has not begun yet
            self._greenlet.throw(Killed)

    def _run(self) -> None:
        # Each is a process that has ended; any other error is a failure of the test.
        with contextlib.suppress(Killed, Transient, PlanSuperseded):
            self._work()


@dataclass(kw_only=True)
class Link:
    """The way to a database: it may be cut, or lose the next answer after the question has done its work."""

    error: type[Transient]
    down: bool = False
    lossy: bool = False

    def to(self, port: Any) -> Any:
        """Return the port as it is seen over this way."""
        return _Remote(port, self)


class _Remote:
    def __init__(self, port: Any, link: Link) -> None:
        self._port, self._link = port, link

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            pause()
            if self._link.down:
                raise self._link.error("It does not answer.")
            answer = found(*args, **options)
            if self._link.lossy:
                self._link.lossy = False
                raise self._link.error("The answer was lost.")
            return answer

        return call


@dataclass(kw_only=True, eq=False)
class Connection:
    """A task's connection to the sink."""

    slice_id: str
    attempt: int
    ended: bool = False


@dataclass(kw_only=True)
class SimulatedSink(MemorySink):
    """A sink whose connections can be ended; one that was cannot commit any more."""

    connections: list[Connection] = field(default_factory=list)

    def end_attempts(self, plan_id: str, slice_id: str) -> int:
        """See ``Sink.end_attempts``."""
        return self.end(slice_id, below=2**31)

    def end(self, slice_id: str, *, below: int) -> int:
        """End connections of attempts at a slice, as a later attempt does with the earlier ones."""
        found = [one for one in self.connections if one.slice_id == slice_id and one.attempt < below and not one.ended]
        for one in found:
            one.ended = True
        self.connections = [one for one in self.connections if not one.ended]
        return len(found)


@dataclass(kw_only=True, eq=False)
class Task:
    """A Spark task at work on a slice, as ``spark.writers.postgres`` does it. ``future``: whoever waits for it."""

    spec: RangeSpec
    future: "Future[RangeResult] | None"
    actor: Actor = field(init=False)
    connection: Connection | None = None
    cancelled: bool = False

    def tell(self, result: "RangeResult | Exception") -> None:
        """Give the outcome to who waits for it."""
        future, self.future = self.future, None
        if future is None:
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


class SimulatedSpark(MemoryRunner):
    """Runs a task for each range until it is ended; an interrupt is only a wish, which takes its time."""

    def __init__(self, world: "World") -> None:
        super().__init__(source=world.source, sink=world.sink)
        self.world = world
        self.tasks: list[Task] = []

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See ``Runner.run``."""
        future: Future[RangeResult] = Future()
        self.start(Task(spec=spec, future=future))
        return future

    def start(self, task: Task) -> None:
        """Let a task begin, for the first time or again."""
        task.actor = Actor(lambda: self._work(task))
        self.tasks.append(task)

    def interrupt(self, session_id: str, tag: str) -> None:
        """See ``Runner.interrupt``."""
        for task in self.tasks:
            task.cancelled = task.cancelled or task.spec.tag == tag

    def die(self, task: Task) -> None:
        """Kill a task's process; its connection breaks."""
        task.actor.kill()
        if task.connection is not None:
            task.connection.ended = True
        self.tasks.remove(task)

    def _work(self, task: Task) -> None:
        try:
            marker = self._copy(task)
        except BackpressureError as error:
            task.tell(error)
        else:
            task.tell(told(task.spec, marker))
        self.tasks.remove(task)

    def _copy(self, task: Task) -> Marker:
        spec, sink = task.spec, self.world.sink
        (piece,) = spec.slices
        self._reach_sink(None)
        connection = Connection(slice_id=piece.slice_id, attempt=spec.attempt)
        task.connection = connection
        sink.connections.append(connection)
        pause()
        sink.end(piece.slice_id, below=spec.attempt)
        found = sink.markers(spec.plan_id, [piece.slice_id]).get(piece.slice_id)
        if found is not None:
            return found
        keys = self.source.read(piece.query)
        self.world.reads[piece.slice_id] += 1
        pause()  # in the copy
        self._reach_sink(connection)
        pause()  # before the commit
        self._reach_sink(connection)
        marker = sink.commit(spec, piece, keys)
        pause()  # after the commit
        self._reach_sink(connection)
        return marker

    def _reach_sink(self, connection: Connection | None) -> None:
        if self.world.sink_link.down or (connection is not None and connection.ended):
            raise SinkUnavailable("The connection is gone.")


class World:
    """One hydration, its lanes and Spark."""

    def __init__(self, *, ranges: int, credits: int) -> None:
        rows = ranges * 3
        self.clock = VirtualClock()
        self.source = MemorySource(keys=range(rows))
        self.sink = SimulatedSink()
        self.ledger = MemoryLedger(now=self.clock.datetime)
        self.spark = SimulatedSpark(self)
        self.sink_link, self.ledger_link = Link(error=SinkUnavailable), Link(error=LedgerUnavailable)
        self.budget = Budget(credits=credits, range_rows=3)
        self.lanes: dict[str, Actor] = {}
        self.zombies: list[Actor] = []
        self.reads: Counter[str] = Counter()
        self.planned = self._plan(restart=False)

    def restart(self) -> None:
        """A person empties the target and asks for a new plan; what runs for the old one goes on as it may."""
        self.sink.rows.clear()
        self.planned = self._plan(restart=True)

    def _plan(self, *, restart: bool) -> Planned:
        return Planner(
            source=self.source,
            sink=self.sink,
            runner=self.spark,
            ledger=self.ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="dag",
            cluster="spark",
        ).plan(restart=restart)

    def live(self, lane: str) -> None:
        """Begin a life of a lane; a former one that has not ended goes on as a zombie."""
        former = self.lanes.pop(lane, None)
        if former is not None and former.alive:
            self.zombies.append(former)
        self.lanes[lane] = Actor(lambda: self._hydrator(lane).run())

    def _hydrator(self, lane: str) -> Hydrator:
        ledger = self.ledger_link.to(self.ledger)
        hydration_id = self.planned.hydration.id
        return Hydrator(
            hydration_id=hydration_id,
            plan=self.planned.plan,
            lane=lane,
            ledger=ledger,
            source=self.source,
            sink=self.sink_link.to(self.sink),
            runner=self.spark,
            limiter=Limiter(ledger=ledger, hydration_id=hydration_id, budget=self.budget, memory=self.spark.memory),
            budget=self.budget,
            share=self.budget.credits,
            poll=POLL,
            clock=self.clock,
        )

    def wait(self, jobs: Any, timeout: float, return_when: str = "") -> Waited:
        """Stand until one of the futures is done: in the place of ``concurrent.futures.wait``."""
        until = self.clock.now + timeout
        while True:
            done = {job for job in jobs if job.done()}
            if done or self.clock.now >= until:
                return Waited(done, set(jobs) - done)
            pause()

    def actors(self) -> list[Actor]:
        """Return everybody who can take a step, zombies too."""
        every = [*self.lanes.values(), *self.zombies, *(task.actor for task in self.spark.tasks)]
        return [one for one in every if one.alive]

    def driver_dies(self) -> None:
        """Nobody waits for the tasks any more; whether they end too, and when, is open."""
        for task in self.spark.tasks:
            task.tell(RunnerUnavailable("Spark Connect does not answer."))

    def check(self) -> None:
        """Hold at every instant: nothing doubled, never more credits out than there are, the ledger never ahead."""
        rows, plan_id = self.sink.rows, self.planned.plan.plan_id
        assert len(rows) == len(set(rows)), "a row is in the sink twice"
        records = self.ledger.ranges(plan_id)
        assert sum(record.state is RangeState.ADMITTED for record in records) <= self.budget.credits
        committed = [record for record in records if record.state is RangeState.COMMITTED]
        markers = self.sink.markers(plan_id)
        assert {record.slice_id for record in committed} <= set(markers), "the ledger ran ahead of the sink"
        progress = total_progress(self.ledger.statistics(self.planned.hydration.id))
        assert progress.committed == sum(markers[record.slice_id].rows for record in committed)

    def check_end(self) -> None:
        """Hold at the end: everything is there once, and nothing is left over."""
        self.check()
        assert sorted(self.sink.rows) == list(self.source.keys)
        gate = self.ledger.gate(self.planned.hydration.id)
        assert (gate.in_flight, gate.waiting) == (0, 0)
        assert self.ledger.counts(self.planned.plan.plan_id).committed == self.planned.ranges
        self.ledger.finish(self.planned.hydration.id)


def install(monkeypatch: Any, world: Callable[[], World]) -> None:
    """Let the hydrator stop at its failpoints and its waits."""

    def reach(step: Step, tag: str) -> None:
        pause()

    monkeypatch.setattr(hydrator_module.log, "disabled", True)
    monkeypatch.setattr(hydrator_module, "reach", reach)
    monkeypatch.setattr(hydrator_module, "wait", lambda jobs, **options: world().wait(jobs, **options))


def told(spec: RangeSpec, marker: Marker) -> RangeResult:
    """Return what a task says at its end."""
    result = SliceResult(slice_id=marker.slice_id, rows=marker.rows, bytes=marker.bytes, checksum=marker.checksum)
    return RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=(result,))


def lost(seq: int) -> RangeFailed:
    """Return what a lane hears of a task whose process died."""
    return RangeFailed(f"The task of range {seq} was lost.")
