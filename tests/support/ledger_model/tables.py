"""What the model keeps, in the place of tables. Everything here is used under the model's lock."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from airflow_provider_backpressure.core import transitions as refusals
from airflow_provider_backpressure.core.default_limits import TOKEN_SECONDS
from airflow_provider_backpressure.core.gate.cluster_queue import (
    NOT_QUEUED,
    REMEMBERED_SECONDS,
    Control,
    QueueEntry,
    QueuePlace,
    Shared,
    may_start,
    place,
)
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase, Span
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.rates_and_eta import Sample, WorkerStatistics
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from airflow_provider_backpressure.core.transitions import hydration_transitions as waits
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures
from airflow_provider_backpressure.core.transitions.range_transitions import lease_runs
from airflow_provider_backpressure.ledger.tables import control_log as decisions


@dataclass(kw_only=True)
class Entry:
    """A hydration with all that belongs to it."""

    environment: str
    source_identity: str
    sink_identity: str
    owner: str
    figures: Figures
    created_at: datetime
    updated_at: datetime
    plan: Plan | None = None
    holder: str | None = None
    paused_why: str | None = None
    priority: int = 0
    range_rows_set: int | None = None
    decision: str | None = None
    in_flight: set[tuple[str, int]] = field(default_factory=set)
    failed: set[tuple[str, int]] = field(default_factory=set)
    statistics: dict[str, WorkerStatistics] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    flows: list[tuple[datetime, dict[Stage, StageTime]]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def hydration(self) -> Hydration:
        """Return the value that the port gives."""
        figures = self.figures
        return Hydration(
            id=figures.id,
            environment=self.environment,
            source_identity=self.source_identity,
            sink_identity=self.sink_identity,
            owner=self.owner,
            cluster=figures.cluster,
            phase=figures.phase,
            plan=self.plan,
            holder=self.holder,
            credits=figures.credits,
            credits_max=figures.credits_max,
            credits_declared=figures.credits_declared,
            credits_set=figures.credits_set,
            range_rows_set=self.range_rows_set,
            priority=self.priority,
            slots=figures.slots,
            sink_server=figures.sink_server,
            paused_by=figures.paused_by,
            paused_why=self.paused_why,
            decision=decisions.from_json(self.decision),
            created_at=self.created_at,
            updated_at=self.updated_at,
            hydrated_at=figures.hydrated_at,
            verified=figures.verified,
        )


@dataclass(kw_only=True)
class Turn:
    """A place in a cluster's queue."""

    ready_at: datetime
    lease_until: datetime
    running: bool = False
    run: str | None = None

    def end(self, now: datetime) -> None:
        """Give the token back, and the place with it."""
        if self.running:
            self.running, self.lease_until = False, now


