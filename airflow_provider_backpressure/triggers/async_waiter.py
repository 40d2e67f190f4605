"""How a trigger waits at a closed gate: the same as ``core.push.waiting``, without blocking the event loop."""

import asyncio
from contextlib import suppress

from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.hub import Push, is_pushed
from airflow_provider_backpressure.core.push.wait_queue import Waiter

MOST_SECONDS = 60.0
"""Longest wait for a turn. One is given every few seconds, so it is needed only if the dispatcher has died."""


class Bench:
    """Waits for its turn where what closes the gate is pushed; for a while where it is not, or without ``push``."""

    def __init__(self, push: Push | None, ledger: Ledger, hydration_id: str, seq: int | None) -> None:
        self._push = push
        self._loop, self._turn = asyncio.get_running_loop(), asyncio.Event()
        self._waiter = Waiter(hydration_id=hydration_id, ledger=ledger, wake=self._wake, seq=seq)
        self._entered = False

    async def wait(self, decision: Decision | None, pause: float, *, most: float = MOST_SECONDS) -> None:
        """Return when it is time for another look. ``decision``: what the last one gave, ``None`` where it failed.

        ``most``: seconds in any case.
        """
        if self._push is None:
            await asyncio.sleep(pause)
            return
        if not self._entered:
            self._push.enter(self._waiter)
            self._entered = True
        if not is_pushed(decision):
            self._push.unpark(self._waiter, failed=decision is None)
            await asyncio.sleep(pause)
            return
        self._turn.clear()
        self._push.park(self._waiter)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._turn.wait(), min(most, MOST_SECONDS))

    def done(self) -> None:
        """Wait no longer. Idempotent."""
        if self._push is not None and self._entered:
            self._push.leave(self._waiter)

    def _wake(self) -> None:
        # The loop may have been closed with this trigger still in it: then there is no waiter any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._turn.set)
