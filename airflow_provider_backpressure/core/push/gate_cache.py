"""A process's own copy of a gate's state, kept up by numbered diffs between two reads of the ledger."""

from dataclasses import dataclass, replace

from airflow_provider_backpressure.core.gate.gate_event import Diff
from airflow_provider_backpressure.core.gate.hydration import GateState


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The position of a mirror when a read of the ledger began."""

    losses: int
    number: int
    wanted: int


class Mirror:
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
