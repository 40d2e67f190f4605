"""Whether a hydration keeps up with its source, in words."""

import math

from airflow_provider_backpressure.core.health_signals import size
from airflow_provider_backpressure.core.progress.lag import Course, Verdict
from airflow_provider_backpressure.core.progress.progress_line import duration
from airflow_provider_backpressure.core.progress.source_position import Unit

NAMED = 6
"""Most partitions that are named with their lag, the furthest behind first."""


def amount(number: float, unit: Unit) -> str:
    """Return a number of units: ``1,200 offsets``, ``3.0 MiB``."""
    if unit is Unit.BYTES:
        return size(number)
    return f"{number:,.0f} {unit}"


def format_rate(rate: float, unit: Unit) -> str:
    """Return a rate: ``1,200 offsets/s``, ``3.0 MiB/s``."""
    return f"{amount(rate, unit)}/s" if rate == 0 or rate >= 10 or unit is Unit.BYTES else f"{rate:.1f} {unit}/s"


def catch_up(seconds: float | None) -> str | None:
    """Return the time until everything is committed, or ``never``; ``None`` where unknown."""
    if seconds is None:
        return None
    return "never" if math.isinf(seconds) else duration(seconds)


def sentence(course: Course | None) -> str:
    """Return the answer to "is it keeping up?" in one line, with its figures."""
    if course is None:
        return "not known yet: the source was not looked at"
    if course.trouble:
        return course.trouble
    unit, lag = course.latest.unit, course.lag
    if not course.latest.follows:
        return "a snapshot, which does not follow its source"
    if lag is None:
        return "not known before the snapshot is in"
    parts = [_rates(course), f"{amount(lag, unit)} behind" if lag else ""]
    time = catch_up(course.catch_up_seconds)
    if time is not None and lag:
        parts.append("never catches up at this rate" if time == "never" else f"catches up in {time}")
    if course.verdict is Verdict.IDLE:
        parts.append("the next run brings it")
    return f"{_SAID[course.verdict]}: {_join(parts)}" if any(parts) else _SAID[course.verdict]


_SAID = {
    Verdict.UNKNOWN: "not known yet",
    Verdict.KEEPING_UP: "yes",
    Verdict.NOT_KEEPING_UP: "NO",
    Verdict.IDLE: "no run is under way",
    Verdict.CAUGHT_UP: "yes, caught up",
}


def lags(course: Course) -> str:
    """Return the lag by partition, or by what else the source counts; empty where there is none, or only one."""
    if not course.latest.follows:
        return ""
    by_key = course.latest.lag or {}
    behind = sorted(((key, lag) for key, lag in by_key.items() if lag), key=lambda each: -each[1])
    shown = [f"{key}: {amount(lag, course.latest.unit)}" for key, lag in behind[:NAMED]] if len(by_key) > 1 else []
    if shown and len(behind) > NAMED:
        shown.append(f"and {len(behind) - NAMED} more")
    if course.latest.open:
        shown.append(f"{amount(course.latest.open, course.latest.unit)} held back by open transactions")
    return ", ".join(shown)


def _rates(course: Course) -> str:
    if course.upstream_rate is None:
        return ""
    upstream = f"the source makes {format_rate(course.upstream_rate, course.latest.unit)}"
    if course.process_rate is None:
        return upstream
    return f"{format_rate(course.process_rate, course.latest.unit)} committed, {upstream}"


def _join(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part)
