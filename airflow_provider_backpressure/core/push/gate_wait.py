"""How a thread waits at a closed gate: by its clock alone, or for its turn."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.core.poll_policy import Clock
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.hub import Push, is_pushed
from airflow_provider_backpressure.core.push.wait_queue import Waiter

SLICE_SECONDS = 0.5
"""A clock may be over, and has to be asked so often."""


class Waiting(Protocol):
    """A place to wait at one gate, for one thread."""

    def wait(self, decision: Decision | None, *, pause: float, most: float) -> None:
        """Return when it is time for another look; ``decision`` is what the last one gave.

        ``pause``: seconds until then, where nothing is pushed. ``most``: seconds in any case.
        """
        ...

    def done(self) -> None:
        """Wait no longer: the event has arrived, or is given up. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sleeping:
    """Waits by a clock. Implements ``Waiting``."""

    clock: Clock

    def wait(self, decision: Decision | None, *, pause: float, most: float) -> None:
        self.clock.sleep(min(pause, most))

    def done(self) -> None:
        """See :meth:`Waiting.done`."""


@dataclass(kw_only=True)
class Parked:
    """Waits for its turn where what closes the gate is pushed, and by the clock where it is not.

    Implements ``Waiting``.
    """

    push: Push
    hydration_id: str
    ledger: Ledger
    clock: Clock
    seq: int | None = None
    _turn: threading.Event = field(default_factory=threading.Event)
    _waiter: Waiter | None = None

    def wait(self, decision: Decision | None, *, pause: float, most: float) -> None:
        waiter = self._enter()
        if not is_pushed(decision):
            self.push.unpark(waiter)
            self.clock.sleep(min(pause, most))
            return
        self._turn.clear()
        self.push.park(waiter)
        until = self.clock.monotonic() + most
        while (left := until - self.clock.monotonic()) > 0 and not self._turn.wait(min(left, SLICE_SECONDS)):
            pass

    def done(self) -> None:
        if self._waiter is not None:
            self.push.leave(self._waiter)
            self._waiter = None

    def _enter(self) -> Waiter:
        if self._waiter is None:
            self._waiter = Waiter(hydration_id=self.hydration_id, ledger=self.ledger, wake=self._turn.set, seq=self.seq)
            self.push.enter(self._waiter)
        return self._waiter


@dataclass(kw_only=True)
class Changes:
    """Waits for any change of some hydrations, for one that shows them."""

    push: Push | None
    ledger: Ledger
    pause: float
    """Seconds between two looks where changes are not heard."""
    least: float = 0.2
    """Seconds between two looks in any case."""
    _changed: threading.Event = field(default_factory=threading.Event)
    _waiters: dict[str, Waiter] = field(default_factory=dict)

    def wait(self, hydration_ids: Collection[str]) -> None:
        """Return when one of them has changed, or when the next poll is due."""
        if self.push is None:
            self._changed.wait(self.pause)
            return
        if self._follow(self.push, hydration_ids):
            return  # what was shown may be from before anything was heard
        for each in hydration_ids:
            if not self.push.healthy(each):
                self.push.read_gate(self.ledger, each)
        heard = all(self.push.healthy(each) for each in hydration_ids)
        if self._changed.wait(self.push.paces.generous if heard else self.pause):
            # What changes together is shown together.
            threading.Event().wait(self.least)
            self._changed.clear()

    def close(self) -> None:
        """Follow nothing any more."""
        if self.push is not None:
            self._follow(self.push, ())

    def _follow(self, push: Push, hydration_ids: Collection[str]) -> bool:
        """Subscribe to these and no others; return whether any of them is new."""
        for each in set(self._waiters) - set(hydration_ids):
            push.leave(self._waiters.pop(each))
        new = set(hydration_ids) - set(self._waiters)
        for each in new:
            waiter = Waiter(hydration_id=each, ledger=self.ledger, wake=self._changed.set, every=True)
            self._waiters[each] = waiter
            push.enter(waiter)
        return bool(new)
