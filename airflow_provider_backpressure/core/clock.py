"""The one poll policy: how long to wait between two looks at a condition, sync or async alike."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from airflow_provider_backpressure.exceptions import InvalidDeclaration

T = TypeVar("T")


class Clock(Protocol):
    """Time as a dependency, so that tests need not sleep."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own clock. Implements ``Clock``."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class PollPolicy:
    """Waits that begin at ``initial`` seconds and grow by ``factor`` up to ``maximum``."""

    initial: float = 0.05
    factor: float = 1.5
    maximum: float = 2.0

    def __post_init__(self) -> None:
        """Refuse a policy that would spin or never grow."""
        if not (0 < self.initial <= self.maximum and self.factor >= 1):
            raise InvalidDeclaration(f"A poll policy needs 0 < initial <= maximum and factor >= 1, not {self}.")

    def waits(self) -> Iterator[float]:
        """Yield the seconds to wait before each next look, without end."""
        wait = self.initial
        while True:
            yield wait
            wait = min(wait * self.factor, self.maximum)

    def until(self, look: Callable[[], T | None], *, timeout: float, clock: Clock) -> T | None:
        """Return what ``look`` gives as soon as it is not ``None``, or ``None`` after ``timeout`` seconds."""
        deadline = clock.monotonic() + timeout
        for wait in self.waits():
            if (found := look()) is not None:
                return found
            left = deadline - clock.monotonic()
            if left <= 0:
                return None
            clock.sleep(min(wait, left))
        raise AssertionError("unreachable")
