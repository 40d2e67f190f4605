"""What a user configures: the budget of a hydration, its mode and its consistency."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from airflow_provider_backpressure.core.health_signal_declarations import ActiveSessions as ActiveSessions
from airflow_provider_backpressure.core.health_signal_declarations import Checkpoints as Checkpoints
from airflow_provider_backpressure.core.health_signal_declarations import Query as Query
from airflow_provider_backpressure.core.health_signal_declarations import ReplicaLag as ReplicaLag
from airflow_provider_backpressure.core.health_signal_declarations import Retention as Retention
from airflow_provider_backpressure.core.health_signal_declarations import SlotLag as SlotLag
from airflow_provider_backpressure.core.health_signal_declarations import ThreadsRunning as ThreadsRunning
from airflow_provider_backpressure.core.health_signal_declarations import WalHeadroom as WalHeadroom
from airflow_provider_backpressure.core.health_signal_declarations import WalRate as WalRate
from airflow_provider_backpressure.core.health_signal_declarations import Watched, parse_signal
from airflow_provider_backpressure.exceptions import InvalidDeclaration

MEBIBYTE = 1024 * 1024
OVERHEAD_SHARE = 0.05
"""Most of a range's time that the runner's own overhead should take."""
GROWING = ("range_rows", "range_bytes", "range_seconds", "commit_seconds")
"""Bounds that grow with the runner's overhead where they have their defaults."""
LEAST_INTERVAL = 0.5
"""Least seconds between two looks at a side's health."""
LEAST_POLLS = 3
"""Looks that the deadline of a signal leaves time for."""


class Mode(StrEnum):
    """How rows enter the target."""

    APPEND = "append"
    """Rows are added; the target needs no key and must be empty before a new plan."""
    UPSERT = "upsert"
    """A row replaces the one with its key; the target has a unique key."""
    REPLACE = "replace"
    """All rows go into a shadow table, which takes the target's place at once when it is complete and verified."""
    MIRROR = "mirror"
    """Each run makes the target equal to the source, range by range, and writes only the rows that differ."""


class Log(StrEnum):
    """What of a log goes into a target, and so changes and deletes its rows by key."""

    CHANGES = "changes"
    """Changes of a table, after ranges of different times."""
    RECORDS = "records"
    """Records of a topic in their order; tombstones delete."""
    PARTS = "parts"
    """The same, in the order of each part of the keys."""


class Consistency(StrEnum):
    """What the ranges of one snapshot have in common."""

    STATIC = "static"
    """The user says that the table stands still while it is read."""
    SNAPSHOT = "snapshot"
    """Every range is read as the table was at one moment, by an exported snapshot that the lane keeps open."""
    CATCH_UP = "catch_up"
    """Each range is read at its own time, and the source's log of what changed since is replayed until all agree."""
    OFFSETS = "offsets"
    """The record at an offset of a log never changes: each range reads the same at any time."""


class NewColumn(StrEnum):
    """What becomes of a column that was added to the source since its plan, and may be NULL."""

    STOP = "stop"
    """The next run stops and names it."""
    ADD = "add"
    """A plan that is under way ends with the columns it has; the next one adds the column to the target."""


