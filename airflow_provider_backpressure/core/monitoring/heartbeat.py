"""What a task does, reported in a thread of its own: to the ledger as a heartbeat, to the task's log as a line."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.default_limits import HEARTBEAT_SECONDS
from airflow_provider_backpressure.core.delayed_calls import Timer, start_timer
from airflow_provider_backpressure.core.gate.task_activity import Activity, Step
from airflow_provider_backpressure.core.monitoring.source_observer import nobodys_error
from airflow_provider_backpressure.core.ports.ledger import Ledger

LINE_SECONDS = 10.0
"""Most seconds between two lines of a task that works."""
TICK_SECONDS = 2.0
"""Seconds between two looks at what has changed."""


@dataclass(kw_only=True)
class Heartbeat:
    """Beats while it is entered. A beat that fails fails nothing else."""

    ledger: Ledger
    hydration_id: str
    activity: Activity
    write: Callable[[], None]
    """Writes the line."""
    delay: float = 0.0
    """Seconds before the first beat: what is over by then needs none."""
    tick: float = TICK_SECONDS
    line_seconds: float = LINE_SECONDS
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)
    _timer: Timer | None = None
    _beaten: Activity | None = None

    def __enter__(self) -> "Heartbeat":
        """Beat again and again."""
        self._thread = threading.Thread(target=self._run, name="backpressure-heartbeat", daemon=True)
        if self.delay:
            self._timer = start_timer(self.delay, self._thread.start)
        else:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End, but do not wait long: a ledger may be frozen."""
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread.ident is not None:
            self._thread.join(self.tick)
        # What was planned is kept together with what follows.
        if self.activity.step is Step.PLANNING and (self._beaten is not None or kind is not None):
            with nobodys_error("This heartbeat is not kept"):
                self.ledger.keep_activity(self.hydration_id, self.after)

    @property
    def after(self) -> Activity:
        """What follows in the run once it is planned: until the task of the ranges is heard nothing is planned."""
        return replace(self.activity, step=Step.RANGES)

    def count(self, done: int, total: int) -> None:
        """Take note of how far the task is."""
        self.activity = replace(self.activity, done=done, total=total)

    def _run(self) -> None:
        begun = time.monotonic()
        next_beat, next_line = begun, begun + self.line_seconds
        while True:
            now, activity = time.monotonic(), self.activity
            if now >= next_beat or activity != self._beaten:
                self._beaten = activity
                with nobodys_error("This heartbeat is not kept"):
                    self.ledger.keep_activity(self.hydration_id, activity)
                next_beat = now + HEARTBEAT_SECONDS
            if now >= next_line:
                with nobodys_error("How far the task is cannot be said now"):
                    self.write()
                next_line = now + self.line_seconds
            if self._over.wait(self.tick):
                return


@contextmanager
def beat_for(
    ledger: Ledger, held: Callable[[], Collection[str]], *, every: float = HEARTBEAT_SECONDS
) -> Iterator[None]:
    """Beat meanwhile for all hydrations that a task has: most of many tables wait while it works on some of them."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every):
            if ids := held():
                with nobodys_error("This heartbeat is not kept"):
                    ledger.hear(ids)

    thread = threading.Thread(target=beat, name="backpressure-hearing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(TICK_SECONDS)
