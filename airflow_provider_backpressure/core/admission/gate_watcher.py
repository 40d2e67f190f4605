"""Waiting at the gate without running anything: what sensors and triggers do, while lanes acquire."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_provider_backpressure.core.admission.permits_and_reservations import (
    NONE_SEEN,
    Limiter,
    Readings,
    gate_decision,
    hungry,
    read_gate,
    stand_in_line,
)
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.default_limits import RESERVATION_SECONDS
from airflow_provider_backpressure.core.gate.cluster_queue import NOT_QUEUED
from airflow_provider_backpressure.core.gate.hydration_record import GateState
from airflow_provider_backpressure.core.gate.signals import Decision, MemoryReading, decide
from airflow_provider_backpressure.core.ports.ledger import Ledger, LedgerReader
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState


class Watch(StrEnum):
    """Whose signals bind."""

    GATE = "gate"
    """All of them, as for a lane."""
    COMMIT = "commit"
    """The sink's commits, the credits, a manual pause, and the declared health of source and sink."""
    MEMORY = "memory"
    """The executors' memory, predicted and live."""
    QUEUE = "queue"
    """The hydration's turn on its cluster. Looking takes the place, and the token in its turn."""


SIGNALS = {
    Watch.COMMIT: frozenset({"hand", "queue", "sink commit", "credits", "connections"}),
    Watch.MEMORY: frozenset({"predicted memory", "executor memory"}),
    Watch.QUEUE: frozenset({"queue"}),
}
"""Names of the gate's signals that each part looks at; those that a budget declares belong to the commit's part."""


def part(decision: Decision, watch: Watch, *, in_flight: int) -> Decision:
    """Return the decision over the watched signals of the whole gate's decision: same readings, same sentences."""
    if watch is Watch.GATE:
        return decision
    names, declared = SIGNALS[watch], watch is Watch.COMMIT
    watched = (each for each in decision.signals if each.name in names or (declared and each.declared))
    return decide(watched, in_flight=in_flight)


class Why(StrEnum):
    """Why a waiter stops waiting."""

    OPEN = "open"
    """The gate is open; where a lane was named, the range is reserved for it."""
    SETTLED = "settled"
    """There is nothing left to wait for: committed, failed or held by this very lane."""
    ABANDONED = "abandoned"
    """A lane fell silent and its lease ran out: another lane has to settle its ranges."""


@dataclass(kw_only=True)
class Watcher:
    """One waiter's looks at the gate. Each is a few short reads of the ledger, and blocks for them."""

    ledger: Ledger
    hydration_id: str
    budget: Budget
    watch: Watch
    memory: Callable[[], MemoryReading | None] | None = None
    """The live reading; without it only the part that needs none is watched."""
    health: Callable[[], Readings] = lambda: NONE_SEEN
    """What was last seen of the declared signals."""
    plan_id: str = ""
    seq: int | None = None
    """One range of the plan, where the waiter stands for that range only."""
    lane: str | None = None
    """Reserve the range for this lane when the gate opens, so that each credit lets one waiter through, not all."""
    last: Decision | None = None
    """The latest decision, for its reasons."""
    read_gate: Callable[[LedgerReader, str], GateState] = read_gate
    """See ``Limiter.read_gate``."""
    _limiter: Limiter | None = field(default=None)

    def look(self) -> Why | None:
        """Return why to stop waiting, or ``None``."""
        if self.watch is Watch.QUEUE:
            return self._look_at_the_queue()
        state, decision = self._decide()
        takes_credit = self.lane is not None and self.seq is not None
        # A commit may have opened the gate just now: every read before the reservation would make that late.
        if takes_credit and decision.open and self._reserve(state):
            return Why.OPEN
        record = None if self.seq is None else self.ledger.range(self.plan_id, self.seq)
        if record is not None and self._is_settled(record):
            return Why.SETTLED
        if self.ledger.find_abandoned(self.hydration_id):
            return Why.ABANDONED
        held = record if record is not None and record.state is RangeState.ADMITTED else None
        if held is not None and held.lane != self.lane:
            return None
        stand_in_line(self.ledger, self.hydration_id, decision, run=self.lane or "", waiting=hungry(state))
        if record is None and not state.waiting:
            return Why.SETTLED
        # This lane's own reservation takes a credit itself: it is renewed, not measured against the credits.
        opens = self._reserve(state) if held is not None else decision.open and not takes_credit
        return Why.OPEN if opens else None

    def _look_at_the_queue(self) -> Why | None:
        state = self.ledger.gate(self.hydration_id)
        # The gate reports a pause, which also waits for the turn; a paused hydration lets later ones pass.
        place = NOT_QUEUED if state.paused_by else self.ledger.enqueue(self.hydration_id, run=self.lane or "")
        whole = gate_decision(replace(state, place=place), None, self.budget)
        self.last = part(whole, Watch.QUEUE, in_flight=state.in_flight)
        return Why.OPEN if self.last.open else None

    def _is_settled(self, record: RangeRecord) -> bool:
        if record.state is RangeState.ADMITTED:
            return record.lane == self.lane and bool(record.session_id)
        return record.state is not RangeState.PLANNED

    def _decide(self) -> tuple[GateState, Decision]:
        if self.memory is None:
            state = self.read_gate(self.ledger, self.hydration_id)
            decision = gate_decision(state, None, self.budget, seen=self.health())
            self.last = part(decision, Watch.COMMIT, in_flight=state.in_flight)
            return state, self.last
        if self._limiter is None:
            self._limiter = Limiter(
                ledger=self.ledger,
                hydration_id=self.hydration_id,
                budget=self.budget,
                memory=self.memory,
                health=self.health,
                read_gate=self.read_gate,
            )
        state, decision = self._limiter.look()
        self.last = part(decision, self.watch, in_flight=state.in_flight)
        return state, self.last

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
