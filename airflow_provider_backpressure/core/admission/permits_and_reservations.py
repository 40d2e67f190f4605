"""The limiter enforces: it reads the gate's state, asks every signal, and gives a permit or all reasons against it.

Lanes acquire; sensors and triggers only look. Both go through :func:`gate_decision`, a pure function.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.default_limits import LEASE_SECONDS
from airflow_provider_backpressure.core.gate.credit_limits import Limit, Pace, PacedLimit, limit_for
from airflow_provider_backpressure.core.gate.hydration_record import GateState, Permit, Refusal
from airflow_provider_backpressure.core.gate.signals import (
    CONNECTIONS,
    NEVER,
    QUEUE,
    SINK_COMMIT,
    Decision,
    HealthReading,
    MemoryReading,
    Signal,
    credits_taken,
    decide,
    health,
    live_memory,
    manual_pause,
    predict_memory,
    queue_place,
    sink_commit,
    sink_connections,
    snapshot_age,
)
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.poll_policy import Clock, SystemClock
from airflow_provider_backpressure.core.ports.ledger import Ledger, LedgerReader
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord

log = logging.getLogger(__name__)

Readings = Mapping[Watched, HealthReading]
"""What was last seen of the budget's declared signals; one that is missing was never seen."""
NONE_SEEN: Readings = {}


def memory_signals(
    state: GateState, reading: MemoryReading | None, budget: Budget, *, baseline_bytes: int = 0
) -> tuple[Signal, Signal]:
    """Return both lines of executor memory: predicted by what finished ranges took, and live.

    ``baseline_bytes`` is what strangers were seen to hold of an executor, its JVM with them.
    """
    alone = reading is not None and reading.isolated
    predicted = predict_memory(
        baseline_bytes=0 if alone else _count_baseline(baseline_bytes, reading),
        reserved_bytes=0 if alone else _count_reserved(state, reading),
        next_bytes=state.range_memory_bytes,
        limit_bytes=reading.limit_bytes if reading else None,
        high=budget.executor_memory,
        shared=bool(state.reserved_bytes) and not alone,
    )
    live = live_memory(
        reading,
        high=budget.executor_memory,
        low=budget.executor_memory_low,
        was_closed=state.memory_closed,
        deadline=budget.signal_deadline,
    )
    return predicted, live


def count_task_cpus(state: GateState, reading: MemoryReading | None, budget: Budget) -> int:
    """Return how many cores of an executor the next range takes, where several executors let it take more than one.

    Its share of the cores is at least its share of the memory. So the ranges that Spark puts on one executor fit into
    it, also those of other hydrations, which take their shares by the same rule.
    """
    if reading is None or not reading.cores or not state.range_memory_bytes:
        return 1
    most, room = max(reading.cores), _count_room(reading, budget)
    return most if state.range_memory_bytes >= room else max(1, math.ceil(most * state.range_memory_bytes / room))


def _count_baseline(strangers: int, reading: MemoryReading | None) -> int:
    return max(strangers, reading.jvm_bytes) if reading else strangers


def _count_room(reading: MemoryReading, budget: Budget, strangers: int = 0) -> int:
    """Return what ranges may take of one executor."""
    return int(reading.limit_bytes * budget.executor_memory) - _count_baseline(strangers, reading)


def _count_reserved(state: GateState, reading: MemoryReading | None) -> int:
    """Return what ranges in flight may take of one executor, beside the next one.

    Each counts as the largest seen since: some was admitted when less was known, or nothing. All may be on the same
    executor, but no more of them at once than it has slots; the others wait without memory.
    """
    reserved = max(state.reserved_bytes, state.in_flight * (state.range_memory_bytes or 0))
    if reading is None or not reading.slots_each:
        return reserved
    return min(reserved, (reading.slots_each - 1) * _largest(state, reading))


def _largest(state: GateState, reading: MemoryReading) -> int:
    """Return what each range on an executor may take. Ranges with cores by their memory take no more than such ones."""
    own = state.range_memory_bytes or 0
    return own if reading.cores else max(own, state.largest_bytes)


