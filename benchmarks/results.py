"""What was measured, and what follows from it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One side's turn in one round."""

    side: str
    round: int
    rows: int
    open_seconds: float = 0.0
    """Opening the session up to its first answer; not part of the rest."""
    open_cpu_seconds: float = 0.0
    """What that took of all parts."""
    wall_seconds: float = 0.0
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    """By part: ``spark`` (JVM and Python workers), ``client`` (the side's own), each server by its kind."""
    peak_bytes: int = 0
    """Most resident memory of the side's own processes together: Spark's JVM, its Python workers and the client."""
    equal: bool = False
    """Whether the target was the source afterwards."""
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One side: medians over its rounds of the largest source. Times in seconds."""

    side: str
    rounds: int
    error: str | None
    """The first turn's that failed."""
    equal: bool
    """In every round."""
    rows: int
    open: float
    open_cpu: float
    wall: float
    rows_per_second: float
    cpu: Mapping[str, float]
    cpu_all: float
    cpu_per_million: float
    peak_bytes: float
    small_rows: int | None = None
    """Of the smaller source, where the side has copied that too."""
    small_total: float | None = None
    """CPU time for that one, start included."""

    @property
    def total(self) -> float:
        """CPU time from nothing: the session's start and the turn."""
        return self.cpu_all + self.open_cpu

    @property
    def steady(self) -> float | None:
        """CPU seconds that a further row takes: what the larger source took more, by the rows that it has more."""
        if self.small_rows is None or self.small_total is None:
            return None
        return (self.total - self.small_total) / (self.rows - self.small_rows)


Figure = Callable[[Summary], float | None]
"""What of a side is compared; ``None`` where it was not measured."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is promised: one side's figure over another's is not below ``least`` and not above ``most``."""

    sentence: str
    figure: Figure
    over: str
    under: str
    least: float = 0.0
    most: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """A goal as measured. ``factor`` is ``None`` where a side it compares was not measured."""

    sentence: str
    factor: float | None
    held: bool


def wall(one: Summary) -> float:
    """Return the wall time of a turn."""
    return one.wall


def cpu(one: Summary) -> float:
    """Return the CPU time of a turn, of all parts."""
    return one.cpu_all


def total(one: Summary) -> float:
    """Return the CPU time of a turn with the start of its session, of all parts."""
    return one.total


def steady(one: Summary) -> float | None:
    """Return the CPU time of a further row; ``None`` where no smaller source was copied."""
    return one.steady


def summaries(measurements: Sequence[Measurement], order: Iterable[str]) -> dict[str, Summary]:
    """Return the medians of the sides that were measured, in this order. The largest source is the one they are of."""
    turns = {side: [one for one in measurements if one.side == side] for side in order}
    return {side: _summary(side, mine) for side, mine in turns.items() if mine}


def ratio(found: Mapping[str, Summary], upper: str, lower: str, figure: Figure) -> float | None:
    """Return one side's figure over another's; ``None`` where either was not measured."""
    sides = [found.get(upper), found.get(lower)]
    if any(side is None or side.error for side in sides):
        return None
    over, under = (figure(side) for side in sides if side)
    return over / under if over is not None and under else None


def requirements(found: Mapping[str, Summary], goals: Iterable[Goal]) -> list[Requirement]:
    """Return what has become of the goals."""
    return [_requirement(goal, ratio(found, goal.over, goal.under, goal.figure)) for goal in goals]


def _requirement(goal: Goal, factor: float | None) -> Requirement:
    held = factor is not None and goal.least <= factor <= goal.most
    return Requirement(sentence=goal.sentence, factor=factor, held=held)


def _summary(side: str, measured: Sequence[Measurement]) -> Summary:
    rows = max(one.rows for one in measured)
    turns, small = ([one for one in measured if (one.rows == rows) is large] for large in (True, False))
    good, good_small = ([one for one in each if one.error is None] for each in (turns, small))
    parts = sorted({part for one in good for part in one.cpu_seconds})
    seconds = _median(one.wall_seconds for one in good)
    total = _median(sum(one.cpu_seconds.values()) for one in good)
    return Summary(
        side=side,
        rows=rows,
        rounds=len(good),
        error=next((one.error for one in measured if one.error), None),
        equal=all(one.equal for one in measured),
        open=_median(one.open_seconds for one in good),
        open_cpu=_median(one.open_cpu_seconds for one in good),
        wall=seconds,
        rows_per_second=rows / seconds if seconds else 0.0,
        cpu={part: _median(one.cpu_seconds[part] for one in good) for part in parts},
        cpu_all=total,
        cpu_per_million=total / rows * 1e6,
        peak_bytes=_median(one.peak_bytes for one in good),
        small_rows=good_small[0].rows if good_small else None,
        small_total=_median(_total(one) for one in good_small) if good_small else None,
    )


def _total(one: Measurement) -> float:
    return sum(one.cpu_seconds.values()) + one.open_cpu_seconds


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return median(found) if found else 0.0
