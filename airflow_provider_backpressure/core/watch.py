"""Waiting at the gate without running anything: what sensors and triggers do, while lanes acquire."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.hydration import GateState
from airflow_provider_backpressure.core.limiter import RESERVATION_SECONDS, Limiter, gate_decision
from airflow_provider_backpressure.core.ports import Ledger
from airflow_provider_backpressure.core.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.signals import Decision, MemoryReading, decide


class Watch(StrEnum):
    """Whose signals bind."""

    GATE = "gate"
    """All of them, as for a lane."""
    COMMIT = "commit"
    """The sink's commits, the credits and a person's hand: what the ledger alone can tell."""
    MEMORY = "memory"
    """The executors' memory, predicted and live."""


SIGNALS = {
    Watch.COMMIT: frozenset({"hand", "sink commit", "credits"}),
    Watch.MEMORY: frozenset({"predicted memory", "executor memory"}),
}
"""Names of the gate's signals that each part looks at."""


def part(decision: Decision, watch: Watch, *, in_flight: int) -> Decision:
    """Return the decision over the watched signals of the whole gate's decision: same readings, same sentences."""
    if watch is Watch.GATE:
        return decision
    return decide((signal for signal in decision.signals if signal.name in SIGNALS[watch]), in_flight=in_flight)


class Why(StrEnum):
    """Why a waiter stops waiting."""

    OPEN = "open"
    """The gate is open; where a lane was named, the range is reserved for it."""
    SETTLED = "settled"
    """There is nothing left to wait for: committed, failed or held by this very lane."""
    ABANDONED = "abandoned"
    """A lane fell silent and its lease ran out: somebody has to settle what it left."""


@dataclass(kw_only=True)
class Watcher:
    """One waiter's looks at the gate. Each is a few short reads of the ledger, and blocks for them."""

    ledger: Ledger
    hydration_id: str
    budget: Budget
    watch: Watch
    memory: Callable[[], MemoryReading | None] | None = None
    """The live reading; without it only the part that the ledger can tell is watched."""
    plan_id: str = ""
    seq: int | None = None
    """One range of the plan, where the waiter stands for that range only."""
    lane: str | None = None
    """Reserve the range for this lane when the gate opens, so that each credit lets one waiter through, not all."""
    last: Decision | None = None
    """The latest decision, for its reasons."""
    _limiter: Limiter | None = field(default=None)

    def look(self) -> Why | None:
        """Return why to stop waiting, or ``None``."""
        record = None if self.seq is None else self.ledger.range(self.plan_id, self.seq)
        if record is not None and self._settled(record):
            return Why.SETTLED
        if self.ledger.abandoned(self.hydration_id):
            return Why.ABANDONED
        if record is not None and record.state is RangeState.ADMITTED and record.lane != self.lane:
            return None
        state = self._decide()
        if record is None:
            if not state.waiting:
                return Why.SETTLED
        elif record.state is RangeState.ADMITTED:
            # This lane's own reservation takes a credit itself: it is renewed, not measured against the credits.
            return Why.OPEN if self._reserve(state) else None
        if self.last is None or not self.last.open:
            return None
        return Why.OPEN if self._reserve(state) else None

    def _settled(self, record: RangeRecord) -> bool:
        if record.state is RangeState.ADMITTED:
            return record.lane == self.lane and bool(record.session_id)
        return record.state is not RangeState.PLANNED

    def _decide(self) -> GateState:
        if self.memory is None:
            state = self.ledger.gate(self.hydration_id)
            self.last = part(gate_decision(state, None, self.budget), Watch.COMMIT, in_flight=state.in_flight)
            return state
        if self._limiter is None:
            self._limiter = Limiter(
                ledger=self.ledger, hydration_id=self.hydration_id, budget=self.budget, memory=self.memory
            )
        state, decision = self._limiter.look()
        self.last = part(decision, self.watch, in_flight=state.in_flight)
        return state

    def _reserve(self, state: GateState) -> bool:
        if self.lane is None or self.seq is None:
            return True
        permit = self.ledger.admit(
            self.hydration_id,
            lane=self.lane,
            session_id="",
            lease_seconds=RESERVATION_SECONDS,
            memory_bytes=state.range_memory_bytes or 0,
            seq=self.seq,
        )
        return permit is not None
