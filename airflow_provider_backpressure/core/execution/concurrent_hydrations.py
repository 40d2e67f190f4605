"""Work on many hydrations in one task: several at once, and one that fails or has to wait stops nobody else."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from airflow_provider_backpressure.core.poll_policy import Clock, SystemClock

MOST_THREADS = 32
"""Most items that are worked on at once, however many may be."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(kw_only=True)
class Finished(Generic[Item, Result]):
    """What became of each item."""

    done: dict[Item, Result] = field(default_factory=dict)
    failed: dict[Item, Exception] = field(default_factory=dict)
    waiting: dict[Item, Result | None] = field(default_factory=dict)
    """What has to wait, with its latest result; ``None`` where it was not begun, for those before it wait."""


@dataclass(kw_only=True)
class WorkPool(Generic[Item, Result]):
    """Works on items, each in a thread, until every one has ended or none can continue now."""

    work: Callable[[Item], Result]
    most: Callable[[], int] = lambda: MOST_THREADS
    """How many may be worked on at once, as it is now."""
    must_wait: Callable[[Result], bool] = lambda result: False
    """Whether a result says that the item has to be tried again later."""
    blocks_others: Callable[[Result], bool] = lambda result: False
    """Whether those that were not begun would wait for the same, behind it."""
    inline_wait: float = 0.0
    """Seconds to try again for, once nothing is being worked on."""
    pause: float = 1.0
    """Seconds between two tries of an item that has to wait."""
    clock: Clock = field(default_factory=SystemClock)
    """Raises in the caller's thread where the work is to end."""
    cancel: Callable[[], None] = lambda: None
    """Lets what is being worked on end soon; called where the work is to end."""
    on_end: Callable[[Item, Result | Exception], None] = lambda item, result: None
    """Called in the caller's thread with each item that has ended."""
    _ready: deque[Item] = field(default_factory=deque)
    _held: dict[Item, Result] = field(default_factory=dict)
    _running: dict["Future[Result]", Item] = field(default_factory=dict)

    def run(self, items: Iterable[Item]) -> Finished[Item, Result]:
        """Return what became of the items. An error of one ends that one alone."""
        self._ready.extend(items)
        found: Finished[Item, Result] = Finished()
        again_at = 0.0
        waiting_since: float | None = None
        pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="backpressure-table")
        try:
            while self._ready or self._held or self._running:
                now = self.clock.monotonic()
                if self._held and now >= again_at:
                    self._ready.extendleft(reversed(self._held))
                    found.waiting.update(self._held)
                    self._held.clear()
                self._start(pool)
                if not self._running:
                    if waiting_since is not None and now >= waiting_since + self.inline_wait:
                        break
                    self.clock.sleep(self.pause)
                    continue
                ended, again = self._take_ended(found)
                if ended:
                    # It has released what the others wait for.
                    again_at, waiting_since = 0.0, None
                elif again:
                    again_at = self.clock.monotonic() + self.pause
                    waiting_since = now if waiting_since is None else waiting_since
        except BaseException:
            self.cancel()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        found.waiting = {**self._held, **{item: found.waiting.get(item) for item in self._ready}}
        return found

    def _start(self, pool: ThreadPoolExecutor) -> None:
        if any(self.blocks_others(result) for result in self._held.values()):
            return
        while self._ready and len(self._running) < max(1, min(self.most(), MOST_THREADS)):
            item = self._ready.popleft()
            self._running[pool.submit(self.work, item)] = item

    def _take_ended(self, found: Finished[Item, Result]) -> tuple[bool, bool]:
        """Return whether an item has ended, and whether one has to wait."""
        ended = again = False
        for future in wait(self._running, timeout=self.pause, return_when=FIRST_COMPLETED).done:
            item = self._running.pop(future)
            error = future.exception()
            if error is not None:
                if not isinstance(error, Exception):
                    raise error
                found.failed[item], ended = error, True
                self.on_end(item, error)
                continue
            result = future.result()
            if self.must_wait(result):
                self._held[item], again = result, True
            else:
                found.done[item] = result
                self.on_end(item, result)
                ended = True
        return ended, again
