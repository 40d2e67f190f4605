"""Statements on ``backpressure_push``: what the channels of processes have done lately."""

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.ledger.models import push
from airflow_provider_backpressure.ledger.tables.range import now

KEPT = timedelta(hours=1)


def keep(connection: Connection, process: str, counts: str) -> None:
    """Replace a process's counts, and remove all that are older than an hour."""
    at = now(connection)
    connection.execute(sa.delete(push).where(sa.or_(push.c.process == process, push.c.at < at - KEPT)))
    connection.execute(sa.insert(push), {"process": process, "at": at, "counts": counts})


def latest(connection: Connection) -> list[str]:
    """Return the counts of every process that said something within the last hour."""
    rows = connection.execute(sa.select(push.c.counts).where(push.c.at >= now(connection) - KEPT))
    return list(rows.scalars())
