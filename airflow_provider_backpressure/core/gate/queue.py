"""The queue in front of a Spark cluster: how many sources hydrate there at once, and which one is next.

Only a hydration or a rehydration needs a **token** of its cluster; increments and repaired ranges pass without one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

CONCURRENCY = 4
"""How many sources hydrate at once on a cluster, unless a person says otherwise."""
TOKEN_SECONDS = 120.0
"""How long a token, or a place in the queue, is kept without a sign of life."""
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
    concurrency: int = CONCURRENCY
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
        concurrency=CONCURRENCY if concurrency is None else concurrency,
        cluster=cluster,
    )


def may_start(place: QueuePlace) -> bool:
    """Whether there is a token for this place: for the first that wait, as many as are free."""
    return place.granted or place.position <= place.concurrency - place.running


def estimate_starts(
    entries: Sequence[QueueEntry], seconds_left: Mapping[str, float | None], *, concurrency: int
) -> dict[str, float | None]:
    """Return seconds until each waiting hydration starts, by its id; ``None`` where unknown.

    ``seconds_left``: until each running one is complete. Each end lets the next one in, after those that have to end
    without a successor because fewer are wanted than run.
    """
    lefts = (seconds_left.get(entry.hydration_id) for entry in entries if entry.running)
    ends = sorted(left for left in lefts if left is not None)
    running = sum(entry.running for entry in entries)
    starts: dict[str, float | None] = {}
    for index, entry in enumerate(in_order(entries)):
        before = index - (concurrency - running)
        known = before < len(ends)
        starts[entry.hydration_id] = 0.0 if before < 0 else ends[before] if known else None
    return starts


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