class Refresh(StrEnum):
    """What a run does that finds everything committed."""

    ONCE = "once"
    """Nothing: the source is read once."""
    EACH_RUN = "each_run"
    """It reads the whole source again, by a new plan."""


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
    """Longest a range is expected to take until its commit, at 100,000 rows a second or at what ranges have shown."""
    sink_connections: int | None = None
    """Most ranges in flight into the sink's server, with every other hydration into it; ``None``: no limit."""
    executor_memory: float = 0.8
    """High mark: share of an executor's memory (heap + overhead) at which admission stops."""
    executor_memory_low: float = 0.6
    """Low mark: share below which admission continues after it was stopped."""
    commit_seconds: float = 60.0
    """Time from a range's admission to its commit at which the sink counts as drowned."""
    range_timeout: float | None = None
    """Seconds from a range's submission after which its attempt is ended and the next one begins; ``None``: never."""
    snapshot_age: float | None = None
    """Seconds after which a kept snapshot is given up, so that the source may clean up; another one continues."""
    signal_deadline: float = 15.0
    """Seconds after which a polled signal that was not seen closes the gate."""
    max_deletes: float = 0.2
    """Most rows that one run may delete under ``mirror``, as a share of the rows in the target; 1: all."""
    law: Law = Law.GRADED
    signals: tuple[Watched, ...] = ()
    """What else is watched: the health of source and sink, and queries."""
    signal_interval: float = 2.0
    """Seconds between two looks at ``signals``, from 0.5 on."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("credits", "range_rows", "range_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidDeclaration(f"Budget.{name} must be a whole number of at least 1, not {value!r}.")
        most = self.sink_connections
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise InvalidDeclaration(f"Budget.sink_connections must be at least 1, or None for no limit, not {most!r}.")
        optional = ("range_timeout", "snapshot_age")
        for name in ("range_seconds", "commit_seconds", *optional, "signal_deadline", "signal_interval"):
            value = getattr(self, name)
            if name in optional and value is None:
                continue
            if not isinstance(value, int | float) or not (0 < value < math.inf):
                raise InvalidDeclaration(f"Budget.{name} must be a number of seconds above 0, not {value!r}.")
        low, high = self.executor_memory_low, self.executor_memory
        if not (0 < low < high <= 1):
            raise InvalidDeclaration(
                f"Budget needs 0 < executor_memory_low < executor_memory <= 1, not {low!r} and {high!r}."
            )
        if not isinstance(self.max_deletes, int | float) or not 0 <= self.max_deletes <= 1:
            raise InvalidDeclaration(f"Budget.max_deletes must be a share from 0 to 1, not {self.max_deletes!r}.")
        object.__setattr__(self, "law", Law(self.law))
        if not isinstance(self.signals, tuple | list):
            raise InvalidDeclaration(f"Budget.signals must be a tuple of signals, not {type(self.signals).__name__}.")
        object.__setattr__(self, "signals", tuple(parse_signal(each) for each in self.signals))
        if self.signals:
            self._check_signals()

    def _check_signals(self) -> None:
        if self.signal_interval < LEAST_INTERVAL:
            raise InvalidDeclaration(
                f"Budget.signal_interval must be at least {LEAST_INTERVAL:g} s, not {self.signal_interval!r}."
            )
        if self.signal_deadline < LEAST_POLLS * self.signal_interval:
            raise InvalidDeclaration(
                f"Budget.signal_deadline must leave time for {LEAST_POLLS} looks: at least "
                f"{LEAST_POLLS * self.signal_interval:g} s with signal_interval={self.signal_interval:g}, "
                f"not {self.signal_deadline!r}."
            )
        names = [each.name for each in self.signals]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidDeclaration(f"Budget.signals has two called {twice!r}: name them apart, or leave one out.")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON's values; ``Budget(**fields)`` reads them."""
        return {**asdict(self), "law": self.law.value, "signals": [asdict(each) for each in self.signals]}

    def fit(self, overhead_seconds: float) -> "Budget":
        """Return the budget for a runner with this overhead per range.

        Every bound of a range's size and time that has its default grows alike, until the overhead is 5 % of the
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


def take_tuples(declared: object, *names: str, texts: Sequence[str] = ()) -> None:
    """Make tuples of a declaration's lists; :class:`InvalidDeclaration` for a lone name where several are meant.

    ``texts``: further fields, where a text by itself has a meaning.
    """
    for name in (*names, *texts):
        value = getattr(declared, name)
        if isinstance(value, str) and name not in texts:
            raise InvalidDeclaration(
                f"{type(declared).__name__}.{name} must be a tuple of names, not the text {value!r}."
            )
        if isinstance(value, list):
            object.__setattr__(declared, name, tuple(value))


def check_some(declared: object, columns: tuple[str, ...] | None) -> None:
    """Raise :class:`InvalidDeclaration` for a choice of no column at all."""
    if columns == ():
        raise InvalidDeclaration(
            f"{type(declared).__name__}.columns must name at least one column, or be None for all."
        )


def suffix(chosen: Sequence[object]) -> str:
    """Return what a choice adds to a table's identity: a part of a table is another source than the whole."""
    return "#" + hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:12] if any(chosen) else ""


def taken_key(key: tuple[str, ...] | list[str] | None, what: str) -> tuple[str, ...] | None:
    """Return a key as a tuple; :class:`InvalidDeclaration` for a lone name and for none at all."""
    if key is None:
        return None
    if isinstance(key, str):
        raise InvalidDeclaration(f"{what} must be a tuple of names, not the text {key!r}.")
    if not key:
        raise InvalidDeclaration(f"{what} must name at least one column, or be None for the source's key.")
    return tuple(key)


def check_quarantine(most: int | None, what: str) -> None:
    """Raise :class:`InvalidDeclaration` for what is no number of rows that may be kept aside."""
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise InvalidDeclaration(f"{what} must be a number of rows of at least 1, not {most!r}.")
