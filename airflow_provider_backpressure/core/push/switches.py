"""The two switches of push, which are kept in the ledger and bind without a restart."""

import threading
from collections.abc import Callable
from enum import StrEnum

from airflow_provider_backpressure.core.gate.overrides import Shared, Steering

REFRESH_SECONDS = 3.0
"""How old what a process knows of the switches may be."""


class Switch(StrEnum):
    """What may be turned off, each alone."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


def is_on(ledger: Steering, switch: Switch) -> bool:
    """Return the state of a switch in the ledger; one that was never set is on."""
    return ledger.get_shared(Shared.PUSH, switch) != 0


def turn(ledger: Steering, switch: Switch, *, on: bool, who: str, why: str | None = None) -> None:
    """Turn a switch for every process that uses this ledger."""
    ledger.share(Shared.PUSH, switch, int(on), who=who, why=why)


class Switches:
    """The state of the switches, as last read."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.publish = True
        self.subscribe = True
        self._clock = clock
        self._next = -1.0
        self._lock = threading.Lock()

    @property
    def both(self) -> bool:
        """Whether changes go all the way from writers to waiters."""
        return self.publish and self.subscribe

    def refresh(self, ledger: Steering) -> None:
        """Read them where that is due; one thread does it for all. What cannot be read stays as it was."""
        with self._lock:
            if self._clock() < self._next:
                return
            self._next = self._clock() + REFRESH_SECONDS
        publish, subscribe = is_on(ledger, Switch.PUBLISH), is_on(ledger, Switch.SUBSCRIBE)
        self.publish, self.subscribe = publish, subscribe
