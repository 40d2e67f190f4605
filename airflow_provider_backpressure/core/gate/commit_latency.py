"""What each range in flight adds to the time until the sink's commit: latency related to how many shared the sink.

Latency alone comes late. When it is high the ranges that made it so are in already, and a law that steps by it
shrinks on long after the credits are few enough. What one range costs the others is known sooner, and what the latency
will be at another number of credits follows from it.
"""

from dataclasses import dataclass, field

WEIGHT = 0.3
"""Weight of the newest commit in the moving mean."""


@dataclass(kw_only=True)
class Pace:
    """Seconds for each range that shares the sink, learned by one lane from its own ranges. All times by one clock."""

    seconds: float | None = None
    """Moving mean of time from admission to commit over the mean number in flight meanwhile; ``None`` before one."""
    _in_flight: int = 0
    _area: float = 0.0
    """Ranges in flight, summed over the seconds since the lane began."""
    _at: float | None = None
    _admitted: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    """By range: when its latest attempt was admitted, the area then, and how many were in flight with it."""

    def saw(self, in_flight: int, *, now: float) -> None:
        """Take note of how many ranges of the hydration are in flight, of this lane and of others."""
        if self._at is not None:
            self._area += self._in_flight * (now - self._at)
        self._in_flight, self._at = in_flight, now

    def note_admission(self, seq: int, *, now: float) -> None:
        """Take note of a range that this lane has admitted."""
        self.saw(self._in_flight + 1, now=now)
        self._admitted[seq] = (now, self._area, self._in_flight)

    def learn_commit(self, seq: int, *, now: float) -> None:
        """Learn from a range that the sink has committed; nothing from one that this lane has not admitted."""
        self.saw(self._in_flight, now=now)
        began, area, before = self._admitted.pop(seq, (now, 0.0, 0))
        if now <= began:
            return
        # A sink that takes one after another lets a range wait for those before it; one that divides itself among all
        # also for those that come later.
        sharing = max((self._area - area) / (now - began), before)
        seconds = (now - began) / max(sharing, 1.0)
        self.seconds = seconds if self.seconds is None else WEIGHT * seconds + (1 - WEIGHT) * self.seconds
