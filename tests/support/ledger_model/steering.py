"""What a person sets, and the queue, of the model; see ``core.gate.cluster_queue``."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_provider_backpressure.core.default_limits import TOKEN_SECONDS
from airflow_provider_backpressure.core.gate.cluster_queue import (
    STAND_BY_SECONDS,
    Change,
    Control,
    QueueEntry,
    QueuePlace,
    Shared,
    by_turn,
)
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.core.transitions import range_transitions as attempts
from airflow_provider_backpressure.ledger.manual_control import Outbox, Publish
from tests.support.ledger_model.tables import Tables


class ModelSteering:
    """Methods of :class:`.ledger.LedgerModel`, which has the tables and their lock."""

    _tables: Tables
    _lock: threading.RLock
    _publish: Publish

    @contextmanager
    def _writing(self) -> Iterator[Outbox]:
        """Hold the lock, and tell others what has changed when it is given back."""
        told = Outbox()
        with self._lock:
            yield told
        told.tell(self._publish, self)

    def pause(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """See ``Steering.pause``."""
        self._steer(hydration_id, "pause", who, why, paused_by=who, paused_why=why)

    def resume(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """See ``Steering.resume``."""
        self._steer(hydration_id, "resume", who, why, paused_by=None, paused_why=None)

    def steer(self, hydration_id: str, change: Change, *, who: str, why: str | None = None) -> None:
        """See ``Steering.steer``."""
        with self._writing() as told:
            entry = self._tables.entry(hydration_id)
            self._tables.save(entry, told.add(entry.figures, hydrating.override(entry.figures, change)))
            if change.range_rows is not None:
                entry.range_rows_set = change.range_rows or None
            if change.priority is not None:
                entry.priority = change.priority
            self._act(hydration_id, who, "set", why, dict(change.values))

    def share(self, kind: Shared, name: str, most: int, *, who: str, why: str | None = None) -> None:
        """See ``Steering.share``."""
        with self._lock:
            self._tables.set_limit(kind, name, most, who=who)
            self._act("", who, "share", why, {"kind": kind.value, "name": name, "most": most})

    def get_shared(self, kind: Shared, name: str) -> int | None:
        """See ``Steering.get_shared``."""
        with self._lock:
            return self._tables.limit(kind, name)

    def mark_unverified(self, plan_id: str) -> bool:
        """See ``Steering.mark_unverified``."""
        with self._lock:
            found = [each for each in self._tables.entries.values() if each.figures.plan_id == plan_id]
            for entry in found:
                self._tables.save(entry, replace(entry.figures, verified=False))
            return bool(found)

    def resize(self, hydration_id: str, slots: int) -> int:
        """See ``Steering.resize``."""
        with self._writing() as told:
            entry = self._tables.entry(hydration_id)
            self._tables.save(entry, told.add(entry.figures, hydrating.rescale(entry.figures, slots=slots)))
            return entry.figures.credits

    def skip(self, plan_id: str, seq: int, *, who: str, why: str) -> bool:
        """See ``Steering.skip``."""
        with self._writing() as told:
            record = attempts.skip(self._tables.range(plan_id, seq), why=why)
            if record is None:
                return False
            entry = self._tables.entry(record.hydration_id)
            self._tables.put(entry, record)
            self._tables.save(entry, told.add(entry.figures, entry.figures, seq=seq))
            self._act(record.hydration_id, who, "skip-range", why, {"seq": seq})
            return True

    def enqueue(self, hydration_id: str, *, run: str, lease_seconds: float = TOKEN_SECONDS) -> QueuePlace:
        """See ``Queue.enqueue``."""
        with self._lock:
            return self._tables.take_turn(self._tables.entry(hydration_id), seconds=lease_seconds, run=run)

    def stand_by(self, hydration_id: str, *, lease_seconds: float = STAND_BY_SECONDS) -> None:
        """See ``Queue.stand_by``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            entry.figures = hydrating.stands_by(entry.figures, self._tables.now(), lease_seconds)

    def leave(self, hydration_id: str) -> None:
        """See ``Queue.leave``."""
        with self._lock:
            if not self._tables.held(hydration_id):
                self._tables.leave(hydration_id)

    def queue(self, cluster: str | None = None) -> list[QueueEntry]:
        """See ``Queue.queue``."""
        with self._lock:
            found = self._tables.queue(cluster)
        return by_turn(found)

    def _act(self, hydration_id: str, who: str, action: str, why: str | None, values: dict[str, Any]) -> None:
        act = Control(hydration_id=hydration_id, at=self._tables.now(), who=who, action=action, why=why, values=values)
        self._tables.controls.append(act)

    def _steer(
        self,
        hydration_id: str,
        action: str,
        who: str,
        why: str | None,
        *,
        paused_by: str | None,
        paused_why: str | None,
    ) -> None:
        with self._writing() as told:
            entry = self._tables.entry(hydration_id)
            entry.paused_why = paused_why
            paused = replace(entry.figures, paused_by=paused_by)
            self._tables.save(entry, told.add(entry.figures, paused, paused_by=paused_by, paused_why=paused_why))
            self._act(hydration_id, who, action, why, {"paused_by": paused_by, "paused_why": paused_why})
