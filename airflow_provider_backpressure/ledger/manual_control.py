"""What a person sets, and the queue, of the ledger on a database; see ``core.gate.cluster_queue``."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core import transitions as refusals
from airflow_provider_backpressure.core.default_limits import TOKEN_SECONDS
from airflow_provider_backpressure.core.gate.cluster_queue import (
    STAND_BY_SECONDS,
    Change,
    Control,
    QueueEntry,
    QueuePlace,
    Shared,
    Steering,
    by_turn,
)
from airflow_provider_backpressure.core.gate.gate_event import Diff
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.core.transitions import range_transitions as attempts
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures
from airflow_provider_backpressure.ledger.database import Database, repeatable
from airflow_provider_backpressure.ledger.tables import control_log as controls
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import queue as turns
from airflow_provider_backpressure.ledger.tables import range as ranges

Publish = Callable[[Any, str, Diff], None]
"""Takes the ledger, a hydration's id, and what has changed there. It neither raises nor waits."""


def nobody(ledger: Steering, hydration_id: str, diff: Diff) -> None:
    """Publish nothing."""


@dataclass(kw_only=True)
class Outbox:
    """What one transaction has to publish."""

    diffs: list[Diff] = field(default_factory=list)

    def add(self, before: Figures, after: Figures, **news: Any) -> Figures:
        """Return the figures to be saved, with the number of this change; see :func:`.hydrating.number_change`."""
        figures, diff = hydrating.number_change(before, after, **news)
        self.diffs.append(diff)
        return figures

    def tell(self, publish: Publish, ledger: Any) -> None:
        """Say it."""
        for diff in self.diffs:
            publish(ledger, diff.hydration_id, replace(diff, moment=time.time()))


class SqlSteering:
    """Methods of :class:`..repository.SqlLedger`, which has the database. Implements ``Steering`` and ``Queue``."""

    _database: Database
    _publish: Publish

    @contextmanager
    def _write(self) -> Iterator[tuple[Connection, Outbox]]:
        """Yield a transaction, and publish its changes after the commit: within it a full queue would make it fail."""
        told = Outbox()
        with self._database.write() as connection:
            yield connection, told
        told.tell(self._publish, self)

    @repeatable
    def pause(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        self._steer(hydration_id, "pause", who, why, paused_by=who, paused_why=why)

    @repeatable
    def resume(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        self._steer(hydration_id, "resume", who, why, paused_by=None, paused_why=None)

    @repeatable
    def steer(self, hydration_id: str, change: Change, *, who: str, why: str | None = None) -> None:
        with self._write() as (connection, told):
            figures = hydrations.lock(connection, hydration_id)
            hydrations.save(connection, told.add(figures, hydrating.override(figures, change)))
            own: dict[str, Any] = {}
            if change.range_rows is not None:
                own["range_rows_set"] = change.range_rows or None
            if change.priority is not None:
                own["priority"] = change.priority
            if own:
                hydrations.change(connection, hydration_id, **own)
            controls.add(
                connection, hydration_id=hydration_id, who=who, action="set", why=why, values=dict(change.values)
            )

    @repeatable
    def share(self, kind: Shared, name: str, most: int, *, who: str, why: str | None = None) -> None:
        with self._database.write() as connection:
            turns.set_limit(connection, kind, name, most, who=who)
            values = {"kind": kind.value, "name": name, "most": most}
            controls.add(connection, hydration_id="", who=who, action="share", why=why, values=values)

    @repeatable
    def change_owner(self, hydration_id: str, owner: str, *, who: str, why: str | None = None) -> None:
        with self._write() as (connection, told):
            figures = hydrations.lock(connection, hydration_id)
            before = hydrations.by_id(connection, hydration_id)
            leased = ranges.count_leased(connection, hydration_id)
            if leased:
                raise refusals.still_owned(before.sink_identity, before.owner, f"{leased} of its ranges are in flight")
            if turns.is_leased(connection, hydration_id):
                raise refusals.still_owned(
                    before.sink_identity, before.owner, "it has or waits for its cluster's token"
                )
            hydrations.save(connection, told.add(figures, figures))
            hydrations.change(connection, hydration_id, owner=owner, holder=None)
            values = {"owner": owner, "before": before.owner}
            controls.add(connection, hydration_id=hydration_id, who=who, action="change-owner", why=why, values=values)

    @repeatable
    def stand_by(self, hydration_id: str, *, lease_seconds: float = STAND_BY_SECONDS) -> None:
        with self._database.write() as connection:
            figures = hydrations.lock(connection, hydration_id)
            waiting = hydrating.stands_by(figures, ranges.now(connection), lease_seconds)
            if waiting != figures:
                hydrations.keep_wait(connection, waiting)

    def get_shared(self, kind: Shared, name: str) -> int | None:
        with self._database.read() as connection:
            return turns.read_limit(connection, kind, name)

    @repeatable
    def resize(self, hydration_id: str, slots: int) -> int:
        with self._write() as (connection, told):
            figures = hydrations.lock(connection, hydration_id)
            after = told.add(figures, hydrating.rescale(figures, slots=slots))
            hydrations.save(connection, after)
            return after.credits

    @repeatable
    def skip(self, plan_id: str, seq: int, *, who: str, why: str) -> bool:
        with self._write() as (connection, told):
            figures = hydrations.lock_by_range(connection, plan_id, seq)
            record = attempts.skip(ranges.one(connection, plan_id, seq)[0], why=why)
            if record is None:
                return False
            ranges.save(connection, record)
            hydrations.save(connection, told.add(figures, figures, seq=seq))
            controls.add(
                connection, hydration_id=figures.id, who=who, action="skip-range", why=why, values={"seq": seq}
            )
            return True

    @repeatable
    def mark_unverified(self, plan_id: str) -> bool:
        with self._database.write() as connection:
            figures = hydrations.lock_by_plan(connection, plan_id)
            if figures is not None and figures.verified:
                hydrations.save(connection, replace(figures, verified=False))
            return figures is not None

    def controls(self, hydration_id: str | None = None, *, limit: int = 100) -> list[Control]:
        with self._database.read() as connection:
            return controls.latest(connection, hydration_id, limit=limit)

    @repeatable
    def enqueue(self, hydration_id: str, *, run: str, lease_seconds: float = TOKEN_SECONDS) -> QueuePlace:
        with self._database.write() as connection:
            figures = hydrations.lock(connection, hydration_id)
            now = ranges.now(connection)
            return turns.take_turn(connection, figures, seconds=lease_seconds, now=now, run=run)

    @repeatable
    def leave(self, hydration_id: str) -> None:
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            if not ranges.in_flight(connection, hydration_id):
                turns.leave(connection, hydration_id)

    def queue(self, cluster: str | None = None) -> list[QueueEntry]:
        with self._database.read() as connection:
            found = turns.entries(connection, cluster)
        return by_turn(found)

    def _steer(self, hydration_id: str, action: str, who: str, why: str | None, **values: Any) -> None:
        with self._write() as (connection, told):
            figures = hydrations.lock(connection, hydration_id)
            number = told.add(figures, figures, **values).number
            hydrations.change(connection, hydration_id, gate_changes=number, **values)
            controls.add(connection, hydration_id=hydration_id, who=who, action=action, why=why, values=values)
