"""Statements on ``backpressure_sample``: the course of a hydration over time, for rates and charts."""

import math
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.statistics import Progress
from airflow_provider_backpressure.ledger.law import Sample, rate_between
from airflow_provider_backpressure.ledger.models import hydration, sample
from airflow_provider_backpressure.ledger.sqltypes import utc_now


def add(
    connection: Connection,
    *,
    hydration_id: str,
    plan_id: str,
    at: datetime,
    progress: Progress,
    in_flight: int,
    credits: int,
    pressure: float | None,
) -> None:
    """Keep one sample."""
    connection.execute(
        sa.insert(sample),
        {
            "hydration_id": hydration_id,
            "plan_id": plan_id,
            "at": at,
            "committed_rows": progress.committed,
            "read_rows": progress.read,
            "in_flight": in_flight,
            "credits": credits,
            "pressure": pressure if pressure is not None and math.isfinite(pressure) else None,
        },
    )


def rate(connection: Connection, hydration_id: str, *, seconds: float) -> float | None:
    """Return rows per second of the current plan over its latest samples; ``None`` with fewer than two.

    From the latest sample back to the newest one that is ``seconds`` older, or else to the plan's first.
    """
    newest = _one(connection, hydration_id, order=sample.c.at.desc())
    if newest is None:
        return None
    latest, now = newest
    cut = latest.at - timedelta(seconds=seconds)
    base = _one(connection, hydration_id, sample.c.at <= cut, order=sample.c.at.desc()) or _one(
        connection, hydration_id, order=sample.c.at
    )
    return rate_between(base[0], latest, now=now, seconds=seconds) if base else None


def _one(
    connection: Connection, hydration_id: str, *conditions: sa.ColumnElement[bool], order: Any
) -> tuple[Sample, datetime] | None:
    row = connection.execute(
        sa.select(sample.c.at, sample.c.committed_rows, utc_now().label("now"))
        .join(
            hydration,
            sa.and_(hydration.c.id == sample.c.hydration_id, hydration.c.plan_id == sample.c.plan_id),
        )
        .where(hydration.c.id == hydration_id, sample.c.hydration_id == hydration_id, *conditions)
        .order_by(order)
        .limit(1)
    ).one_or_none()
    return None if row is None else (Sample(at=row.at, rows=row.committed_rows), row.now)