def commit_signals(state: GateState, budget: Budget) -> tuple[Signal, ...]:
    """Return what the sink's commits say: their latency, and whether a credit and a connection are left."""
    latency = sink_commit(state.commit_seconds, oldest_seconds=state.oldest_seconds, threshold=budget.commit_seconds)
    connections = sink_connections(state.connections, state.connections_max, state.connections_before)
    return latency, credits_taken(state.in_flight, state.credits), connections


def hungry(state: GateState) -> bool:
    """Whether a hydration could starve: it has something to do, and nothing in flight. Others need no connection kept
    for them, which would lie idle until their lanes look up from what they have in flight.
    """
    return bool(state.waiting) and not state.in_flight


def stand_in_line(ledger: Ledger, hydration_id: str, decision: Decision, *, run: str, waiting: bool = True) -> None:
    """Take or keep a place in the cluster's queue, or at the sink's server, where that is all that is waited for.

    ``waiting``: see :func:`hungry`. Who is held back by something else as well gives way to those behind it.
    """
    if decision.closing == {QUEUE}:
        ledger.enqueue(hydration_id, run=run)
    elif decision.closing == {CONNECTIONS} and waiting:
        ledger.stand_by(hydration_id)


def health_signals(seen: Readings, budget: Budget) -> tuple[Signal, ...]:
    """Return what the budget declares of source, sink and other databases."""
    return tuple(health(each, seen.get(each, NEVER), deadline=budget.signal_deadline) for each in budget.signals)


def gate_decision(
    state: GateState,
    reading: MemoryReading | None,
    budget: Budget,
    *,
    baseline_bytes: int = 0,
    seen: Readings = NONE_SEEN,
    snapshot_seconds: float | None = None,
) -> Decision:
    """Return the gate's decision over every signal. Pure: the same readings give the same answer everywhere."""
    return decide(
        (
            manual_pause(state.paused_by, state.paused_why),
            queue_place(state.place),
            *commit_signals(state, budget),
            *memory_signals(state, reading, budget, baseline_bytes=baseline_bytes),
            *health_signals(seen, budget),
            *snapshot_age(snapshot_seconds, most=budget.snapshot_age),
        ),
        in_flight=state.in_flight,
    )


def read_gate(ledger: LedgerReader, hydration_id: str) -> GateState:
    """Read a gate from the ledger, for oneself alone."""
    return ledger.gate(hydration_id)


