"""The line that says how far a hydration is: bar, percentage, rows, rate and the time that is left."""

import math
from collections.abc import Sequence

from airflow_provider_backpressure.core.progress.samples import Eta, eta
from airflow_provider_backpressure.core.progress.statistics import Progress

WIDTH = 24


def bar(percent: float, width: int = WIDTH) -> str:
    """Return a bar of ``width`` characters; it is full at 100 % only."""
    done = int(width * max(0.0, min(100.0, percent)) / 100.0)
    return "#" * done + "-" * (width - done)


def duration(seconds: float) -> str:
    """Return ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def arrival(found: Eta) -> str:
    """Return the time that is left, with its interval where recent rates give one: ``2:10 (1:50 to 3:00)``."""
    if found.soonest is None or found.latest is None:
        return duration(found.seconds)
    latest = "never" if math.isinf(found.latest) else duration(found.latest)
    return f"{duration(found.seconds)} ({duration(found.soonest)} to {latest})"


def line(progress: Progress, rows_per_second: float | None, unit: str = "rows", *, recent: Sequence[float] = ()) -> str:
    """Return one line of text; what is not known yet is left out or called unknown, never shown as 0.

    ``unit``: what is counted, see :attr:`Plan.unit`. ``recent``: rates over which the time that is left spreads.
    """
    percent = progress.percent
    if percent is None:
        parts = [f"{progress.committed:,} {unit} of an unknown total"]
    else:
        about = "" if progress.total_exact else "about "
        # Rounded down: 100.0 % is shown when everything is committed, not before.
        shown = int(percent * 10) / 10
        parts = [f"[{bar(percent)}] {shown:5.1f} %", f"{progress.committed:,} of {about}{progress.total:,} {unit}"]
    if rows_per_second is not None:
        parts.append(f"{rows_per_second:,.0f} {unit}/s")
        left = eta(progress, rows_per_second, recent)
        if left is not None:
            parts.append(f"ETA {arrival(left)}")
    return "  ".join(parts)
