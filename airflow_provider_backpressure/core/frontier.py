"""Frontiers: the position of a source or a sink, as one position per partition, table or origin."""

from collections.abc import Iterable, Mapping

from airflow_provider_backpressure.exceptions import InvalidDeclaration

Key = int | str
Frontier = Mapping[Key, int]


def difference(later: Frontier, earlier: Frontier) -> int:
    """Return how much lies between two frontiers, bounded below by zero key by key.

    ``sum over keys k of later of max(0, later[k] - earlier.get(k, 0))``: a key that appears counts from zero, one that
    vanished counts nothing, and a key that went back takes nothing from the others.
    """
    return sum(max(0, position - earlier.get(key, 0)) for key, position in later.items())


def meet(frontiers: Iterable[Frontier]) -> dict[Key, int]:
    """Return the greatest frontier that every given one has reached; a key absent from one is at zero there."""
    all_of_them = list(frontiers)
    keys = {key for frontier in all_of_them for key in frontier}
    return {key: min(frontier.get(key, 0) for frontier in all_of_them) for key in keys}


def rate(later: Frontier, earlier: Frontier, seconds: float) -> float:
    """Return units per second between two frontiers seen ``seconds`` apart."""
    if seconds <= 0:
        raise InvalidDeclaration(f"A rate needs a span above 0 seconds, not {seconds}.")
    return difference(later, earlier) / seconds


def percentage(done: Frontier, total: Frontier) -> float:
    """Return how much of ``total`` is ``done``, 0 to 100; an empty total is all done."""
    whole = difference(total, {})
    if whole == 0:
        return 100.0
    return 100.0 * (whole - difference(total, done)) / whole
