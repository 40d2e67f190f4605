"""Making a failing sequence short: what is left is needed for the failure, piece by piece and in pairs."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")
PAIRS = 60
"""Longest sequence of which pairs are left out."""


def shrunk(
    items: Sequence[T],
    fails: Callable[[Sequence[T]], object],
    *,
    simpler: Callable[[T], Iterator[T]],
    seconds: float = 60.0,
) -> list[T]:
    """Return a shorter sequence that still fails, the shortest that is found in the time.

    ``simpler``: yields what may stand in an item's place, the simplest first.
    """
    until, found = time.monotonic() + seconds, list(items)
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(found, simpler):
            if time.monotonic() > until:
                return found
            if fails(candidate):
                found, smaller = candidate, True
                break
    return found


def _candidates(items: list[T], simpler: Callable[[T], Iterator[T]]) -> Iterator[list[T]]:
    """Yield what is a little smaller, the largest pieces first."""
    size = max(1, len(items) // 2)
    while True:
        for at in range(0, len(items), size):
            yield items[:at] + items[at + size :]
        if size == 1:
            break
        size //= 2
    for at, item in enumerate(items):
        for other in simpler(item):
            yield [*items[:at], other, *items[at + 1 :]]
    if len(items) <= PAIRS:
        for pair in combinations(range(len(items)), 2):
            yield [item for at, item in enumerate(items) if at not in pair]
