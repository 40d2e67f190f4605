"""The one policy of polls and retries: how long to wait between two looks or tries, sync or async alike."""

import random
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
    jitter: bool = False
    """Whether each wait is cut at random: of several that were refused for each other, one is first then."""

    def __post_init__(self) -> None:
        """Refuse a policy that would spin or never grow."""
        if not (0 < self.initial <= self.maximum and self.factor >= 1):
            raise InvalidDeclaration(f"A poll policy needs 0 < initial <= maximum and factor >= 1, not {self}.")

    def waits(self) -> Iterator[float]:
        """Yield the seconds to wait before each next look, without end."""
        wait = self.initial
        while True:
            yield random.uniform(0, wait) if self.jitter else wait
            wait = min(wait * self.factor, self.maximum)

    def until(self, look: Callable[[], T | None], *, timeout: float, clock: Clock) -> T | None:
        """Return what ``look`` gives as soon as it is not ``None``, or ``None`` after ``timeout`` seconds."""
        looks = (look() for _ in self.tries(timeout=timeout, clock=clock))
        return next((found for found in looks if found is not None), None)

    def tries(self, *, timeout: float, clock: Clock) -> Iterator[int]:
        """Yield the number of each try, the first at once, the last after ``timeout`` seconds."""
        deadline = clock.monotonic() + timeout
        for number, wait in enumerate(self.waits(), 1):
            yield number
            left = deadline - clock.monotonic()
            if left <= 0:
                return
            clock.sleep(min(wait, left))
