"""The queue in front of a Spark cluster: how many sources hydrate there at once, and which one is next.

Only a hydration or a rehydration needs a **token** of its cluster; increments and repaired ranges pass without one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from heapq import heappop, heappush
from typing import Any, Protocol

from airflow_provider_backpressure.core.default_limits import HYDRATIONS_AT_ONCE, TOKEN_SECONDS
from airflow_provider_backpressure.exceptions import InvalidDeclaration

STAND_BY_SECONDS = 60.0
"""How long a hydration that waits for a connection is waited for without a sign of life. A task that has given its
worker slot back needs some seconds until it has one again."""
REMEMBERED_SECONDS = 120.0
"""How long after its end a place is remembered: a hydration that asks again by then gets it back."""


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """One hydration that waits for its cluster or has its token."""

    hydration_id: str
    cluster: str
    priority: int
    ready_at: datetime
    running: bool
    """Has the token: its ranges may go."""
    run: str | None = None
    """The run that asked last."""


@dataclass(frozen=True, kw_only=True)
class QueuePlace:
    """The place of a hydration in its cluster's queue."""

    granted: bool
    """Its ranges may go: it has a token, or needs none."""
    position: int = 0
    """1 for the next one; 0 where it does not wait."""
    running: int = 0
    concurrency: int = HYDRATIONS_AT_ONCE
    cluster: str = ""


NOT_QUEUED = QueuePlace(granted=True)
"""Of a hydration that needs no token."""


def in_order(entries: Iterable[QueueEntry]) -> list[QueueEntry]:
    """Return those that wait, the next one first: by priority, and then by who was ready first."""
    waiting = [entry for entry in entries if not entry.running]
    return sorted(waiting, key=lambda entry: (-entry.priority, entry.ready_at, entry.hydration_id))


def by_turn(entries: Iterable[QueueEntry]) -> list[QueueEntry]:
    """Return those that have a token, and behind them those that wait."""
    every = list(entries)
    return [*sorted((one for one in every if one.running), key=lambda one: one.ready_at), *in_order(every)]


def place(entries: Sequence[QueueEntry], hydration_id: str, *, concurrency: int | None, cluster: str) -> QueuePlace:
    """Return the place of a hydration among a cluster's entries; one that is not among them comes last.

    ``concurrency``: ``None`` for the default.
    """
    running = [entry.hydration_id for entry in entries if entry.running]
    waiting = [entry.hydration_id for entry in in_order(entries)]
    ahead = waiting.index(hydration_id) if hydration_id in waiting else len(waiting)
    granted = hydration_id in running
    return QueuePlace(
        granted=granted,
        position=0 if granted else ahead + 1,
        running=len(running),
        concurrency=HYDRATIONS_AT_ONCE if concurrency is None else concurrency,
        cluster=cluster,
    )


def may_start(place: QueuePlace) -> bool:
    """Whether there is a token for this place: for the first that wait, as many as are free."""
    return place.granted or place.position <= place.concurrency - place.running


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a hydration of a cluster still has to do."""

    left: float | None
    """In its own unit, rows or offsets; ``None`` where unknown."""
    rate: float | None = None
    """Per second; ``None`` for one that waits, or has shown none yet."""


def estimate_seconds(entries: Iterable[QueueEntry], works: Mapping[str, Work]) -> dict[str, float | None]:
    """Return how long each hydration takes from its start or from now on, by its id; ``None`` where unknown.

    One that has shown no rate is taken to be as fast as those that run on its cluster are in the mean.
    """
    known = [work.rate for work in works.values() if work.rate]
    mean = sum(known) / len(known) if known else None
    seconds: dict[str, float | None] = {}
    for entry in entries:
        work = works.get(entry.hydration_id, Work(left=None))
        rate = work.rate or mean
        seconds[entry.hydration_id] = None if work.left is None or not rate else work.left / rate
    return seconds


def estimate_starts(
    entries: Sequence[QueueEntry], seconds_left: Mapping[str, float | None], *, concurrency: int
) -> dict[str, float | None]:
    """Return seconds until each waiting hydration starts, by its id; ``None`` where unknown.

    ``seconds_left``: until each running one is complete, and how long each waiting one takes once it has started. Each
    end lets the next one in, after those that have to end without a successor because fewer are wanted than run.
    """
    running = [entry.hydration_id for entry in entries if entry.running]
    # An end that is not known comes after all others.
    ends = sorted(_seconds(seconds_left, each) for each in running)[max(0, len(running) - concurrency) :]
    free = max(0, concurrency - len(running))
    starts: dict[str, float | None] = {}
    for entry in in_order(entries):
        if free:
            start, free = 0.0, free - 1
        else:
            start = heappop(ends) if ends else math.inf
        heappush(ends, start + _seconds(seconds_left, entry.hydration_id))
        starts[entry.hydration_id] = start if math.isfinite(start) else None
    return starts


def _seconds(seconds_left: Mapping[str, float | None], hydration_id: str) -> float:
    seconds = seconds_left.get(hydration_id)
    return math.inf if seconds is None else seconds


class Queue(Protocol):
    """The queue in the ledger: one order for all that look."""

    def enqueue(self, hydration_id: str, *, run: str, lease_seconds: float = TOKEN_SECONDS) -> QueuePlace:
        """Take a place in the cluster's queue, or keep it, and the token where it is the hydration's turn.

        Asked again, the place lasts for another ``lease_seconds``. Who does not ask for so long holds nobody up any
        more, and comes last once :data:`REMEMBERED_SECONDS` have gone by as well. A hydration that needs no token gets
        no place.
        """
        ...

    def stand_by(self, hydration_id: str, *, lease_seconds: float = STAND_BY_SECONDS) -> None:
        """Wait for a connection to the sink's server, of which there are only so many.

        The next ones are for those that wait, each one: by priority, and then by who waits longest. It is over with
        the next admission, or ``lease_seconds`` after it was asked last.
        """
        ...

    def leave(self, hydration_id: str) -> None:
        """Give the token back where nothing is in flight. The place ends with it, and is remembered."""
        ...

    def queue(self, cluster: str | None = None) -> list[QueueEntry]:
        """Return what holds a token and what waits, of one cluster or of all, in the order of its turns."""
        ...


AS_DECLARED = 0
"""Takes a person's figure back: what the DAG declares holds again."""
MOST_PRIORITY = 1_000
MOST_CREDITS = 10_000
MOST_ROWS = 1_000_000_000_000


