"""Statements that charts are drawn from: a hydration's course, and the map of its ranges. Answers are bounded."""

import math
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_backpressure.core.progress.rates_and_eta import Sample
from airflow_provider_backpressure.core.progress.summary import Tile
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.ledger.models import hydration, range_, sample
from airflow_provider_backpressure.ledger.sql_types import UtcDateTime, seconds_between
from airflow_provider_backpressure.ledger.tables import sample as samples
from airflow_provider_backpressure.ledger.tables.range import by_state, now


def history(connection: Connection, hydration_id: str, *, seconds: float, most: int) -> list[Sample]:
    """Return the current plan's samples of the last seconds, put together where they are more than ``most``."""
    plan = sa.select(hydration.c.plan_id).where(hydration.c.id == hydration_id).scalar_subquery()
    since = now(connection) - timedelta(seconds=seconds)
    recent = (sample.c.hydration_id == hydration_id, sample.c.plan_id == plan, sample.c.at >= since)
    number = connection.execute(sa.select(sa.func.count()).select_from(sample).where(*recent)).scalar_one()
    width = max(1, math.ceil(number / most))
    turn = (sa.func.row_number().over(order_by=sample.c.at) - 1) // sa.literal_column(str(width), sa.Integer())
    every = sa.select(sample, turn.label("bucket")).where(*recent).subquery()
    query: Any = (
        sa.select(
            sa.func.max(every.c.at, type_=UtcDateTime()).label("at"),
            *(
                sa.func.max(every.c[column.name], type_=column.type).label(name)
                for name, column in samples.FIELDS.items()
                if name != "at"
            ),
        )
        .group_by(every.c.bucket)
        .order_by(every.c.bucket)
    )
    return [Sample(**row._mapping) for row in connection.execute(query)]


def tiles(connection: Connection, plan_id: str, *, most: int) -> list[Tile]:
    """Return the map of a plan's ranges, some that follow each other in one tile where they are more than ``most``."""
    ends = sa.select(sa.func.min(range_.c.seq).label("first"), sa.func.max(range_.c.seq).label("last"))
    first, last = connection.execute(ends.where(range_.c.plan_id == plan_id)).one()
    if first is None:
        return []
    width = math.ceil((last - first + 1) / most)
    bucket = (range_.c.seq - sa.literal_column(str(first))) // sa.literal_column(str(width), sa.Integer())
    took = sa.case(
        (range_.c.state == RangeState.COMMITTED.value, seconds_between(range_.c.admitted_at, range_.c.committed_at))
    )
    every = (
        sa.select(range_.c.seq, range_.c.state, range_.c.attempt, took.label("took"), bucket.label("bucket"))
        .where(range_.c.plan_id == plan_id)
        .subquery()
    )
    rows = connection.execute(
        sa.select(
            every.c.bucket,
            sa.func.min(every.c.seq).label("first"),
            sa.func.max(every.c.seq).label("last"),
            *by_state(every),
            sa.func.max(every.c.attempt).label("attempts"),
            sa.func.max(every.c.took).label("took"),
        )
        .group_by(every.c.bucket)
        .order_by(every.c.bucket)
    )
    return [_tile(row) for row in rows]


def _tile(row: Row[Any]) -> Tile:
    every = {state: int(getattr(row, state.value)) for state in RangeState}
    return Tile(
        first=row.first,
        last=row.last,
        ranges=sum(every.values()),
        states={state: number for state, number in every.items() if number},
        attempts=row.attempts,
        seconds=None if row.took is None else float(row.took),
    )
