"""The part of the model that only reads. See ``core.ports.ledger.LedgerReader``."""

import threading
from collections.abc import Sequence
from datetime import timedelta

from airflow_provider_backpressure.core.gate.cluster_queue import NOT_QUEUED, Shared
from airflow_provider_backpressure.core.gate.hydration_record import GateState, Hydration, RangeCounts
from airflow_provider_backpressure.core.progress.rates_and_eta import WorkerStatistics
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, total
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.ledger.tables import control_log as decisions
from tests.support.ledger_model.tables import Tables


class ModelReader:
    """Methods of :class:`.ledger.LedgerModel`, which has the tables and their lock."""

    _tables: Tables
    _lock: threading.RLock

    def hydration(self, hydration_id: str) -> Hydration:
        """See ``LedgerReader.hydration``."""
        with self._lock:
            return self._tables.entry(hydration_id).hydration()

    def find(self, *, environment: str, source_identity: str, sink_identity: str) -> Hydration | None:
        """See ``LedgerReader.find``."""
        with self._lock:
            entry = self._tables.find(environment, source_identity, sink_identity)
            return None if entry is None else entry.hydration()

    def gate(self, hydration_id: str) -> GateState:
        """See ``LedgerReader.gate``."""
        with self._lock:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            figures, held = entry.figures, self._tables.held(hydration_id)
            ages = [(now - record.admitted_at).total_seconds() for record in held if record.admitted_at]
            return GateState(
                phase=figures.phase,
                place=self._tables.stands(entry) if figures.queues else NOT_QUEUED,
                credits=figures.credits,
                slots=figures.slots,
                in_flight=len(held),
                waiting=int(self._tables.next_planned(figures) is not None),
                reserved_bytes=self._tables.reserved(figures.cluster),
                largest_bytes=self._tables.largest(figures.cluster),
                connections=self._tables.connections(figures.sink_server),
                connections_max=self._tables.limit(Shared.CONNECTIONS, figures.sink_server),
                connections_before=self._tables.waiting_before(entry),
                oldest_seconds=max(ages, default=None),
                commit_seconds=figures.commit_seconds,
                range_memory_bytes=figures.range_memory_bytes,
                range_rows=entry.range_rows_set,
                paused_by=figures.paused_by,
                paused_why=entry.paused_why,
                memory_closed=decisions.memory_closed(entry.decision),
                number=figures.number,
            )

    def counts(self, plan_id: str) -> RangeCounts:
        """See ``LedgerReader.counts``."""
        with self._lock:
            states = [record.state for record in self._tables.ranges.get(plan_id, {}).values()]
        return RangeCounts(**{state.value: states.count(state) for state in RangeState})

    def ranges(
        self, plan_id: str, *, states: Sequence[RangeState] | None = None, after_seq: int = -1, limit: int | None = None
    ) -> list[RangeRecord]:
        """See ``LedgerReader.ranges``."""
        with self._lock:
            records = [
                self._tables.ranges[plan_id][seq] for seq in self._tables.order.get(plan_id, ()) if seq > after_seq
            ]
        return [record for record in records if states is None or record.state in states][:limit]

    def range(self, plan_id: str, seq: int) -> RangeRecord:
        """See ``LedgerReader.range``."""
        with self._lock:
            return self._tables.range(plan_id, seq)

    def find_abandoned(self, hydration_id: str, *, lane: str | None = None) -> list[RangeRecord]:
        """See ``LedgerReader.find_abandoned``."""
        with self._lock:
            now = self._tables.now()
            return [
                record
                for record in self._tables.held(hydration_id)
                if (record.lease_until and record.lease_until <= now) or (lane is not None and record.lane == lane)
            ]

    def statistics(self, hydration_id: str) -> list[WorkerStatistics]:
        """See ``LedgerReader.statistics``."""
        with self._lock:
            entry = self._tables.entries.get(hydration_id)
            return [entry.statistics[worker] for worker in sorted(entry.statistics)] if entry else []

    def rate(self, hydration_id: str, *, seconds: float = 60.0) -> float | None:
        """See ``LedgerReader.rate``."""
        with self._lock:
            entry = self._tables.entries.get(hydration_id)
            if entry is None or not entry.samples:
                return None
            samples = entry.samples
            latest = samples[-1]
            older = [sample for sample in samples if sample.at <= latest.at - timedelta(seconds=seconds)]
            base = older[-1] if older else samples[0]
            return tallies.rate_between(base, latest, now=self._tables.now(), seconds=seconds)

    def flow(self, hydration_id: str, *, seconds: float = 60.0) -> dict[Stage, StageTime]:
        """See ``LedgerReader.flow``."""
        with self._lock:
            since = self._tables.now() - timedelta(seconds=seconds)
            flows = self._tables.entry(hydration_id).flows
            return total(*(times for at, times in flows if at >= since))
