"""Samples of a hydration over time, and what its recent speed says about its end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_backpressure.core.progress.statistics import Progress

STEP_SECONDS = 10
"""Least seconds between two samples that a recent rate is taken from; of so many seconds the first sample counts."""
RECENT_SECONDS = 300.0
"""How far back recent rates go: over minutes one sees how far they spread."""
LEAST_STEPS = 3
"""Recent rates that an interval needs."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A hydration at one moment, on the ledger's clock. ``None`` is unknown."""

    at: datetime
    committed: int
    """Rows or offsets."""
    read: int = 0
    in_flight: int = 0
    credits: int = 0
    pressure: float | None = None
    memory_used: int | None = None
    """Bytes, of the fullest executor."""
    memory_limit: int | None = None
    offset_known: int | None = None
    offset_committed: int | None = None
    upstream_rate: float | None = None
    process_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Eta:
    """Seconds until the snapshot is complete."""

    seconds: float
    soonest: float | None = None
    """At the mean of recent rates and their standard deviation; ``None`` with too few of them."""
    latest: float | None = None
    """At their mean less their standard deviation; infinite where that is a standstill."""


def step_of(at: datetime) -> int:
    """Return the number of the step that a moment is in, the same in every process."""
    return math.floor(at.timestamp()) // STEP_SECONDS


def recent_rates(samples: Sequence[Sample]) -> list[float]:
    """Return rows per second over successive steps; samples ascend in time.

    The first sample of each step is enough: a ledger gives only those where it reports on many hydrations.
    """
    firsts: dict[int, Sample] = {}
    for sample in samples:
        firsts.setdefault(step_of(sample.at), sample)
    found: list[float] = []
    base = samples[0] if samples else None
    for sample in firsts.values():
        assert base is not None, "there is one"
        seconds = (sample.at - base.at).total_seconds()
        if seconds >= STEP_SECONDS:
            found.append(max(0, sample.committed - base.committed) / seconds)
            base = sample
    return found


def eta(progress: Progress, rate: float | None, recent: Sequence[float]) -> Eta | None:
    """Return when the total is committed, at ``rate`` rows per second; ``None`` where unknown."""
    if progress.total is None or not rate or rate <= 0:
        return None
    left = max(0, progress.total - progress.committed)
    if len(recent) < LEAST_STEPS:
        return Eta(seconds=left / rate)
    mean = sum(recent) / len(recent)
    spread = math.sqrt(sum((each - mean) ** 2 for each in recent) / len(recent))
    slow, fast = mean - spread, mean + spread
    seconds = left / rate
    # The rate is that of the last minute, the spread that of minutes: the interval holds both.
    soonest = min(seconds, left / fast if fast > 0 else seconds)
    return Eta(seconds=seconds, soonest=soonest, latest=max(seconds, left / slow) if slow > 0 else math.inf)
