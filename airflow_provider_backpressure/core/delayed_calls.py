"""Calls that are due later, most of which are called off before: one thread waits for all of a process.

A thread for each, as ``threading.Timer`` has it, takes longer to start than a small statement takes.
"""

import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Timer:
    """One call to come."""

    _call: Callable[[], object] | None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Call it off. Once this returns, the call is over or never comes."""
        with self._lock:
            self._call = None

    def fire(self) -> None:
        """Make the call, unless it was called off or made already."""
        with self._lock:
            call, self._call = self._call, None
            if call is None:
                return
            try:
                call()
            except Exception:
                log.exception("What was due has failed.")

    @property
    def is_off(self) -> bool:
        """Whether it was called off or made."""
        return self._call is None


class Timers:
    """Timers by the time when they are due. Threads may share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._running = False

    def set(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Let ``call`` be made after so many seconds. It holds up all others, and so must not wait."""
        timer, at = Timer(_call=call), time.monotonic() + seconds
        with self._changed:
            heapq.heappush(self._due, (at, next(self._numbers), timer))
            if not self._running:
                # In this order: a signal may raise in between, and no thread would be begun after that.
                threading.Thread(target=self._run, name="backpressure-timers", daemon=True).start()
                self._running = True
            elif self._due[0][2] is timer:
                self._changed.notify()
        return timer

    def _run(self) -> None:
        while (timer := self._wait()) is not None:
            timer.fire()

    def _wait(self) -> Timer | None:
        """Return the next timer once it is due; ``None`` where there is none, which ends the thread."""
        with self._changed:
            while True:
                while self._due and self._due[0][2].is_off:
                    heapq.heappop(self._due)
                if not self._due:
                    self._running = False
                    return None
                left = self._due[0][0] - time.monotonic()
                if left <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left)


_timers = Timers()


def start_timer(seconds: float, call: Callable[[], object]) -> Timer:
    """Let ``call`` be made in this process after so many seconds, in another thread; it must not wait."""
    return _timers.set(seconds, call)


def _reset() -> None:
    # A child that was forked has none of its parent's threads, and may have one of its locks held for ever.
    global _timers
    _timers = Timers()


os.register_at_fork(after_in_child=_reset)