class Tables:
    """Hydrations and their ranges, the queue, and what hydrations share."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.entries: dict[str, Entry] = {}
        self.ranges: dict[str, dict[int, RangeRecord]] = {}
        self.order: dict[str, list[int]] = {}
        self.turns: dict[str, Turn] = {}
        self.limits: dict[tuple[Shared, str], tuple[int | None, str | None]] = {}
        self.controls: list[Control] = []

    def entry(self, hydration_id: str) -> Entry:
        """Return a hydration; ``LedgerRefused`` for an unknown id."""
        if hydration_id not in self.entries:
            raise refusals.unknown(hydration_id)
        return self.entries[hydration_id]

    def find(self, *key: str) -> Entry | None:
        """Return the hydration of environment, source and sink."""
        for entry in self.entries.values():
            if (entry.environment, entry.source_identity, entry.sink_identity) == key:
                return entry
        return None

    def range(self, plan_id: str, seq: int) -> RangeRecord:
        """Return one range; ``LedgerRefused`` where there is none."""
        record = self.ranges.get(plan_id, {}).get(seq)
        if record is None:
            raise refusals.unknown_range(plan_id, seq)
        return record

    def held(self, hydration_id: str) -> list[RangeRecord]:
        """Return the ranges that hold a credit, in the order of plan and number."""
        entry = self.entries.get(hydration_id)
        return [self.ranges[plan_id][seq] for plan_id, seq in sorted(entry.in_flight)] if entry else []

    def leased(self, hydration_id: str) -> int:
        """Count the ranges in flight whose lease has not run out."""
        return sum(lease_runs(each, self.now()) for each in self.held(hydration_id))

    def next_planned(self, figures: Figures) -> RangeRecord | None:
        """Return the first planned range of the plan."""
        order = self.order.get(figures.plan_id or "", [])
        for index in range(bisect_left(order, figures.next_seq), len(order)):
            record = self.ranges[figures.plan_id or ""][order[index]]
            if record.state is RangeState.PLANNED:
                return record
        return None

    def put(self, entry: Entry, record: RangeRecord) -> None:
        """Write a range back."""
        key = (record.plan_id, record.seq)
        self.ranges[record.plan_id][record.seq] = record
        (entry.in_flight.add if record.state is RangeState.ADMITTED else entry.in_flight.discard)(key)
        (entry.failed.add if record.state is RangeState.FAILED else entry.failed.discard)(key)

    def save(self, entry: Entry, figures: Figures) -> None:
        """Write the figures back."""
        now = self.now()
        if figures.phase is not entry.figures.phase:
            self.enter(entry, figures.phase, now)
        entry.figures, entry.updated_at = figures, now

    def enter(self, entry: Entry, phase: Phase, now: datetime) -> None:
        """End the phase that a hydration is in, if any, and begin another."""
        if entry.spans:
            entry.spans[-1] = replace(entry.spans[-1], ended_at=now)
        entry.spans.append(Span(phase=phase, started_at=now))

    def worker(self, entry: Entry, worker: str) -> WorkerStatistics:
        """Return a worker's statistics, or zeros."""
        return entry.statistics.get(worker) or WorkerStatistics(hydration_id=entry.figures.id, worker_id=worker)

    def sampled(self, entry: Entry, now: datetime, *, memory: MemoryReading | None = None) -> Figures:
        """Keep a sample and return the figures after it."""
        row = tallies.sample(
            now,
            list(entry.statistics.values()),
            in_flight=len(entry.in_flight),
            credits=entry.figures.credits,
            memory=memory,
        )
        entry.samples.append(row)
        return replace(entry.figures, sampled_at=now)

    def reserved(self, cluster: str) -> int:
        """Return the executor memory reserved on a cluster."""
        return sum(record.memory_bytes for record in self._every_held(lambda figures: figures.cluster == cluster))

    def largest(self, cluster: str) -> int:
        """Return the most executor memory that one range in flight on a cluster has reserved."""
        held = self._every_held(lambda figures: figures.cluster == cluster)
        return max((record.memory_bytes for record in held), default=0)

    def connections(self, sink_server: str) -> int:
        """Count the ranges in flight into a server of sinks."""
        return len(self._every_held(lambda figures: figures.sink_server == sink_server))

    def waiting_before(self, mine: Entry) -> int:
        """Count those who get the next connection to the sink's server rather than this one."""
        now = self.now()
        return sum(
            waits.goes_before(entry.figures, entry.priority, mine.figures, mine.priority, now)
            for entry in self.entries.values()
            if entry.figures.sink_server == mine.figures.sink_server
        )

    def limit(self, kind: Shared, name: str) -> int | None:
        """Return what hydrations may have of what they share."""
        return self.limits.get((kind, name), (None, None))[0]

    def set_limit(self, kind: Shared, name: str, most: int, *, who: str | None) -> None:
        """Change it; what is only declared changes nothing that a person has said."""
        if who is not None or self.limits.get((kind, name), (None, None))[1] is None:
            self.limits[kind, name] = (most, who)

    def queue(self, cluster: str | None = None) -> list[QueueEntry]:
        """Return what waits or has a token, and something to do."""
        return [
            QueueEntry(
                hydration_id=hydration_id,
                cluster=entry.figures.cluster,
                priority=entry.priority,
                ready_at=turn.ready_at,
                running=turn.running,
                run=turn.run,
            )
            for hydration_id, turn in self.turns.items()
            if turn.lease_until > self.now()
            and (entry := self.entry(hydration_id)).figures.queues
            and cluster in (None, entry.figures.cluster)
            and (not turn.running or self._any_open(entry))
        ]

    def stands(self, entry: Entry) -> QueuePlace:
        """Return a hydration's place as it is now."""
        figures = entry.figures
        return place(
            self.queue(figures.cluster),
            figures.id,
            concurrency=self.limit(Shared.HYDRATIONS, figures.cluster),
            cluster=figures.cluster,
        )

    def take_turn(self, entry: Entry, *, seconds: float = TOKEN_SECONDS, run: str | None = None) -> QueuePlace:
        """Take or keep a place, and the token where it is this hydration's turn."""
        hydration_id, now = entry.figures.id, self.now()
        if not entry.figures.queues:
            return NOT_QUEUED
        turn = self.turns.get(hydration_id)
        if turn is None or turn.lease_until + timedelta(seconds=REMEMBERED_SECONDS) <= now:
            turn = self.turns[hydration_id] = Turn(ready_at=now, lease_until=now)
        turn.running = turn.running and turn.lease_until > now
        turn.lease_until, turn.run = now + timedelta(seconds=seconds), run or turn.run
        found = self.stands(entry)
        turn.running = turn.running or may_start(found)
        return NOT_QUEUED if turn.running else found

    def leave(self, hydration_id: str) -> None:
        """Give the token back, and let the place end with it."""
        turn = self.turns.get(hydration_id)
        if turn is not None:
            turn.end(self.now())

    def free_token(self, entry: Entry) -> None:
        """Let a hydration that is to get ranges take its turn again where it had none left."""
        if not self._any_open(entry):
            self.leave(entry.figures.id)

    def _any_open(self, entry: Entry) -> bool:
        """Whether a range of the plan is still to be committed, or there is no plan yet."""
        plan_id = entry.figures.plan_id
        unsettled = any(plan == plan_id for plan, _ in entry.in_flight | entry.failed)
        return plan_id is None or unsettled or self.next_planned(entry.figures) is not None

    def _every_held(self, meant: Callable[[Figures], bool]) -> list[RangeRecord]:
        return [
            record
            for entry in self.entries.values()
            if entry.in_flight and meant(entry.figures)
            for record in self.held(entry.figures.id)
        ]


def _belongs(plan: dict[int, RangeRecord], hydration_id: str) -> bool:
    return any(record.hydration_id == hydration_id for record in plan.values())
