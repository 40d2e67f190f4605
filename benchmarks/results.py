"""What was measured, and what follows from it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

TITLES = {
    "raw": "raw COPY | COPY",
    "jdbc-default": "Spark JDBC, default",
    "jdbc-tuned": "Spark JDBC, tuned",
    "copy": "ours, copy path",
    "frame": "ours, frame path",
}
"""The sides, in the order of the first round."""
SPARKLESS = ("raw",)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One side's turn in one round."""

    side: str
    round: int
    rows: int
    open_seconds: float = 0.0
    """Opening the session up to its first answer; not part of the rest."""
    wall_seconds: float = 0.0
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    """By part: ``spark`` (JVM and Python workers), ``postgres`` (all its processes), ``client`` (the side's own)."""
    peak_bytes: int = 0
    """Most resident memory of Spark's processes together."""
    equal: bool = False
    """Whether the target was the source afterwards."""
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One side: medians over its rounds. Times in seconds."""

    side: str
    rounds: int
    error: str | None
    """The first turn's that failed."""
    equal: bool
    """In every round."""
    open: float
    wall: float
    rows_per_second: float
    cpu: Mapping[str, float]
    cpu_all: float
    cpu_per_million: float
    peak_bytes: float


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """A promise in figures. ``factor`` is ``None`` where a side it compares was not measured."""

    sentence: str
    factor: float | None
    held: bool


def summaries(measurements: Sequence[Measurement]) -> dict[str, Summary]:
    """Return the sides' medians, in the order of :data:`TITLES`."""
    sides = [side for side in TITLES if any(one.side == side for one in measurements)]
    return {side: _summary(side, [one for one in measurements if one.side == side]) for side in sides}


def ratio(found: Mapping[str, Summary], upper: str, lower: str, figure: Callable[[Summary], float]) -> float | None:
    """Return one side's figure over another's; ``None`` where either was not measured."""
    sides = [found.get(upper), found.get(lower)]
    if any(side is None or side.error for side in sides):
        return None
    over, under = (figure(side) for side in sides if side)
    return over / under if under else None


def requirements(found: Mapping[str, Summary]) -> list[Requirement]:
    """Return what the copy path has to keep."""
    faster = ratio(found, "jdbc-tuned", "copy", lambda side: side.wall)
    dearer = ratio(found, "copy", "raw", lambda side: side.cpu_all)
    return [
        Requirement(
            sentence="copy path: at least 2 times as fast as tuned Spark JDBC",
            factor=faster,
            held=faster is not None and faster >= 2,
        ),
        Requirement(
            sentence="copy path: CPU of Spark, PostgreSQL and lane at most 1.7 times that of raw COPY",
            factor=dearer,
            held=dearer is not None and dearer <= 1.7,
        ),
    ]


def _summary(side: str, turns: Sequence[Measurement]) -> Summary:
    good = [one for one in turns if one.error is None]
    parts = sorted({part for one in good for part in one.cpu_seconds})
    wall = _median(one.wall_seconds for one in good)
    total = _median(sum(one.cpu_seconds.values()) for one in good)
    rows = turns[0].rows
    return Summary(
        side=side,
        rounds=len(good),
        error=next((one.error for one in turns if one.error), None),
        equal=all(one.equal for one in turns),
        open=_median(one.open_seconds for one in good),
        wall=wall,
        rows_per_second=rows / wall if wall else 0.0,
        cpu={part: _median(one.cpu_seconds[part] for one in good) for part in parts},
        cpu_all=total,
        cpu_per_million=total / rows * 1e6,
        peak_bytes=_median(one.peak_bytes for one in good),
    )


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return median(found) if found else 0.0
