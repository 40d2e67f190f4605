"""Statements on ``backpressure_queue`` and ``backpressure_limit``: turns of a cluster, and what hydrations share.

A transaction that grants a shared resource locks its own hydration first and then the resource's row, one kind
after the other in the order of :class:`Shared`: no two can wait for each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_provider_backpressure.core.gate.cluster_queue import (
    NOT_QUEUED,
    REMEMBERED_SECONDS,
    QueueEntry,
    QueuePlace,
    Shared,
    may_start,
    place,
)
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.transitions.hydration_transitions import RENEWED_BELOW, Figures
from airflow_provider_backpressure.ledger.models import hydration, limit, queue, range_
from airflow_provider_backpressure.ledger.sql_types import utc_now
from airflow_provider_backpressure.ledger.tables.range import BY_STATE, HAS_OPEN, held_by

_THIS_LIMIT = sa.and_(limit.c.kind == sa.bindparam("key_kind"), limit.c.name == sa.bindparam("key_name"))
_LOCK_LIMIT = sa.select(limit.c.most, limit.c.set_by).where(_THIS_LIMIT).with_for_update()
_READ_LIMIT = sa.select(limit.c.most).where(_THIS_LIMIT)
_MINE = queue.c.hydration_id == sa.bindparam("id")
_READ_MINE = sa.select(queue).where(_MINE)
_NEWEST = sa.select(sa.func.max(queue.c.ready_at))
_START = sa.update(queue).where(_MINE).values(started_at=utc_now())

_ENTRIES = (
    sa.select(
        queue.c.hydration_id,
        queue.c.run,
        queue.c.ready_at,
        queue.c.started_at,
        hydration.c.cluster,
        hydration.c.priority,
        hydration.c.plan_id,
    )
    .join(hydration, hydration.c.id == queue.c.hydration_id)
    .where(
        queue.c.lease_until > utc_now(),
        hydration.c.phase != Phase.STEADY_STATE.value,
        # A token is in use while there is something to do with it. What only waits for its verification does not block
        # others.
        sa.or_(queue.c.started_at.is_(None), hydration.c.plan_id.is_(None), HAS_OPEN),
    )
)
_ENTRIES_OF = _ENTRIES.where(hydration.c.cluster == sa.bindparam("cluster"))
_HELD_ANYWHERE = (
    sa.select(sa.func.count().label("number"), sa.func.coalesce(sa.func.sum(range_.c.memory_bytes), 0).label("memory"))
    .select_from(hydration)
    .join(range_, held_by(hydration.c.id))
    .with_hint(range_, BY_STATE, "mysql")
)


def entries(connection: Connection, cluster: str | None) -> list[QueueEntry]:
    """Return what waits or has a token, of a cluster or of all."""
    rows = connection.execute(_ENTRIES) if cluster is None else connection.execute(_ENTRIES_OF, {"cluster": cluster})
    return [
        QueueEntry(
            hydration_id=row.hydration_id,
            cluster=row.cluster,
            priority=row.priority,
            ready_at=row.ready_at,
            running=row.started_at is not None,
            run=row.run,
        )
        for row in rows
    ]


HAS_TOKEN = (
    sa.select(queue.c.hydration_id)
    .where(queue.c.hydration_id == hydration.c.id, queue.c.started_at.is_not(None), queue.c.lease_until > utc_now())
    .correlate(hydration)
    .scalar_subquery()
    .is_not(None)
)
"""Whether a hydration's ranges may go: it has a token."""


def stands(connection: Connection, hydration_id: str, cluster: str) -> QueuePlace:
    """Return the place as it is now of a hydration without a token; change nothing."""
    most = read_limit(connection, Shared.HYDRATIONS, cluster)
    return place(entries(connection, cluster), hydration_id, concurrency=most, cluster=cluster)


def take_turn(
    connection: Connection, figures: Figures, *, seconds: float, now: datetime, run: str | None = None
) -> QueuePlace:
    """Take or keep a place, and the token where it is this hydration's turn. The hydration is locked.

    ``now``: the database's time, under the lock.
    """
    if not figures.queues:
        return NOT_QUEUED
    mine = _Mine.read(connection, figures.id, now=now)
    mine.renew(connection, figures.id, seconds=seconds, run=run)
    if mine.has_token:
        return NOT_QUEUED
    most = lock_limit(connection, Shared.HYDRATIONS, figures.cluster)
    found = place(entries(connection, figures.cluster), figures.id, concurrency=most, cluster=figures.cluster)
    if not may_start(found):
        return found
    connection.execute(_START, {"id": figures.id})
    return NOT_QUEUED


def leave(connection: Connection, hydration_id: str) -> None:
    """Release the token, and end the place with it: one that only might come again must not block others."""
    ended = sa.update(queue).where(_MINE, queue.c.started_at.is_not(None))
    connection.execute(ended.values(started_at=None, lease_until=utc_now()), {"id": hydration_id})


def is_leased(connection: Connection, hydration_id: str) -> bool:
    """Whether it has a token or a place in the queue, with a sign of life."""
    return (
        connection.execute(
            sa.select(queue.c.hydration_id).where(_MINE, queue.c.lease_until > utc_now()), {"id": hydration_id}
        ).first()
        is not None
    )


def forget(connection: Connection, hydration_id: str) -> None:
    """Remove a place: there is nothing to wait for any more."""
    connection.execute(sa.delete(queue).where(_MINE), {"id": hydration_id})


