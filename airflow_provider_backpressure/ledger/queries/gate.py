"""The gate's state: one statement, and one more for the place in the queue while it counts."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_backpressure.core.gate.hydration import GateState
from airflow_provider_backpressure.core.gate.overrides import Shared
from airflow_provider_backpressure.core.gate.queue import NOT_QUEUED, QueuePlace
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.transitions.errors import unknown
from airflow_provider_backpressure.ledger.models import hydration, limit, range_
from airflow_provider_backpressure.ledger.sqltypes import UtcDateTime, utc_now
from airflow_provider_backpressure.ledger.tables.decision import memory_closed
from airflow_provider_backpressure.ledger.tables.queue import count_before, stands
from airflow_provider_backpressure.ledger.tables.range import BY_STATE, FIRST_PLANNED, held_by

_HELD = (
    sa.select(
        sa.func.count().label("in_flight"),
        sa.func.min(range_.c.admitted_at, type_=UtcDateTime()).label("oldest"),
    )
    .where(held_by(sa.bindparam("id")))
    .subquery("held")
)
_OTHERS, _THEIRS = hydration.alias("others"), range_.alias("theirs")
_SHARING = _OTHERS.join(_THEIRS, held_by(_OTHERS.c.id, _THEIRS))
_RESERVED = (
    sa.select(sa.func.coalesce(sa.func.sum(_THEIRS.c.memory_bytes), 0))
    .select_from(_SHARING)
    .with_hint(_THEIRS, BY_STATE, "mysql")
    .where(_OTHERS.c.cluster == hydration.c.cluster)
    .scalar_subquery()
)
_LARGEST = (
    sa.select(sa.func.coalesce(sa.func.max(_THEIRS.c.memory_bytes), 0))
    .select_from(_SHARING)
    .with_hint(_THEIRS, BY_STATE, "mysql")
    .where(_OTHERS.c.cluster == hydration.c.cluster)
    .scalar_subquery()
)
_CONNECTIONS = (
    sa.select(sa.func.count())
    .select_from(_SHARING)
    .with_hint(_THEIRS, BY_STATE, "mysql")
    .where(_OTHERS.c.sink_server == hydration.c.sink_server)
    .scalar_subquery()
)
_MOST_CONNECTIONS = (
    sa.select(limit.c.most)
    .where(limit.c.kind == Shared.CONNECTIONS.value, limit.c.name == hydration.c.sink_server)
    .scalar_subquery()
)
_GATE: sa.Select[Any] = (
    sa.select(
        hydration.c.phase,
        hydration.c.cluster,
        hydration.c.credits,
        hydration.c.slots,
        hydration.c.commit_seconds,
        hydration.c.range_memory_bytes,
        hydration.c.range_rows_set,
        hydration.c.paused_by,
        hydration.c.paused_why,
        hydration.c.decision,
        hydration.c.gate_changes,
        _HELD,
        FIRST_PLANNED.label("waiting"),
        _RESERVED.label("reserved_bytes"),
        _LARGEST.label("largest_bytes"),
        _CONNECTIONS.label("connections"),
        _MOST_CONNECTIONS.label("connections_max"),
        # Without a limit nothing waits, and the rows of hydrations are not read once more.
        sa.case((_MOST_CONNECTIONS.is_not(None), count_before()), else_=0).label("connections_before"),
        utc_now().label("now"),
    )
    .select_from(hydration.join(_HELD, sa.true()))
    .where(hydration.c.id == sa.bindparam("id"))
)


def state(connection: Connection, hydration_id: str) -> GateState:
    """Return the gate's state at one moment; ``LedgerRefused`` for an unknown id."""
    row: Any = connection.execute(_GATE, {"id": hydration_id}).one_or_none()
    if row is None:
        raise unknown(hydration_id)
    settled = Phase(row.phase) is Phase.STEADY_STATE
    return _state(row, NOT_QUEUED if settled else stands(connection, hydration_id, row.cluster))


def _state(row: Row[Any], place: QueuePlace) -> GateState:
    return GateState(
        phase=Phase(row.phase),
        place=place,
        credits=row.credits,
        slots=row.slots,
        in_flight=row.in_flight,
        waiting=int(row.waiting is not None),
        reserved_bytes=int(row.reserved_bytes),
        largest_bytes=int(row.largest_bytes),
        connections=row.connections,
        connections_max=row.connections_max,
        connections_before=row.connections_before,
        oldest_seconds=None if row.oldest is None else max(0.0, (row.now - row.oldest).total_seconds()),
        commit_seconds=row.commit_seconds,
        range_memory_bytes=row.range_memory_bytes,
        range_rows=row.range_rows_set,
        paused_by=row.paused_by,
        paused_why=row.paused_why,
        memory_closed=memory_closed(row.decision),
        number=row.gate_changes,
    )
