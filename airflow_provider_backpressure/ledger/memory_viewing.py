"""The part of the ledger in memory that pages read. See ``core.progress.views``."""

import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

from airflow_provider_backpressure.core.gate.hydration import GateState, Hydration
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.core.progress.samples import RECENT_SECONDS, Sample, recent_rates
from airflow_provider_backpressure.core.progress.statistics import total_progress
from airflow_provider_backpressure.core.progress.summary import Glance, glance
from airflow_provider_backpressure.core.progress.views import FlowAt, Tile, stretches
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from airflow_provider_backpressure.ledger.memory_tables import Entry, Tables


class MemoryViews(ABC):
    """Methods of :class:`..memory.MemoryLedger`, which has the tables and their lock."""

    _tables: Tables
    _lock: threading.RLock

    @abstractmethod
    def gate(self, hydration_id: str) -> GateState:
        """See ``LedgerReader.gate``."""

    @abstractmethod
    def rate(self, hydration_id: str, *, seconds: float = 60.0) -> float | None:
        """See ``LedgerReader.rate``."""

    @abstractmethod
    def samples(self, hydration_id: str, *, seconds: float) -> list[Sample]:
        """See ``ObservedReader.samples``."""

    @abstractmethod
    def flow(self, hydration_id: str, *, seconds: float = 60.0) -> dict[Stage, StageTime]:
        """See ``LedgerReader.flow``."""

    @abstractmethod
    def course(self, hydration_id: str) -> Course | None:
        """See ``ObservedReader.course``."""

    def owners(self) -> set[str]:
        """See ``Views.owners``."""
        with self._lock:
            return {entry.owner for entry in self._tables.entries.values()}

    def owned(self, ids: Collection[str]) -> dict[str, str]:
        """See ``Views.owned``."""
        with self._lock:
            return {key: entry.owner for key, entry in self._tables.entries.items() if key in ids}

    def clusters(self) -> dict[str, set[str]]:
        """See ``Views.clusters``."""
        found: dict[str, set[str]] = {}
        with self._lock:
            for entry in self._tables.entries.values():
                found.setdefault(entry.figures.cluster, set()).add(entry.owner)
        return found

    def glances(
        self, *, owners: Collection[str] | None = None, ids: Collection[str] | None = None, limit: int, offset: int = 0
    ) -> list[Glance]:
        """See ``Views.glances``."""
        with self._lock:
            every = [entry.hydration() for entry in self._tables.entries.values()]
            meant = [one for one in every if (owners is None or one.owner in owners) and (ids is None or one.id in ids)]
            ordered = sorted(meant, key=lambda one: (_settled(one), -one.created_at.timestamp(), one.id))
            return [self._glance(one) for one in ordered[offset : offset + limit]]

    def how_many(self, *, owners: Collection[str]) -> int:
        """See ``Views.how_many``."""
        with self._lock:
            return sum(entry.owner in owners for entry in self._tables.entries.values())

    def history(self, hydration_id: str, *, seconds: float, most: int = 600) -> list[Sample]:
        """See ``Views.history``."""
        with self._lock:
            since = self._tables.now() - timedelta(seconds=seconds)
            recent = [sample for sample in self._tables.entry(hydration_id).samples if sample.at >= since]
        width = max(1, math.ceil(len(recent) / most))
        parts = (recent[start : start + width] for start in range(0, len(recent), width))
        return [_together(part) for part in parts]

    def flows(self, hydration_id: str, *, seconds: float, most: int = 120) -> list[FlowAt]:
        """See ``Views.flows``."""
        with self._lock:
            since = self._tables.now() - timedelta(seconds=seconds)
            looks = [(at, times) for at, times in self._tables.entry(hydration_id).flows if at >= since]
        return stretches(looks, seconds=seconds, most=most)

    def tiles(self, plan_id: str, *, most: int = 2_000) -> list[Tile]:
        """See ``Views.tiles``."""
        with self._lock:
            records = sorted(self._tables.ranges.get(plan_id, {}).values(), key=lambda record: record.seq)
        if not records:
            return []
        first, last = records[0].seq, records[-1].seq
        width = math.ceil((last - first + 1) / most)
        by_tile: dict[int, list[RangeRecord]] = {}
        for record in records:
            by_tile.setdefault((record.seq - first) // width, []).append(record)
        return [_tile(part) for part in by_tile.values()]

    def _glance(self, one: Hydration) -> Glance:
        entry: Entry = self._tables.entry(one.id)
        last = entry.samples[-1] if entry.samples else None
        found = glance(
            one,
            self.gate(one.id),
            total_progress(list(entry.statistics.values())),
            speed=self.rate(one.id),
            recent=recent_rates(self.samples(one.id, seconds=RECENT_SECONDS)),
            failed=sum(plan_id == entry.figures.plan_id for plan_id, _ in entry.failed),
            flow=self.flow(one.id),
            course=self.course(one.id),
        )
        return replace(found, memory_used=last.memory_used, memory_limit=last.memory_limit) if last else found


def _together(part: Sequence[Sample]) -> Sample:
    known: dict[str, list[Any]] = {field.name: [getattr(one, field.name) for one in part] for field in fields(Sample)}
    highest: dict[str, Any] = {
        name: max((one for one in each if one is not None), default=None) for name, each in known.items()
    }
    return Sample(**highest)


def _settled(one: Hydration) -> bool:
    return one.phase is Phase.STEADY_STATE


def _tile(records: Sequence[RangeRecord]) -> Tile:
    took = [
        (record.committed_at - record.admitted_at).total_seconds()
        for record in records
        if record.state is RangeState.COMMITTED and record.committed_at and record.admitted_at
    ]
    return Tile(
        first=records[0].seq,
        last=records[-1].seq,
        ranges=len(records),
        states=dict(Counter(record.state for record in records)),
        attempts=max(record.attempt for record in records),
        seconds=max(took, default=None),
    )