class Shared(StrEnum):
    """What several hydrations share, and may have a limit."""

    HYDRATIONS = "hydrations"
    """Sources that hydrate at once on a Spark cluster; named by the cluster's connection."""
    CONNECTIONS = "connections"
    """Ranges in flight into one server of sinks; named by its address."""
    MEMORY = "memory"
    """Executor memory reserved on a Spark cluster; its row is the lock under which it is counted."""
    PUSH = "push"
    """Whether changes are published, and subscribed to: 1 or 0, by the names of ``core.push.switches.Switch``."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Figures of a hydration to be changed; ``None`` leaves one as it is. Raises :class:`InvalidDeclaration`."""

    credits: int | None = None
    """Most ranges in flight, or :data:`AS_DECLARED`."""
    range_rows: int | None = None
    """Most rows in a range from now on, or :data:`AS_DECLARED`."""
    priority: int | None = None
    """Its place in the queue: a higher one goes first; 0 unless changed."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name, most in (("credits", MOST_CREDITS), ("range_rows", MOST_ROWS)):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidDeclaration(f"{name} must be at least 1, or 0 for what the DAG declares, not {value}.")
            if value is not None and value > most:
                raise InvalidDeclaration(f"{name} must be at most {most:,}, not {value:,}.")
        if self.priority is not None and abs(self.priority) > MOST_PRIORITY:
            raise InvalidDeclaration(f"A priority lies between -{MOST_PRIORITY} and {MOST_PRIORITY}: {self.priority}.")
        if not self.values:
            raise InvalidDeclaration("Nothing to change: name credits, range_rows or priority.")

    @property
    def values(self) -> dict[str, int]:
        """What is changed."""
        every = {"credits": self.credits, "range_rows": self.range_rows, "priority": self.priority}
        return {name: value for name, value in every.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Control:
    """One act of a person."""

    hydration_id: str
    """Empty where it was on what hydrations share."""
    at: datetime
    who: str
    action: str
    why: str | None
    values: dict[str, Any]
    """The figures after it."""


class Steering(Protocol):
    """Steering in the ledger. Each act leaves who, when and why, and binds at the next look at the gate."""

    def pause(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """Close the gate manually; ranges in flight are still committed."""
        ...

    def resume(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """Resume a paused hydration."""
        ...

    def steer(self, hydration_id: str, change: Change, *, who: str, why: str | None = None) -> None:
        """Change figures: a raised maximum of credits is given at once, a lowered one binds at the next admission."""
        ...

    def share(self, kind: Shared, name: str, most: int, *, who: str, why: str | None = None) -> None:
        """Limit what several hydrations share; what runs above a lowered limit continues to its end."""
        ...

    def change_owner(self, hydration_id: str, owner: str, *, who: str, why: str | None = None) -> None:
        """Let another DAG own a hydration: the old one's runs are refused from then on, and no run has it.

        ``LedgerRefused`` while a range of it, or its place in the queue, has a lease.
        """
        ...

    def get_shared(self, kind: Shared, name: str) -> int | None:
        """Return a limit as it holds now; ``None`` where there is none."""
        ...

    def resize(self, hydration_id: str, slots: int) -> int:
        """Record how many tasks the cluster runs at once now, and return the credits, which follow.

        No person did it: not in the history.
        """
        ...

    def skip(self, plan_id: str, seq: int, *, who: str, why: str) -> bool:
        """Revoke a planned or failed range for good; ``False`` where it is neither. The sink has to refuse it first."""
        ...

    def mark_unverified(self, plan_id: str) -> bool:
        """Have a plan verified again before anything follows it; ``False`` where it is no hydration's current one."""
        ...

    def controls(self, hydration_id: str | None = None, *, limit: int = 100) -> list[Control]:
        """Return the latest acts, on one hydration or on all, the newest first."""
        ...
