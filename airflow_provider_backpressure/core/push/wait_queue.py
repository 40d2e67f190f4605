"""Those of one process that wait at one hydration's gate: one after the other they are let go to look."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.gate.gate_event import Diff
from airflow_provider_backpressure.core.gate.hydration_record import GateState
from airflow_provider_backpressure.core.ports.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The position of a copy when a read of the ledger began."""

    losses: int
    number: int
    wanted: int


class GateCopy:
    """One hydration's gate as this process knows it. Not shared by threads without a lock.

    A diff with the next number is applied. Every other one makes the copy **stale**, until the ledger has been read
    again; but for a late one that a read has overtaken.

    What diffs do not hold stays as last read: the queue, memory, connections, and the age of what is in flight.
    """

    def __init__(self) -> None:
        self.state: GateState | None = None
        self.stale = True
        self._heard = 0
        """Number of the latest diff that was applied."""
        self._wanted = 0
        """Highest number that was heard while nothing could be applied."""
        self._losses = 0

    @property
    def number(self) -> int:
        """Number of the latest change that the copy has."""
        return self.state.number if self.state else 0

    @property
    def may_open(self) -> bool:
        """Whether the gate is worth a look: by the diffs it is open, or nothing is known."""
        if self.stale or self.state is None:
            return True
        return self.state.paused_by is None and self.state.in_flight < self.state.credits

    def hear(self, diff: Diff) -> bool:
        """Apply a diff and return whether it went in cleanly."""
        if self.stale or self.state is None:
            self._wanted = max(self._wanted, diff.number)
            return False
        if diff.number == self.number + 1 and diff.changes is not None:
            in_flight = max(0, self.state.in_flight + diff.in_flight)
            self.state = replace(self.state, number=diff.number, in_flight=in_flight, **diff.changes)
            self._heard = diff.number
            return True
        if not self._heard < diff.number <= self.number:
            self.lose()
            self._wanted = diff.number
        return False

    def lose(self) -> None:
        """Trust the copy no longer: something may have been missed."""
        self.stale = True
        self._losses += 1

    def mark(self) -> Mark:
        """Return what :meth:`saw` needs of the moment before a read."""
        return Mark(losses=self._losses, number=self.number, wanted=self._wanted)

    def saw(self, state: GateState, mark: Mark) -> None:
        """Take over what a read of the ledger gave; one that began before the latest loss does not settle it."""
        if mark.losses != self._losses:
            return
        # What was heard while it was read is newer than a read with a lower number. Where nothing was heard, a lower
        # number is that of a ledger that was restored.
        if self.number != mark.number and state.number < self.number:
            return
        self.state, self._heard = state, min(self._heard, state.number)
        # What was heard before the read began was in the ledger by then.
        if self._wanted == mark.wanted or state.number >= self._wanted:
            self.stale, self._wanted = False, 0


@dataclass(eq=False, kw_only=True)
class Waiter:
    """One that waits. ``wake`` is called from any thread, under a lock: it must return at once."""

    hydration_id: str
    ledger: Ledger
    """Where the switches are read while it waits."""
    wake: Callable[[], None]
    seq: int | None = None
    """The range that it stands for."""
    every: bool = False
    """Gets every change, and takes no turn: a waiter that only displays."""
    tried: int = field(default=-1, init=False)
    """The queue's version at its latest turn."""


class WaitQueue:
    """The waiters of one hydration in one process, and their common copy of its gate. Used under the lock of ``Push``.

    Those that are **parked** wait for their turn. Each change raises the queue's version and gives a turn to one of
    them; the next gets one when that one is done, if the gate is still worth a look. So one credit lets one through,
    and a thousand waiters read the ledger once.
    """

    def __init__(self) -> None:
        self.gate = GateCopy()
        self.waiters: dict[Waiter, None] = {}
        self.subscribed = False
        self.next_read = 0.0
        """When the ledger is to be read though nothing was heard."""
        self._parked: dict[Waiter, None] = {}
        self._turn: Waiter | None = None
        self._slow: Waiter | None = None
        """Who had the turn at the last poll: it may hang, and the others need not wait for that."""
        self._version = 0
        self._due = False
        self._used = 0
        """Number of the change whose copy was looked at last."""

    @property
    def waited_for(self) -> bool:
        """Whether there is a waiter for a turn."""
        return bool(self._parked)

    def enter(self, waiter: Waiter) -> None:
        """Subscribe to changes."""
        self.waiters[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """Give up the turn as well."""
        self.waiters.pop(waiter, None)
        self._parked.pop(waiter, None)
        self._give_back(waiter)

    def park(self, waiter: Waiter) -> None:
        """Wait for the next turn after the others; a waiter that had the turn is done with it."""
        if waiter in self.waiters:
            self._parked[waiter] = None
        self._give_back(waiter)
        self.offer()

    def unpark(self, waiter: Waiter, *, pass_on: bool = True) -> None:
        """Wait by oneself; ``pass_on``: whether others are better off, or would fail alike."""
        self._parked.pop(waiter, None)
        self._give_back(waiter, pass_on=pass_on)

    def hear(self, diff: Diff) -> bool:
        """Apply a diff, notify the waiters for its range, and return whether it applied cleanly."""
        clean = self.gate.hear(diff)
        self.wake_next()
        if diff.seq is not None:
            for waiter in [each for each in self._parked if each.seq == diff.seq]:
                del self._parked[waiter]
                waiter.wake()
        return clean

    def news(self) -> GateState | None:
        """Return the copy where it says that the gate is open, once for each change."""
        state = self.gate.state
        if state is None or not self.gate.may_open or self._used >= state.number:
            return None
        self._used = state.number
        return state

    def saw(self, state: GateState, mark: Mark) -> None:
        """Take over what a waiter has read."""
        self.gate.saw(state, mark)
        self._used = self.gate.number

    def lose(self, *, subscribed: bool) -> None:
        """Trust the copy no longer: changes may have been missed. ``subscribed``: whether the next ones are heard."""
        self.subscribed = subscribed
        self.gate.lose()
        self.wake_next()

    def wake_next(self) -> None:
        """Let one waiter read, if it is worth it."""
        self._version += 1
        for waiter in self.waiters:
            if waiter.every:
                waiter.wake()
        self.offer()

    def offer(self) -> None:
        """Give the turn to the longest waiter, unless one has it or all had it since the last change."""
        first = next(iter(self._parked), None)
        if self._turn is not None or first is None or first.tried == self._version:
            return
        if self._due or self.gate.may_open:
            del self._parked[first]
            self._turn, self._due, first.tried = first, False, self._version
            first.wake()

    def poll(self) -> None:
        """Let one waiter read the ledger, whatever the copy says."""
        if self._turn is self._slow:
            self._turn = None
        self._slow, self._due = self._turn, True
        self.wake_next()

    def _give_back(self, waiter: Waiter, *, pass_on: bool = True) -> None:
        if self._turn is waiter:
            self._turn = None
            if pass_on:
                self.offer()
