"""Clock, stations and clusters of the simulation: everything that is there besides the product itself."""

import heapq
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import greenlet

from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec

GIB = 2**30


class EventClock:
    """Time that jumps from one event to the next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._hub = greenlet.getcurrent()

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Do something at a time; what was asked for first comes first."""
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), act))

    def step(self) -> bool:
        """Let the next event happen; ``False`` where none is left."""
        if not self._events:
            return False
        self.now, _, act = heapq.heappop(self._events)
        act()
        return True

    def stand(self) -> None:
        """Leave the processor to the others, until somebody switches back to this process."""
        self._hub.switch()

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        self.at(self.now + seconds, greenlet.getcurrent().switch)
        self.stand()

    def datetime(self) -> datetime:
        """Return the time as a database tells it."""
        return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)


class Station:
    """Work done at a rate: shared equally by all who are in it (``fifo``: one after another), at most ``each`` for one.

    Everybody's share is the same, so one counter of work done for each of them tells when who is through.
    """

    def __init__(self, clock: EventClock, rate: float, *, each: float = float("inf"), fifo: bool = False) -> None:
        self.clock, self.rate, self.each, self.fifo = clock, rate, each, fifo
        self._done, self._since, self._version = 0.0, clock.now, 0
        self._inside: list[tuple[float, int, Callable[[], object]]] = []
        self._last = 0.0
        self._numbers = count()

    def enter(self, work: float, then: Callable[[], object]) -> None:
        """Begin a piece of work; ``then`` is called when it is through."""
        self._advance()
        begins = max(self._done, self._last) if self.fifo else self._done
        self._last = begins + work
        heapq.heappush(self._inside, (begins + work, next(self._numbers), then))
        self._plan()

    def set_rate(self, rate: float) -> None:
        """Go on at another rate."""
        self._advance()
        self.rate = rate
        self._plan()

    def _pace(self) -> float:
        shared = 1 if self.fifo else max(1, len(self._inside))
        return min(self.each, self.rate / shared)

    def _advance(self) -> None:
        self._done += (self.clock.now - self._since) * self._pace()
        self._since = self.clock.now

    def _plan(self) -> None:
        self._version += 1
        pace = self._pace()
        if self._inside and pace > 0:
            version, left = self._version, max(0.0, self._inside[0][0] - self._done)
            self.clock.at(self.clock.now + left / pace, lambda: self._leave(version))

    def _leave(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        end, _, then = heapq.heappop(self._inside)
        self._done = max(self._done, end)
        self._plan()
        then()


@dataclass(eq=False)
class Executor:
    """One executor and what runs in it."""

    jobs: list["Job"] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class Job:
    """A range on its way through a cluster."""

    spec: RangeSpec
    future: "Future[RangeResult]"
    session: Any
    """Whoever submitted it, see ``flow.Session``."""
    rows: float
    memory: int
    learned: bool
    """Whether what a range takes was known when it was admitted."""
    executor: Executor | None = None
    life: int = 0
    """Grows when its executor is lost, so that events of the life before count no more."""


class Cluster:
    """A Spark cluster: executors with slots; a job waits for a slot and takes its memory for as long as it runs."""

    def __init__(
        self, clock: EventClock, *, executors: int = 1, slots: int = 16, limit: int = 8 * GIB, baseline: int = GIB
    ) -> None:
        self.clock, self.slots, self.limit, self.baseline = clock, slots, limit, baseline
        self.executors = [Executor() for _ in range(executors)]
        self.waiting: deque[Job] = deque()
        self.seen = True
        self._last_seen = 0.0
        self.peak = baseline
        """Most that one executor ever held, of ranges whose memory was known."""

    def submit(self, job: Job) -> None:
        """Start a job, or let it wait for a slot."""
        self.waiting.append(job)
        self._start()

    def release(self, job: Job) -> None:
        """Take an ended job's place back."""
        if job.executor is not None:
            job.executor.jobs.remove(job)
            job.executor = None
        self._start()

    def scale(self, executors: int) -> None:
        """Add executors, or lose some with all that runs in them; Spark begins those tasks again."""
        while len(self.executors) < executors:
            self.executors.append(Executor())
        for lost in self.executors[executors:]:
            for job in lost.jobs:
                job.life += 1
                job.executor = None
                self.waiting.appendleft(job)
        del self.executors[executors:]
        self._start()

    def used(self, executor: Executor) -> int:
        """Return the memory that an executor holds."""
        return self.baseline + sum(job.memory for job in executor.jobs)

    def memory(self) -> MemoryReading:
        """Return what a runner would tell: the fullest executor, as it was last seen."""
        if self.seen:
            self._last_seen = self.clock.now
        fullest = max((self.used(executor) for executor in self.executors), default=self.baseline)
        return MemoryReading(
            used_bytes=fullest, limit_bytes=self.limit, age_seconds=self.clock.now - self._last_seen, executor="1"
        )

    def _start(self) -> None:
        while self.waiting and self.executors:
            executor = min(self.executors, key=lambda one: len(one.jobs))
            if len(executor.jobs) >= self.slots:
                return
            job = self.waiting.popleft()
            executor.jobs.append(job)
            job.executor = executor
            if all(one.learned for one in executor.jobs):
                self.peak = max(self.peak, self.used(executor))
            job.session.begin(job)
