"""What a user configures: the budget of a hydration, its mode and its consistency."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from airflow_provider_backpressure.exceptions import InvalidDeclaration

MEBIBYTE = 1024 * 1024
OVERHEAD_SHARE = 0.05
"""Most of a range's time that the runner's own overhead should take."""
GROWING = ("range_rows", "range_bytes", "range_seconds", "commit_seconds")
"""Bounds that grow with the runner's overhead where they stand at their defaults."""


class Mode(StrEnum):
    """How rows enter the target."""

    APPEND = "append"
    """Rows are added; the target needs no key and must be empty before a new plan."""
    UPSERT = "upsert"
    """A row replaces the one with its key; the target has a unique key."""
    REPLACE = "replace"
    """All rows go into a shadow table, which takes the target's place at once when it is complete and verified."""


class Consistency(StrEnum):
    """What the ranges of one snapshot have in common."""

    STATIC = "static"
    """The user says that the table stands still while it is read."""
    SNAPSHOT = "snapshot"
    """Every range is read as the table was at one moment, by an exported snapshot that the lane keeps open."""
    OFFSETS = "offsets"
    """What stands at an offset of a log never changes: each range reads the same whenever it does."""


class Law(StrEnum):
    """How credits follow pressure."""

    GRADED = "graded"
    FIXED = "fixed"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one hydration may take. Every bound holds by itself: the tightest wins.

    Raises :class:`InvalidDeclaration` where a bound is zero, negative or not finite.
    """

    credits: int = 4
    """Most ranges in flight (submitted, not yet committed by the sink)."""
    range_rows: int = 1_000_000
    """Most rows planned into one range."""
    range_bytes: int = 512 * MEBIBYTE
    """Most bytes of the source's own row size planned into one range."""
    range_seconds: float = 10.0
    """Longest a range is expected to take until its commit, at 100,000 rows a second."""
    executor_memory: float = 0.8
    """High mark: share of an executor's memory (heap + overhead) at which admission stops."""
    executor_memory_low: float = 0.6
    """Low mark: share below which admission goes on after it was stopped."""
    commit_seconds: float = 60.0
    """Time from a range's admission to its commit at which the sink counts as drowned."""
    signal_deadline: float = 15.0
    """Seconds after which a polled signal that was not seen closes the gate."""
    law: Law = Law.GRADED

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("credits", "range_rows", "range_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidDeclaration(f"Budget.{name} must be a whole number of at least 1, not {value!r}.")
        for name in ("range_seconds", "commit_seconds", "signal_deadline"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not (0 < value < math.inf):
                raise InvalidDeclaration(f"Budget.{name} must be a number of seconds above 0, not {value!r}.")
        low, high = self.executor_memory_low, self.executor_memory
        if not (0 < low < high <= 1):
            raise InvalidDeclaration(
                f"Budget needs 0 < executor_memory_low < executor_memory <= 1, not {low!r} and {high!r}."
            )
        object.__setattr__(self, "law", Law(self.law))

    def fitted(self, overhead_seconds: float) -> "Budget":
        """Return the budget for a runner with this overhead per range.

        Every bound of a range's size and time that stands at its default grows alike, until the overhead is 5 % of the
        time that a range is expected to take; what was set to another value stays.
        """
        factor = overhead_seconds / OVERHEAD_SHARE / Budget.range_seconds
        if factor <= 1:
            return self
        grown: dict[str, Any] = {}
        for name in GROWING:
            default = getattr(Budget, name)
            if getattr(self, name) == default:
                grown[name] = type(default)(default * factor)
        return replace(self, **grown)
