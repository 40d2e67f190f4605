"""The gate's state, in one statement."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_backpressure.core.hydration import GateState
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.ranges import RangeState
from airflow_provider_backpressure.ledger.decisions import memory_closed
from airflow_provider_backpressure.ledger.law import unknown
from airflow_provider_backpressure.ledger.models import hydration, range_
from airflow_provider_backpressure.ledger.ranges import held_by, is_in
from airflow_provider_backpressure.ledger.sqltypes import UtcDateTime, utc_now

_HELD = (
    sa.select(
        sa.func.count().label("in_flight"),
        sa.func.coalesce(sa.func.sum(range_.c.memory_bytes), 0).label("reserved_bytes"),
        sa.func.min(range_.c.admitted_at, type_=UtcDateTime()).label("oldest"),
    )
    .where(held_by(sa.bindparam("id")))
    .subquery("held")
)
# Ordered, so that no planner looks for the first planned range among a million committed ones.
_WAITING = (
    sa.select(range_.c.seq)
    .where(
        range_.c.plan_id == hydration.c.plan_id,
        range_.c.seq >= hydration.c.next_seq,
        is_in(RangeState.PLANNED),
    )
    .order_by(range_.c.seq)
    .limit(1)
    .scalar_subquery()
)
_GATE = (
    sa.select(
        hydration.c.phase,
        hydration.c.credits,
        hydration.c.commit_seconds,
        hydration.c.range_memory_bytes,
        hydration.c.paused_by,
        hydration.c.paused_why,
        hydration.c.decision,
        _HELD,
        _WAITING.label("waiting"),
        utc_now().label("now"),
    )
    .select_from(hydration.join(_HELD, sa.true()))
    .where(hydration.c.id == sa.bindparam("id"))
)


def state(connection: Connection, hydration_id: str) -> GateState:
    """Return the gate's state at one moment; ``LedgerRefused`` for an unknown id."""
    row = connection.execute(_GATE, {"id": hydration_id}).one_or_none()
    if row is None:
        raise unknown(hydration_id)
    return _state(row)


def _state(row: Row[Any]) -> GateState:
    return GateState(
        phase=Phase(row.phase),
        credits=row.credits,
        in_flight=row.in_flight,
        waiting=int(row.waiting is not None),
        reserved_bytes=int(row.reserved_bytes),
        oldest_seconds=None if row.oldest is None else max(0.0, (row.now - row.oldest).total_seconds()),
        commit_seconds=row.commit_seconds,
        range_memory_bytes=row.range_memory_bytes,
        paused_by=row.paused_by,
        paused_why=row.paused_why,
        memory_closed=memory_closed(row.decision),
    )