def lock_limit(connection: Connection, kind: Shared, name: str) -> int | None:
    """Lock what is shared until the transaction ends, and return its limit."""
    key = _key(kind, name)
    row = connection.execute(_LOCK_LIMIT, key).one_or_none()
    if row is None:
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(limit), {"kind": kind.value, "name": name})
        except IntegrityError:
            pass  # another process made it at this very moment
        row = connection.execute(_LOCK_LIMIT, key).one()
    most: int | None = row.most
    return most


def read_limit(connection: Connection, kind: Shared, name: str) -> int | None:
    """Return a limit without a lock."""
    return connection.execute(_READ_LIMIT, _key(kind, name)).scalar_one_or_none()


def set_limit(connection: Connection, kind: Shared, name: str, most: int | None, *, who: str | None) -> None:
    """Change a limit. ``who``: ``None`` where it is only declared, which changes nothing that a person has said."""
    lock_limit(connection, kind, name)
    change = sa.update(limit).where(_THIS_LIMIT)
    if who is None:
        change = change.where(limit.c.set_by.is_(None))
    connection.execute(change.values(most=most, set_by=who), _key(kind, name))


def held_on_cluster(connection: Connection, cluster: str) -> int:
    """Return the executor memory that every range in flight on a cluster has reserved."""
    row = connection.execute(_HELD_ANYWHERE.where(hydration.c.cluster == cluster)).one()
    return int(row.memory)


def count_before(me: sa.FromClause = hydration) -> sa.ScalarSelect[int]:
    """Count who gets the next connection to the server of ``me`` rather than ``me``: ``waits.goes_before`` in SQL."""
    other = hydration.alias("waiting")
    longer = sa.or_(
        me.c.waits_until.is_(None),
        me.c.waits_until <= utc_now(),
        other.c.waits_since < me.c.waits_since,
        sa.and_(other.c.waits_since == me.c.waits_since, other.c.id < me.c.id),
    )
    return (
        sa.select(sa.func.count())
        .select_from(other)
        .where(
            other.c.sink_server == me.c.sink_server,
            other.c.id != me.c.id,
            other.c.waits_until > utc_now(),
            other.c.paused_by.is_(None),
            sa.or_(
                other.c.priority > me.c.priority,
                sa.and_(other.c.priority == me.c.priority, longer),
            ),
        )
        .correlate(me)
        .scalar_subquery()
    )


_BEFORE = sa.select(count_before()).select_from(hydration).where(hydration.c.id == sa.bindparam("id"))


def before(connection: Connection, hydration_id: str) -> int:
    """Count those who get the next connection to the sink's server rather than this one."""
    return connection.execute(_BEFORE, {"id": hydration_id}).scalar_one()


def before_each(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the same for several."""
    found = connection.execute(sa.select(hydration.c.id, count_before().label("number")).where(hydration.c.id.in_(ids)))
    return {row.id: row.number for row in found}


def held_into(connection: Connection, sink_server: str) -> int:
    """Count the ranges in flight into a server of sinks."""
    row = connection.execute(_HELD_ANYWHERE.where(hydration.c.sink_server == sink_server)).one()
    return int(row.number)


def _key(kind: Shared, name: str) -> dict[str, str]:
    return {"key_kind": kind.value, "key_name": name}


def _behind_all(connection: Connection, now: datetime) -> datetime:
    """Return now, or the first moment behind all places: SQLite's clock has milliseconds, and two may ask in one."""
    newest: datetime | None = connection.execute(_NEWEST).scalar_one()
    return now if newest is None else max(now, newest + timedelta(microseconds=1))


@dataclass(frozen=True, kw_only=True)
class _Mine:
    """A hydration's own place, if it has not lost it."""

    there: bool
    """Whether it has a row at all."""
    left: float
    """Seconds of its lease; 0 where there is none."""
    started: bool
    ready_at: datetime
    """Since when; now where it has lost its place for good."""
    now: datetime

    @classmethod
    def read(cls, connection: Connection, hydration_id: str, *, now: datetime) -> "_Mine":
        """Read it."""
        row = connection.execute(_READ_MINE, {"id": hydration_id}).one_or_none()
        left = (row.lease_until - now).total_seconds() if row else 0.0
        return cls(
            there=row is not None,
            left=max(0.0, left),
            started=row is not None and row.started_at is not None,
            ready_at=row.ready_at if row is not None and left > -REMEMBERED_SECONDS else _behind_all(connection, now),
            now=now,
        )

    @property
    def has_token(self) -> bool:
        """Whether its ranges may go."""
        return self.started and self.left > 0

    def renew(self, connection: Connection, hydration_id: str, *, seconds: float, run: str | None) -> None:
        """Renew it for so long; one that is forgotten, or was never taken, begins after the others."""
        until = self.now + timedelta(seconds=seconds)
        if not self.left:
            if self.there:
                forget(connection, hydration_id)
            values = {"hydration_id": hydration_id, "run": run, "ready_at": self.ready_at, "lease_until": until}
            connection.execute(sa.insert(queue), values)
        elif self.left < seconds * RENEWED_BELOW:
            change = sa.update(queue).where(_MINE).values(lease_until=until, **({"run": run} if run else {}))
            connection.execute(change, {"id": hydration_id})
