"""Statements on ``backpressure_upstream``: the last known position of each source."""

import hashlib
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_provider_backpressure.core.progress.source_position import Seen, Upstream
from airflow_provider_backpressure.ledger.models import hydration, upstream
from airflow_provider_backpressure.ledger.sqltypes import utc_now
from airflow_provider_backpressure.ledger.tables.range import now


def _digest(source_identity: str) -> str:
    return hashlib.sha256(source_identity.encode()).hexdigest()


def claim(connection: Connection, source_identity: str, *, seconds: float) -> bool:
    """Claim the source's next poll; ``False`` where another process has claimed it in the last seconds."""
    source, at = _digest(source_identity), now(connection)
    stale = upstream.c.asked_at <= at - timedelta(seconds=seconds)
    mine = sa.update(upstream).where(upstream.c.source == source, stale).values(asked_at=utc_now())
    if connection.execute(mine).rowcount:
        return True
    if connection.execute(sa.select(upstream.c.source).where(upstream.c.source == source)).one_or_none():
        return False
    try:
        with connection.begin_nested():
            values = {"source": source, "source_identity": source_identity}
            connection.execute(sa.insert(upstream).values(asked_at=utc_now(), **values))
    except IntegrityError:
        return False
    return True


def keep(connection: Connection, source_identity: str, seen: Upstream) -> None:
    """Keep how far a source is now; it was claimed before."""
    own = sa.update(upstream).where(upstream.c.source == _digest(source_identity))
    connection.execute(own.values(frontier=seen.to_json(), seen_at=utc_now()))


def forget(connection: Connection, source_identity: str) -> None:
    """Remove what is known of a source, unless a hydration reads it."""
    read = sa.select(hydration.c.id).where(hydration.c.source_identity == source_identity)
    if connection.execute(read.limit(1)).one_or_none() is None:
        connection.execute(sa.delete(upstream).where(upstream.c.source == _digest(source_identity)))


def strays(connection: Connection, *, seconds: float) -> int:
    """Remove sources that no hydration reads and no process has polled lately; return how many there were."""
    read = sa.exists().where(hydration.c.source_identity == upstream.c.source_identity)
    old = upstream.c.asked_at <= now(connection) - timedelta(seconds=seconds)
    return connection.execute(sa.delete(upstream).where(~read, old)).rowcount


def read_position(connection: Connection, source_identity: str) -> Seen | None:
    """Return how far a source was seen to be; ``None`` before the first time."""
    found = sa.select(upstream.c.frontier, upstream.c.seen_at).where(upstream.c.source == _digest(source_identity))
    row = connection.execute(found).one_or_none()
    if row is None or row.frontier is None:
        return None
    return Seen(upstream=Upstream.from_json(row.frontier), at=row.seen_at)
