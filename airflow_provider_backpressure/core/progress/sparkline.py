"""Curves in one line of text, several of them over the same time."""

from collections.abc import Sequence
from datetime import datetime

LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-~=+*#"
"""The same, where nothing else can be written."""
WIDTH = 40

Point = tuple[datetime, float]
"""A value between 0 and 1 at a time; what lies outside is drawn at the edge."""


def curve(points: Sequence[Point], *, start: datetime, end: datetime, width: int = WIDTH, levels: str = LEVELS) -> str:
    """Return ``width`` characters from ``start`` to ``end``: in each the latest value by then, blank before the first.

    Points ascend in time.
    """
    span = (end - start).total_seconds()
    drawn, at, latest = [], 0, ""
    for column in range(1, width + 1):
        while at < len(points) and (points[at][0] - start).total_seconds() <= span * column / width:
            latest = levels[min(len(levels) - 1, max(0, int(points[at][1] * len(levels))))]
            at += 1
        drawn.append(latest or " ")
    return "".join(drawn)
