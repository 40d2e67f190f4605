"""Work that shares jobs: what is asked for while every slot of the cluster is taken goes there together, in one job.

A job costs the driver as much as a small table costs the executors. As long as slots are free, each piece has a job of
its own, so that none waits for another one.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from airflow_provider_backpressure.core.default_limits import RANGES_PER_SHARED_JOB

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
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: "deque[tuple[Piece, Future[Answer]]]" = field(default_factory=deque)
    _busy: int = 0
    """Pieces that are in jobs."""
    _ended: "set[Future[Answer]]" = field(default_factory=set)
    """Of pieces in jobs, those that nobody waits for any more."""

    def ask(self, piece: Piece) -> "Future[Answer]":
        """Return the answer to come."""
        future: Future[Answer] = Future()
        slots = self.slots() or SLOTS
        with self._lock:
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
        for _, future in left:
            future.cancel()

    def _begin(self, slots: int) -> None:
        with self._lock:
            if not self._waiting or self._busy >= slots:
                return
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), RANGES_PER_SHARED_JOB))]
            self._busy += len(batch)

        def work() -> None:
            try:
                self._answer(batch)
            finally:
                with self._lock:
                    self._busy -= len(batch)
                    self._ended -= {future for _, future in batch}
                self._begin(slots)

        self.submit(work)

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
