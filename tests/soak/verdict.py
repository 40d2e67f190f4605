"""Whether a figure is flat: what it grows by, against how much it goes up and down anyway."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

WARM = 1 / 3
"""Share of the time in which caches, pools and heaps fill; it is drawn and not judged."""
LEAST, LEAST_SECONDS = 12, 240.0
"""Samples, and time over which they were taken, without which nothing is said."""
MOST_PAIRS = 40_000


@dataclass(kw_only=True)
class Series:
    """One figure over time. ``allowed``: growth that is none, in the figure's own unit, or a share of its median."""

    name: str
    unit: str
    allowed: float = 0.0
    allowed_share: float = 0.0
    at: list[float] = field(default_factory=list)
    """Seconds since the beginning."""
    values: list[float] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """Who was measured: another one has begun again."""

    def add(self, at: float, value: float, owner: int = 0) -> None:
        """Keep a sample."""
        self.at.append(at)
        self.values.append(value)
        self.owners.append(owner)

    def judged(self) -> tuple[list[float], list[float]]:
        """Return the samples that count: behind the warm-up, and of who is measured at the end."""
        if not self.at:
            return [], []
        first = self.at[0] + (self.at[-1] - self.at[0]) * WARM
        begun = next(at for at, owner in zip(self.at, self.owners, strict=True) if owner == self.owners[-1])
        if begun > self.at[0]:
            # Who was restarted warms up again.
            first = max(first, begun + (self.at[-1] - begun) * WARM)
        kept = [(at, value) for at, value in zip(self.at, self.values, strict=True) if at >= first]
        return [at for at, _ in kept], [value for _, value in kept]

    def verdict(self) -> "Verdict":
        """Judge it."""
        at, values = self.judged()
        if len(values) < LEAST or at[-1] - at[0] < LEAST_SECONDS:
            return Verdict(growth=0.0, noise=0.0, allowed=0.0, flat=None)
        slope = typical_slope(at, values)
        middle = statistics.median(values)
        level = statistics.median(value - slope * moment for moment, value in zip(at, values, strict=True))
        spread = [abs(value - level - slope * moment) for moment, value in zip(at, values, strict=True)]
        noise = 1.4826 * statistics.median(spread)
        allowed = max(self.allowed, self.allowed_share * middle)
        growth = slope * (at[-1] - at[0])
        return Verdict(growth=growth, noise=noise, allowed=allowed, flat=growth <= max(2 * noise, allowed))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found of a series, in its unit."""

    growth: float
    """From the beginning of what is judged to its end, along the typical slope."""
    noise: float
    """Typical distance of a sample from that line."""
    allowed: float
    flat: bool | None
    """``None``: too short to say."""


def typical_slope(at: Sequence[float], values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs (Theil and Sen): single peaks do not bend it."""
    step = max(1, len(at) * (len(at) - 1) // 2 // MOST_PAIRS)
    slopes = [
        (values[j] - values[i]) / (at[j] - at[i])
        for number, (i, j) in enumerate((i, j) for i in range(len(at)) for j in range(i + 1, len(at)))
        if number % step == 0 and at[j] > at[i]
    ]
    return statistics.median(slopes) if slopes else 0.0