@dataclass(kw_only=True)
class Limiter:
    """The gate of one hydration as one lane (or sensor) sees it."""

    ledger: Ledger
    hydration_id: str
    budget: Budget
    memory: Callable[[], MemoryReading | None]
    """The runner's live reading; cheap enough to be called at every look."""
    health: Callable[[], Readings] = lambda: NONE_SEEN
    """What was last seen of the declared signals; does not block."""
    snapshot_seconds: Callable[[], float | None] = lambda: None
    """How old the snapshot is that the lane keeps; ``None`` where it keeps none."""
    last: Decision | None = None
    """The latest decision, for the law's pressure."""
    range_rows: int | None = None
    """What a person wants a range to hold, as of the latest look."""
    reading: MemoryReading | None = None
    """The executors' memory at the latest look, with the slots that there are for ranges of :attr:`task_cpus`."""
    task_cpus: int = 1
    """Cores of an executor that a range takes, as of the latest look."""
    clock: Clock = field(default_factory=SystemClock)
    read_gate: Callable[[LedgerReader, str], GateState] = read_gate
    """Reads the gate; where changes are pushed, for all that wait in this process."""
    _pace: Pace = field(default_factory=Pace)
    _baseline: int = 0
    _recorded: tuple[bool, tuple[str, ...]] | None = None
    _warned: tuple[str, ...] = ()

    def _memory_limit(self, state: GateState) -> int | None:
        """Return what all ranges on the cluster may reserve together; ``None`` where its slots bound it already."""
        reading = self.reading
        if reading is None or reading.isolated:
            return None
        room = _count_room(reading, self.budget, self._baseline)
        return None if reading.slots_each and reading.slots_each * _largest(state, reading) <= room else room

    def read_memory(self, state: GateState) -> MemoryReading | None:
        """Read the executors' memory, and settle how many cores the next range takes."""
        reading = self.memory()
        self.task_cpus = count_task_cpus(state, reading, self.budget)
        self.reading = reading.with_task_cpus(self.task_cpus) if reading else None
        return self.reading

    def look(self, *, anew: bool = False) -> tuple[GateState, Decision]:
        """Return state and decision, and write the decision down where its verdict is a new one, or ``anew``."""
        state = self.read_gate(self.ledger, self.hydration_id)
        reading = self.read_memory(state)
        if reading is not None and reading.slots and reading.slots != state.slots:
            credits = self.ledger.resize(self.hydration_id, reading.slots)
            state = replace(state, slots=reading.slots, credits=credits)
        # Ranges of which nothing was learned reserve nothing, and take memory nevertheless.
        if reading is not None and not state.reserved_bytes and not state.in_flight:
            # Stages without a figure yet leave it unknown what strangers take: it stays as it was.
            unknown = 0 if reading.idle else self._baseline
            self._baseline = unknown if reading.used_bytes is None else reading.used_bytes
        self._pace.saw(state.in_flight, now=self.clock.monotonic())
        decision = gate_decision(
            state,
            reading,
            self.budget,
            baseline_bytes=self._baseline,
            seen=self.health(),
            snapshot_seconds=self.snapshot_seconds(),
        )
        verdict = (decision.open, tuple(signal.name for signal in decision.signals if signal.closed or signal.warning))
        if anew or verdict != self._recorded:
            self.ledger.record_decision(self.hydration_id, decision)
            self._recorded = verdict
        self._warn(decision)
        self.last, self.range_rows = decision, state.range_rows
        return state, decision

    def _warn(self, decision: Decision) -> None:
        """Log each warning when it comes up."""
        names = tuple(signal.name for signal in decision.signals if signal.warning)
        if names != self._warned:
            for sentence in decision.warnings:
                log.warning("Data may be lost: %s.", sentence)
            self._warned = names

    def limit(self, record: RangeRecord) -> Limit:
        """Return the law for the commit of a range, learned from it: call it once, before the ledger is updated."""
        limit = limit_for(self.budget.law)
        self._pace.learn_commit(record.seq, now=self.clock.monotonic())
        if self._pace.seconds is None or self.last is None:
            return limit
        others = (signal.utilisation for signal in self.last.signals if signal.measured and signal.name != SINK_COMMIT)
        each = self._pace.seconds / self.budget.commit_seconds
        return PacedLimit(limit=limit, each=each, others=max(others, default=0.0))

    def acquire(
        self, *, lane: str, session_id: str, seq: int | None = None, lease_seconds: float = LEASE_SECONDS
    ) -> Permit | Refusal:
        """Return a permit, written in the ledger before anything is submitted, or a refusal with every reason."""
        state, decision = self.look()
        if not decision.open:
            stand_in_line(self.ledger, self.hydration_id, decision, run=lane, waiting=hungry(state))
            # A closed gate is no reason to wait where nothing is left that it could let through.
            return Refusal(decision=decision, exhausted=state.waiting == 0)
        if not state.waiting and seq is None:
            # The ledger would refuse it too, under a lock.
            return Refusal(decision=decision, exhausted=True)
        permit = self.ledger.admit(
            self.hydration_id,
            lane=lane,
            session_id=session_id,
            lease_seconds=lease_seconds,
            memory_bytes=state.range_memory_bytes or 0,
            memory_limit=self._memory_limit(state),
            seq=seq,
        )
        if permit is not None:
            self._pace.note_admission(permit.range.seq, now=self.clock.monotonic())
            return permit
        # Between the look and the row lock another lane was quicker, or there is nothing left to admit.
        state, decision = self.look()
        return Refusal(decision=decision, exhausted=state.waiting == 0)
