"""The limiter enforces: it reads the gate's state, asks every signal, and gives a permit or all reasons against it.

Lanes acquire; sensors and triggers only look. Both go through :func:`gate_decision`, a pure function.
"""

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.hydration import GateState, Permit, Refusal
from airflow_provider_backpressure.core.ports import Ledger
from airflow_provider_backpressure.core.signals import (
    Decision,
    MemoryReading,
    Signal,
    credits_taken,
    decide,
    hand,
    live_memory,
    predicted_memory,
    sink_commit,
)

LEASE_SECONDS = 60.0
"""How long a credit is held without a sign of life from its lane."""
RESERVATION_SECONDS = 300.0
"""How long a sensor's reservation waits for its submission; Airflow may take minutes to start the next task."""


def memory_signals(
    state: GateState, reading: MemoryReading | None, budget: Budget, *, baseline_bytes: int = 0
) -> tuple[Signal, Signal]:
    """Return both lines of executor memory: predicted by what finished ranges took, and live.

    ``baseline_bytes`` is what the executor holds besides our ranges (its JVM, strangers).
    """
    alone = reading is not None and reading.isolated
    predicted = predicted_memory(
        baseline_bytes=0 if alone else baseline_bytes,
        reserved_bytes=0 if alone else state.reserved_bytes,
        next_bytes=state.range_memory_bytes,
        limit_bytes=reading.limit_bytes if reading else None,
        high=budget.executor_memory,
    )
    live = live_memory(
        reading,
        high=budget.executor_memory,
        low=budget.executor_memory_low,
        was_closed=state.memory_closed,
        deadline=budget.signal_deadline,
    )
    return predicted, live


def commit_signals(state: GateState, budget: Budget) -> tuple[Signal, Signal]:
    """Return what the sink's commits say: their latency, and whether a credit is left."""
    latency = sink_commit(state.commit_seconds, oldest_seconds=state.oldest_seconds, threshold=budget.commit_seconds)
    return latency, credits_taken(state.in_flight, state.credits)


def gate_decision(
    state: GateState, reading: MemoryReading | None, budget: Budget, *, baseline_bytes: int = 0
) -> Decision:
    """Return the gate's decision over every signal. Pure: the same readings give the same answer everywhere."""
    return decide(
        (
            hand(state.paused_by, state.paused_why),
            *commit_signals(state, budget),
            *memory_signals(state, reading, budget, baseline_bytes=baseline_bytes),
        ),
        in_flight=state.in_flight,
    )


@dataclass(kw_only=True)
class Limiter:
    """The gate of one hydration as one lane (or sensor) sees it."""

    ledger: Ledger
    hydration_id: str
    budget: Budget
    memory: Callable[[], MemoryReading | None]
    """The runner's live reading; cheap enough to be called at every look."""
    last: Decision | None = None
    """The latest decision, for the law's pressure."""
    _baseline: int = 0
    _recorded: tuple[bool, tuple[str, ...]] | None = None

    def look(self) -> tuple[GateState, Decision]:
        """Return state and decision, and write the decision down where its verdict is a new one."""
        state, reading = self.ledger.gate(self.hydration_id), self.memory()
        if reading is not None and state.in_flight == 0:
            self._baseline = reading.used_bytes
        decision = gate_decision(state, reading, self.budget, baseline_bytes=self._baseline)
        verdict = (decision.open, tuple(signal.name for signal in decision.signals if signal.closed))
        if verdict != self._recorded:
            self.ledger.record_decision(self.hydration_id, decision)
            self._recorded = verdict
        self.last = decision
        return state, decision

    def acquire(
        self, *, lane: str, session_id: str, seq: int | None = None, lease_seconds: float = LEASE_SECONDS
    ) -> Permit | Refusal:
        """Return a permit, written in the ledger before anything is submitted, or a refusal with every reason."""
        state, decision = self.look()
        if not decision.open:
            # A closed gate is no reason to wait where nothing is left that it could let through.
            return Refusal(decision=decision, exhausted=state.waiting == 0)
        permit = self.ledger.admit(
            self.hydration_id,
            lane=lane,
            session_id=session_id,
            lease_seconds=lease_seconds,
            memory_bytes=state.range_memory_bytes or 0,
            seq=seq,
        )
        if permit is not None:
            return permit
        # Between the look and the row lock another lane was quicker, or there is nothing left to admit.
        state, decision = self.look()
        return Refusal(decision=decision, exhausted=state.waiting == 0)
