"""What the ledger in memory keeps, in the place of tables. Everything here is used under the ledger's lock."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_provider_backpressure.core.hydration import Hydration
from airflow_provider_backpressure.core.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.core.statistics import WorkerStatistics, total_progress
from airflow_provider_backpressure.ledger import decisions, law


@dataclass(frozen=True, kw_only=True)
class Control:
    """One act of a person."""

    hydration_id: str
    at: datetime
    who: str
    action: str
    why: str | None


@dataclass(kw_only=True)
class Entry:
    """A hydration with all that belongs to it."""

    environment: str
    source_identity: str
    sink_identity: str
    owner: str
    cluster: str
    figures: law.Figures
    created_at: datetime
    updated_at: datetime
    plan: Plan | None = None
    holder: str | None = None
    paused_why: str | None = None
    decision: str | None = None
    in_flight: set[tuple[str, int]] = field(default_factory=set)
    statistics: dict[str, WorkerStatistics] = field(default_factory=dict)
    samples: list[law.Sample] = field(default_factory=list)

    def hydration(self) -> Hydration:
        """Return the value that the port gives."""
        figures = self.figures
        return Hydration(
            id=figures.id,
            environment=self.environment,
            source_identity=self.source_identity,
            sink_identity=self.sink_identity,
            owner=self.owner,
            cluster=self.cluster,
            phase=figures.phase,
            plan=self.plan,
            holder=self.holder,
            credits=figures.credits,
            credits_max=figures.credits_max,
            paused_by=figures.paused_by,
            paused_why=self.paused_why,
            decision=decisions.from_json(self.decision),
            created_at=self.created_at,
            updated_at=self.updated_at,
            hydrated_at=figures.hydrated_at,
        )


class Tables:
    """Hydrations and their ranges."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.entries: dict[str, Entry] = {}
        self.ranges: dict[str, dict[int, RangeRecord]] = {}
        self.order: dict[str, list[int]] = {}

    def entry(self, hydration_id: str) -> Entry:
        """Return a hydration; ``LedgerRefused`` for an unknown id."""
        if hydration_id not in self.entries:
            raise law.unknown(hydration_id)
        return self.entries[hydration_id]

    def find(self, *key: str) -> Entry | None:
        """Return the hydration of environment, source and sink."""
        for entry in self.entries.values():
            if (entry.environment, entry.source_identity, entry.sink_identity) == key:
                return entry
        return None

    def held(self, hydration_id: str) -> list[RangeRecord]:
        """Return the ranges that hold a credit, in the order of plan and number."""
        entry = self.entries.get(hydration_id)
        return [self.ranges[plan_id][seq] for plan_id, seq in sorted(entry.in_flight)] if entry else []

    def next_planned(self, figures: law.Figures) -> RangeRecord | None:
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

    def save(self, entry: Entry, figures: law.Figures) -> None:
        """Write the figures back."""
        entry.figures, entry.updated_at = figures, self.now()

    def worker(self, entry: Entry, worker: str) -> WorkerStatistics:
        """Return a worker's statistics, or zeros."""
        return entry.statistics.get(worker) or WorkerStatistics(hydration_id=entry.figures.id, worker_id=worker)

    def sampled(self, entry: Entry, now: datetime) -> law.Figures:
        """Keep a sample and return the figures after it."""
        committed = total_progress(list(entry.statistics.values())).committed
        entry.samples.append(law.Sample(at=now, rows=committed))
        return replace(entry.figures, sampled_at=now)
