"""What a process's channel has done, as plain numbers."""

import json
import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the histogram's buckets in seconds; one more holds what took longer."""
NAMES = (
    "published",
    "dropped",
    "send_failures",
    "clean",
    "unclean",
    "ignored",
    "fallbacks",
    "connected",
    "lost",
)
"""``dropped``: never sent, as the queue was full or the channel down. ``ignored``: broken, or of an unknown format.
``fallbacks``: looks made because push was not to be trusted. ``connected``, ``lost``: of the listening connection."""
HISTOGRAMS = ("observed", "broadcast")
"""``observed``: from a write in the ledger until its arrival. ``broadcast``: passing messages to the server."""


class Histogram:
    """Durations in seconds by bucket."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.count, self.seconds = 0, 0.0

    def add(self, seconds: float) -> None:
        """Count one; clocks of two hosts may differ, so that it seems to have taken less than nothing."""
        seconds = max(0.0, seconds)
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.count += 1
        self.seconds += seconds

    def values(self) -> dict[str, Any]:
        """Return ``{"count": …, "seconds": …, "buckets": […]}``, the buckets as in :data:`BOUNDS`."""
        return {"count": self.count, "seconds": round(self.seconds, 6), "buckets": list(self.buckets)}


class PushCounts:
    """Counters never go back. Safe to share among threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = dict.fromkeys(NAMES, 0)
        self._observed, self._broadcast = Histogram(), Histogram()

    def add(self, name: str, number: int = 1) -> None:
        """Count."""
        with self._lock:
            self._numbers[name] += number

    def count_delay(self, seconds: float) -> None:
        """Count the time from a write in the ledger until its arrival here."""
        with self._lock:
            self._observed.add(seconds)

    def broadcast(self, seconds: float) -> None:
        """Count the time that it took to pass messages to the channel's server."""
        with self._lock:
            self._broadcast.add(seconds)

    def __getitem__(self, name: str) -> int:
        """Return one counter."""
        return self._numbers[name]

    def values(self) -> Mapping[str, Any]:
        """Return everything: counters by name, and the histograms ``observed`` and ``broadcast``."""
        with self._lock:
            return {**self._numbers, "observed": self._observed.values(), "broadcast": self._broadcast.values()}


def merge_counts(every: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of what several processes have counted; what one does not have counts as nothing."""
    total = dict(PushCounts().values())
    for values in every:
        for name in NAMES:
            total[name] += values.get(name, 0)
        for name in HISTOGRAMS:
            total[name] = _sum(total[name], values.get(name))
    return total


def merge_recorded(every: Iterable[str]) -> dict[str, Any]:
    """Return the sum of what several processes have written down as JSON."""
    return merge_counts(json.loads(text) for text in every)


def quantile(histogram: Mapping[str, Any], share: float) -> float | None:
    """Return the upper bound in seconds of the bucket that this share of the durations has reached; ``None``: none."""
    reached = 0
    for bound, number in zip((*BOUNDS, math.inf), histogram["buckets"], strict=True):
        reached += number
        if number and reached >= share * histogram["count"]:
            return bound
    return None


def _sum(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> dict[str, Any]:
    if other is None or len(other["buckets"]) != len(one["buckets"]):
        return dict(one)
    return {
        "count": one["count"] + other["count"],
        "seconds": round(one["seconds"] + other["seconds"], 6),
        "buckets": [left + right for left, right in zip(one["buckets"], other["buckets"], strict=True)],
    }
