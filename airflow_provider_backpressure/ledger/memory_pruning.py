"""The part of the ledger in memory that forgets what is old. See ``core.ports.pruning``."""

import threading
from datetime import timedelta

from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.ledger.memory_tables import Tables
from airflow_provider_backpressure.ledger.retention import HOUR
from airflow_provider_backpressure.ledger.tables import flow as flows
from airflow_provider_backpressure.ledger.tables import push as pushes


class MemoryPruning:
    """Methods of :class:`..memory.MemoryLedger`, which has the tables."""

    _tables: Tables
    _lock: threading.RLock

    def superseded(self, *, seconds: float) -> list[str]:
        """See ``Pruning.superseded``."""
        with self._lock:
            return [plan_id for plan_id in self._tables.ranges if self._quiet(plan_id, seconds)]

    def prune_plan(self, plan_id: str, *, most: int = 1000) -> int:
        """See ``Pruning.prune_plan``."""
        with self._lock:
            if plan_id not in self._tables.ranges or self._current(plan_id) or self._held(plan_id):
                return 0
            order = self._tables.order[plan_id]
            gone = order[:most]
            del order[:most]
            for seq in gone:
                del self._tables.ranges[plan_id][seq]
            return len(gone)

    def sweep(self, *, seconds: float, acts: bool = False) -> int:
        """See ``Pruning.sweep``."""
        with self._lock:
            now, before = self._tables.now(), self._size()
            for entry in self._tables.entries.values():
                entry.flows[:] = [one for one in entry.flows if one[0] >= now - flows.KEPT]
            self._tables.pushes = {key: one for key, one in self._tables.pushes.items() if one[0] >= now - pushes.KEPT}
            if acts:
                old = now - timedelta(seconds=seconds)
                self._tables.controls[:] = [one for one in self._tables.controls if one.at >= old]
            read = {entry.source_identity for entry in self._tables.entries.values()}
            for source, asked in list(self._tables.asked.items()):
                if source not in read and asked <= now - timedelta(seconds=HOUR):
                    del self._tables.asked[source]
                    self._tables.upstreams.pop(source, None)
            return before - self._size()

    def _size(self) -> int:
        tables = self._tables
        looks = sum(len(entry.flows) for entry in tables.entries.values())
        return looks + len(tables.pushes) + len(tables.controls) + len(tables.asked)

    def _records(self, plan_id: str) -> list[RangeRecord]:
        return list(self._tables.ranges[plan_id].values())

    def _current(self, plan_id: str) -> bool:
        return any(entry.figures.plan_id == plan_id for entry in self._tables.entries.values())

    def _held(self, plan_id: str) -> bool:
        return any(record.state is RangeState.ADMITTED for record in self._records(plan_id))

    def _quiet(self, plan_id: str, seconds: float) -> bool:
        records = self._records(plan_id)
        if not records or self._current(plan_id) or self._held(plan_id):
            return False
        times = [at for record in records for at in (record.admitted_at, record.committed_at) if at is not None]
        if not times:
            return self._tables.entry(records[0].hydration_id).holder is None
        return max(times) <= self._tables.now() - timedelta(seconds=seconds)
