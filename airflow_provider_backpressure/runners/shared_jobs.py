"""Work that shares jobs: what is asked for while every slot of the cluster is taken goes there together, in one job.

A job costs the driver as much as a small table costs the executors. What is asked for while no job runs has one at
once, so that none waits for another one. While one runs, and slots are free, a piece may wait a moment for company.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from airflow_provider_backpressure.core.alarms import Alarm, set_alarm

MOST_TOGETHER = 32
"""Most pieces of one job: a piece waits for the slowest of its job."""
LINGER_SECONDS = 0.25
"""For how long a small range waits for others while a job runs: about as long as a job takes that has only this range.
"""
SLOTS = 8
"""Slots that are expected where the cluster does not say how many it has."""

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")


@dataclass(kw_only=True)
class SharedJobs(Generic[Piece, Answer]):
    """Runs pieces, each on a slot, by as few jobs as keep the slots busy. Threads may share it.

    A job that fails says nothing of its single pieces, so each of them gets a job of its own then.
    """

    run: Callable[[Sequence[Piece]], Sequence[Answer | BaseException]]
    """Runs one job, and returns the answers, or why there is none, in the order of the pieces."""
    submit: Callable[[Callable[[], None]], Any]
    """Calls a function in a thread."""
    slots: Callable[[], int | None] = lambda: None
    """Returns how many slots there are, if that is known."""
    repeats: Callable[[BaseException], bool] = lambda error: True
    """Whether the pieces of a job that failed so get jobs of their own."""
    linger: float = 0.0
    """Seconds for which a piece waits for others while a job runs, though a slot is free."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: "deque[tuple[Piece, Future[Answer]]]" = field(default_factory=deque)
    _since: float = 0.0
    """When the first of those has begun to wait, by :func:`time.monotonic`."""
    _alarm: Alarm | None = None
    """Looks again once that one has waited for long enough."""
    _busy: int = 0
    """Pieces that are in jobs."""
    _ended: "set[Future[Answer]]" = field(default_factory=set)
    """Of pieces in jobs, those that nobody waits for any more."""

    def ask(self, piece: Piece) -> "Future[Answer]":
        """Return the answer to come."""
        future: Future[Answer] = Future()
        slots = self.slots() or SLOTS
        with self._lock:
            self._since = self._since if self._waiting else time.monotonic()
            self._waiting.append((piece, future))
        self._begin(slots)
        return future

    def end(self, future: "Future[Answer]") -> None:
        """Begin no job for a piece from now on; one that it is in already is its caller's to stop."""
        with self._lock:
            waits = any(each is future for _, each in self._waiting)
            self._waiting = deque(each for each in self._waiting if each[1] is not future)
            if not waits and not future.done():
                self._ended.add(future)
        if waits:
            future.cancel()

    def close(self) -> None:
        """Cancel what has not begun."""
        with self._lock:
            left, self._waiting = self._waiting, deque()
            alarm = self._alarm
        if alarm is not None:
            alarm.cancel()
        for _, future in left:
            future.cancel()

    def _begin(self, slots: int) -> None:
        with self._lock:
            if not self._waiting or self._busy >= slots or self._lingers(slots):
                return
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))]
            self._busy += len(batch)
            # Those that are left have company in each other.
            self._since = 0.0

        def work() -> None:
            try:
                self._answer(batch)
            finally:
                with self._lock:
                    self._busy -= len(batch)
                    self._ended -= {future for _, future in batch}
                self._begin(slots)

        self.submit(work)

    def _lingers(self, slots: int) -> bool:
        """Whether what waits is to wait for more. Then it is looked at again by a timer, and where a job ends."""
        left = self._since + self.linger - time.monotonic()
        if not self._busy or len(self._waiting) >= MOST_TOGETHER or left <= 0:
            return False
        if self._alarm is None:
            self._alarm = set_alarm(left, partial(self._look_again, slots))
        return True

    def _look_again(self, slots: int) -> None:
        with self._lock:
            self._alarm = None
        self._begin(slots)

    def _answer(self, batch: "Sequence[tuple[Piece, Future[Answer]]]") -> None:
        try:
            answers = self.run([piece for piece, _ in batch])
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
            if len(batch) == 1 or not self.repeats(error):
                for _, future in batch:
                    future.set_exception(error)
                return
            for each in batch:
                self._repeat(each, error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _repeat(self, each: "tuple[Piece, Future[Answer]]", error: BaseException) -> None:
        with self._lock:
            ended = each[1] in self._ended
        if ended:
            each[1].set_exception(error)
        else:
            self._answer([each])
