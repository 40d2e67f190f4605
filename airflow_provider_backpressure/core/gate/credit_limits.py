"""Laws by which the number of credits follows the pressure. Pure: one completed range, one step."""

from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_backpressure.core.config import Law
from airflow_provider_backpressure.exceptions import InvalidDeclaration

SHRINKS = 8
"""Above the hold mark one credit goes at a time, or one of so many: thousands would not be fewer soon, one by one."""


class Limit(Protocol):
    """Estimates how many ranges may be in flight."""

    def after(self, credits: int, pressure: float, maximum: int) -> int:
        """Return the credits after a completed range, within ``[1, maximum]``."""
        ...


@dataclass(frozen=True, kw_only=True)
class GradedLimit:
    """Grow by one below ``grow``, hold to ``hold``, shrink by one below 1.0, halve from there on.

    Implements ``Limit``.
    """

    grow: float = 0.4
    hold: float = 0.7

    def __post_init__(self) -> None:
        """Refuse marks out of order."""
        if not 0 < self.grow <= self.hold < 1:
            raise InvalidDeclaration(f"GradedLimit needs 0 < grow <= hold < 1, not {self.grow} and {self.hold}.")

    def after(self, credits: int, pressure: float, maximum: int) -> int:
        if pressure < self.grow:
            credits += 1
        elif pressure >= 1.0:
            credits //= 2
        elif pressure > self.hold:
            credits -= max(1, credits // SHRINKS)
        return max(1, min(credits, maximum))


@dataclass(frozen=True, kw_only=True)
class PacedLimit:
    """Steps by what the pressure is at the credits there are at the very step, not by what it was when last looked at.

    Where several ranges are committed between two looks, or lanes commit at once, each step sees the one before.
    """

    limit: Limit
    each: float
    """What each credit adds to the pressure of the sink."""
    others: float
    """The highest of the other pressures."""

    def after(self, credits: int, pressure: float, maximum: int) -> int:
        """See :meth:`Limit.after`; ``pressure`` is what was looked at and stays out of it.

        A credit that the next commit would take away again is not given.
        """
        credits_then = self._step(credits, maximum)
        return credits if self._step(credits_then, maximum) < credits_then == credits + 1 else credits_then

    def _step(self, credits: int, maximum: int) -> int:
        return self.limit.after(credits, max(self.each * credits, self.others), maximum)


@dataclass(frozen=True, kw_only=True)
class FixedLimit:
    """Always the configured maximum. Implements ``Limit``."""

    def after(self, credits: int, pressure: float, maximum: int) -> int:
        return max(1, maximum)


def limit_for(law: Law) -> Limit:
    """Return the limit that a budget's law names."""
    return GradedLimit() if law is Law.GRADED else FixedLimit()


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
