"""The part of the ledger in memory that those use who look at sources. See ``core.ports.observed``."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.alerts import Notice, noted
from airflow_provider_backpressure.core.progress.lag import Course, Sight, advanced
from airflow_provider_backpressure.core.progress.samples import Sample
from airflow_provider_backpressure.core.progress.source_position import Seen, Upstream
from airflow_provider_backpressure.core.progress.statistics import PLAN_WORKER
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.ledger.memory_tables import Entry, Tables


class MemoryObserving:
    """Methods of :class:`..memory.MemoryLedger`, which has the tables and their lock."""

    _tables: Tables
    _lock: threading.RLock

    def upstream(self, source_identity: str) -> Seen | None:
        """See ``ObservedReader.upstream``."""
        with self._lock:
            return self._tables.upstreams.get(source_identity)

    def course(self, hydration_id: str) -> Course | None:
        """See ``ObservedReader.course``."""
        with self._lock:
            entry = self._tables.entries.get(hydration_id)
            return entry.course if entry else None

    def samples(self, hydration_id: str, *, seconds: float) -> list[Sample]:
        """See ``ObservedReader.samples``."""
        with self._lock:
            entry, since = self._tables.entries.get(hydration_id), self._tables.now() - timedelta(seconds=seconds)
            return [sample for sample in entry.samples if sample.at >= since] if entry else []

    def claim_look(self, source_identity: str, *, seconds: float) -> bool:
        """See ``Observed.claim_look``."""
        with self._lock:
            now, asked = self._tables.now(), self._tables.asked.get(source_identity)
            if asked is not None and asked > now - timedelta(seconds=seconds):
                return False
            self._tables.asked[source_identity] = now
            return True

    def keep_upstream(self, source_identity: str, upstream: Upstream) -> None:
        """See ``Observed.keep_upstream``."""
        with self._lock:
            # Through JSON, as tables keep it.
            seen = Seen(upstream=Upstream.from_json(upstream.to_json()), at=self._tables.now())
            self._tables.upstreams[source_identity] = seen

    def record_sight(self, hydration_id: str, sight: Sight, *, least_seconds: float) -> Course:
        """See ``Observed.record_sight``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            course = advanced(entry.course, sight, least_seconds=least_seconds)
            if course is entry.course:
                return course
            entry.course = Course.from_json(course.to_json())
            row = tallies.observed(self._tables.worker(entry, PLAN_WORKER), course)
            entry.statistics[PLAN_WORKER] = replace(row, updated_at=self._tables.now())
            self._sample(entry)
            return course

    def record_memory(self, hydration_id: str, reading: MemoryReading) -> None:
        """See ``Observed.record_memory``."""
        with self._lock:
            self._sample(self._tables.entry(hydration_id), reading)

    def note(self, hydration_id: str, present: Mapping[str, float], *, looked: Collection[str]) -> Notice:
        """See ``Observed.note``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            entry.occurring, notice = noted(entry.occurring, present, frozenset(looked), self._tables.now())
            return notice

    def prune_samples(self, hydration_id: str, *, seconds: float, rows: int, most: int = 1000) -> int:
        """See ``Observed.prune_samples``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            cut = self._tables.now() - timedelta(seconds=seconds)
            old = sum(sample.at <= cut for sample in entry.samples)
            gone = min(most, max(old, len(entry.samples) - rows))
            del entry.samples[:gone]
            return gone

    def _sample(self, entry: Entry, memory: MemoryReading | None = None) -> None:
        now, last = self._tables.now(), entry.figures.sampled_at
        if entry.figures.plan_id is not None and (last is None or now > last):
            entry.figures = self._tables.sampled(entry, now, memory=memory)
