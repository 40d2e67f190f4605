"""Changes as they happen: a page says what it has seen, and is answered when there is more. No thread waits for it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.core.push.wait_queue import Waiter

SETTLE_SECONDS = 2.0
"""How long after its first request a page waits for a subscription, before it learns that there is none."""
LINGER_SECONDS = 30.0
"""How long changes of a hydration are heard after the last page has gone: the next question follows soon."""

Numbers = dict[str, int | None]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """The answer to a page."""

    pushed: bool
    """Whether changes arrive; if not, the page has to poll."""
    moved: Mapping[str, int]
    """The number of the latest change, of those hydrations where it is another one than the page has seen."""


class Live:
    """Follows hydrations for all pages of this process. Used in one event loop.

    ``opened``: gives the ledger and this process's end of its channel, and may block for that.
    """

    def __init__(self, opened: Callable[[], tuple[Ledger, Push | None]]) -> None:
        self._opened = opened
        self._followed: dict[tuple[Push, str], _Followed] = {}

    async def wait(self, seen: Mapping[str, int], *, seconds: float) -> Heard:
        """Return as soon as one of these hydrations has another number than was seen, or after ``seconds``.

        At once where changes are not heard, once there was time for that to begin.
        """
        ledger, push = await run_in_threadpool(self._opened)
        if push is None or not seen:
            return Heard(pushed=False, moved={})
        clock = asyncio.get_running_loop().time
        settled, end = clock() + min(seconds, SETTLE_SECONDS), clock() + seconds
        with self._follow(push, ledger, seen) as bell:
            while True:
                bell.clear()
                numbers = await self._numbers(push, ledger, seen)
                moved = {each: now for each, now in numbers.items() if now not in (None, seen[each])}
                pushed = None not in numbers.values()
                left = (end if pushed else settled) - clock()
                if moved or left <= 0:
                    return Heard(pushed=pushed, moved={each: now for each, now in moved.items() if now is not None})
                with suppress(TimeoutError):
                    await asyncio.wait_for(bell.wait(), left)

    async def _numbers(self, push: Push, ledger: Ledger, ids: Mapping[str, int]) -> Numbers:
        """Return the latest numbers. The ledger is read only where something was missed, once for all pages."""
        known = {each: push.number(each) for each in ids}
        missed = [each for each, number in known.items() if number is None]
        if missed:
            await run_in_threadpool(lambda: [push.read_gate(ledger, each) for each in missed])
        return {each: push.number(each) if each in missed else known[each] for each in ids}

    @contextmanager
    def _follow(self, push: Push, ledger: Ledger, ids: Mapping[str, int]) -> Iterator[asyncio.Event]:
        bell = asyncio.Event()
        for each in ids:
            if (push, each) not in self._followed:
                self._followed[push, each] = _Followed(push, ledger, each)
            self._followed[push, each].bells.add(bell)
        try:
            yield bell
        finally:
            for each in ids:
                self._followed[push, each].bells.discard(bell)
                asyncio.get_running_loop().call_later(LINGER_SECONDS, self._leave, push, each)

    def _leave(self, push: Push, hydration_id: str) -> None:
        followed = self._followed.get((push, hydration_id))
        if followed is not None and not followed.bells:
            del self._followed[push, hydration_id]
            push.leave(followed.waiter)


class _Followed:
    """One hydration that pages look at: one waiter of the process's channel rings for all of them."""

    def __init__(self, push: Push, ledger: Ledger, hydration_id: str) -> None:
        self.bells: set[asyncio.Event] = set()
        self._loop = asyncio.get_running_loop()
        self.waiter = Waiter(hydration_id=hydration_id, ledger=ledger, wake=self._wake, every=True)
        push.enter(self.waiter)

    def _wake(self) -> None:
        with suppress(RuntimeError):  # The server is ending.
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        for bell in self.bells:
            bell.set()
