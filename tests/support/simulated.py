"""What lanes reach in the simulation: a ledger that checks itself, a sink with connections, and Spark's tasks.

A task does what ``connectors.postgres.tasks.slice_commit`` does: what it holds between its marker and its commit
keeps others out.
"""

import copy
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.gate.hydration_record import Permit
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.ranges import RangeState, attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec, SliceResult
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    PlanSuperseded,
    RangeFailed,
    SinkUnavailable,
)
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from tests.support.actors import Actor, Link, VirtualClock, pause
from tests.support.ledger_model import LedgerModel
from tests.support.ledger_model.tables import Entry

MARKER_WAIT = 10.0
"""Seconds for which a task waits for another one's marker, as ``connectors.postgres.tasks.connections`` has it."""


class SimulatedLedger(LedgerModel):
    """Sees to it that nothing is admitted over the credits, or at a gate that a person has closed."""

    def admit(self, hydration_id: str, **request: Any) -> Permit | None:
        """See ``Ledger.admit``."""
        permit = super().admit(hydration_id, **request)
        figures = self._tables.entry(hydration_id).figures
        if permit is not None:
            assert figures.paused_by is None, "a range was admitted while a person had paused"
            assert self.admitted(hydration_id) <= figures.credits, "a range was admitted over the credits"
        return permit

    def admitted(self, hydration_id: str) -> int:
        """Count the ranges that hold a credit by their own rows, those of older plans too."""
        return sum(
            record.state is RangeState.ADMITTED and record.hydration_id == hydration_id
            for plan in self._tables.ranges.values()
            for record in plan.values()
        )

    @property
    def entry(self) -> Entry | None:
        """The only hydration, once it is registered; cheaper than by the port."""
        return next(iter(self._tables.entries.values()), None)

    def back_up(self, clock: VirtualClock) -> Any:
        """Return a copy of all tables."""
        return copy.deepcopy(self._tables, {id(clock): clock})

    def restore_from(self, backup: Any, clock: VirtualClock) -> None:
        """Let a copy take the tables' place."""
        self._tables = copy.deepcopy(backup, {id(clock): clock})


@dataclass(kw_only=True, eq=False)
class Connection:
    """A task's connection to the sink."""

    slice: tuple[str, str]
    attempt: int
    ended: bool = False
    marked: bool = False
    """Whether its marker stands in its open transaction: nobody else gets past it."""


@dataclass(kw_only=True)
class SimulatedSink(MemorySink):
    """A sink whose connections can be ended; one that was cannot commit any more."""

    connections: list[Connection] = field(default_factory=list)

    def end_attempts(self, plan_id: str, slice_id: str) -> int:
        """See ``Sink.end_attempts``."""
        return self.end((plan_id, slice_id), below=2**31)

    def end(self, piece: tuple[str, str], *, below: int) -> int:
        """End connections of attempts at a slice, as a later attempt does with the earlier ones."""
        found = [one for one in self.connections if one.slice == piece and one.attempt < below]
        for one in found:
            one.ended = True
        self.connections = [one for one in self.connections if not one.ended]
        return len(found)

    def end_all(self) -> None:
        """End every connection, as a server that goes down does."""
        for one in self.connections:
            one.ended = True
        self.connections.clear()

    def marking(self, asking: Connection) -> Connection | None:
        """Return another connection whose marker of the same slice is not committed yet."""
        return next(
            (one for one in self.connections if one is not asking and one.slice == asking.slice and one.marked), None
        )

    def back_up(self) -> tuple[Any, ...]:
        """Return a copy of rows, markers and plan row."""
        return list(self.rows), dict(self._markers), self.plan, self.last_epoch

    def restore_from(self, backup: tuple[Any, ...]) -> None:
        """Let a copy take the place of what is there; nobody is connected then."""
        self.end_all()
        rows, markers, self.plan, self.last_epoch = backup
        self.rows[:], self._markers = rows, dict(markers)


@dataclass(kw_only=True, eq=False)
class Task:
    """A Spark task at work on a slice. ``future``: whoever waits for it."""

    spec: RangeSpec
    future: "Future[RangeResult] | None"
    actor: Actor = field(init=False)
    connection: Connection | None = None
    cancelled: bool = False

    @property
    def name(self) -> str:
        """The attempt as it is called everywhere."""
        return attempt_tag(self.spec.plan_id, self.spec.slices[0].slice_id, self.spec.attempt)

    def tell(self, result: "RangeResult | Exception") -> None:
        """Give the outcome to who waits for it."""
        future, self.future = self.future, None
        if future is None:
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


class Around(Protocol):
    """What Spark's tasks meet: see ``tests.support.simulation.World``."""

    clock: VirtualClock
    source: MemorySource
    sink: SimulatedSink
    sink_link: Link
    seen: Counter[str]

    def read(self, spec: RangeSpec) -> None:
        """Note that a slice is read from the source."""
        ...

    def reach(self, step: Step, tag: str) -> None:
        """Stop at a failpoint."""
        ...


