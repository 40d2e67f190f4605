"""Time for tests."""

from collections.abc import Callable


class ManualClock:
    """A clock that moves only by ``sleep`` or when a test moves it; ``on_sleep`` lets a test act meanwhile."""

    def __init__(self, on_sleep: Callable[[float], None] | None = None) -> None:
        self.now = 0.0
        self.on_sleep = on_sleep

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move on without waiting."""
        self.now += seconds
        if self.on_sleep:
            self.on_sleep(seconds)