class SimulatedSpark(MemoryRunner):
    """Runs a task for each range until it is ended; an interrupt is only a wish, which takes its time."""

    def __init__(self, world: Around) -> None:
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
        task.actor = Actor(f"task {task.name}", lambda: self._work(task))
        self.tasks.append(task)

    def again(self, task: Task) -> None:
        """Let Spark run a task once more, for the same one who waits for it."""
        self.start(Task(spec=task.spec, future=task.future))
        task.future = None

    def interrupt(self, session_id: str, tag: str) -> None:
        """See ``Runner.interrupt``."""
        for task in self.tasks:
            task.cancelled = task.cancelled or task.spec.tag == tag

    def die(self, task: Task) -> None:
        """Kill a task's process; its connection breaks."""
        task.actor.kill()
        self._gone(task)

    def _gone(self, task: Task) -> None:
        if task.connection is not None:
            task.connection.ended = True
            self.world.sink.connections = [one for one in self.world.sink.connections if not one.ended]
        self.tasks.remove(task)

    def _work(self, task: Task) -> None:
        try:
            marker = self._copied(task)
        except BackpressureError as error:
            task.tell(error)
        else:
            task.tell(told(task.spec, marker))
        self._gone(task)

    def _copied(self, task: Task) -> Marker:
        """Do what ``SliceCommit.run`` does."""
        sink, (piece,) = self.world.sink, task.spec.slices
        self._reach_sink(None)
        connection = Connection(slice=(task.spec.plan_id, piece.slice_id), attempt=task.spec.attempt)
        task.connection = connection
        sink.connections.append(connection)
        pause("the sink, connected")
        sink.end(connection.slice, below=task.spec.attempt)
        self._reach_sink(connection)
        found = recorded(sink, task.spec)
        if found is not None:
            return found
        self.world.read(task.spec)
        keys = self.source.read(piece.query)
        self.world.reach(Step.IN_COPY, task.name)
        self._mark(task.spec, connection)
        self.world.reach(Step.BEFORE_SINK_COMMIT, task.name)
        self._reach_sink(connection)
        marker = self._committed(task, keys)
        connection.marked = False
        self.world.reach(Step.AFTER_SINK_COMMIT, task.name)
        try:
            self._reach_sink(connection)
        except SinkUnavailable:
            self.world.seen["commit unknown"] += 1
            raise
        return marker

    def _committed(self, task: Task, keys: list[int]) -> Marker:
        seen, before = self.world.seen, len(self.world.sink.rows)
        try:
            marker = self.world.sink.commit(task.spec, task.spec.slices[0], keys)
        except PlanSuperseded:
            seen["zombie refused"] += 1
            raise
        wrote = len(self.world.sink.rows) > before
        seen["zombie committed"] += wrote and (task.future is None or task.cancelled)
        seen["double refused"] += not wrote
        return marker

    def _mark(self, spec: RangeSpec, connection: Connection) -> None:
        """Put the marker into the open transaction once nobody else's stands there, as ``SliceCommit._mark`` does."""
        until = self.world.clock.now + MARKER_WAIT
        while (other := self.world.sink.marking(connection)) is not None:
            self._reach_sink(connection)
            if self.world.clock.now >= until:
                self.world.sink.end(connection.slice, below=spec.attempt + 1)
                if connection.ended or other is self.world.sink.marking(connection):
                    raise SinkUnavailable("A lock was not given.")
            pause("another one's marker")
        self._reach_sink(connection)
        connection.marked = True

    def _reach_sink(self, connection: Connection | None) -> None:
        if self.world.sink_link.down or (connection is not None and connection.ended):
            raise SinkUnavailable("The connection is gone.")


def recorded(sink: MemorySink, spec: RangeSpec) -> Marker | None:
    """Return the marker of a task's slice where there is one, as ``SliceCommit`` looks for it before it reads."""
    if sink.epoch(spec.plan_id) != spec.epoch:
        raise PlanSuperseded(f"Plan {spec.plan_id} no longer holds the target.")
    slice_id = spec.slices[0].slice_id
    found = sink.markers(spec.plan_id, [slice_id]).get(slice_id)
    if found is not None and found.revoked:
        raise PlanSuperseded(f"Slice {slice_id} was revoked.")
    return found


def told(spec: RangeSpec, marker: Marker) -> RangeResult:
    """Return what a task says at its end."""
    result = SliceResult(slice_id=marker.slice_id, rows=marker.rows, bytes=marker.bytes, checksum=marker.checksum)
    return RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=(result,))


def lost(seq: int) -> RangeFailed:
    """Return what a lane hears of a task whose process died."""
    return RangeFailed(f"The task of range {seq} was lost.")
