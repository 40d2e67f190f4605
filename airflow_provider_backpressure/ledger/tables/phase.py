"""Statements on ``backpressure_phase``: when a hydration was in which phase."""

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.gate.hydration_record import Phase, Span
from airflow_provider_backpressure.ledger.models import phase
from airflow_provider_backpressure.ledger.sql_types import utc_now

_OF = sa.select(phase).where(phase.c.hydration_id == sa.bindparam("hydration"))
_END = (
    sa.update(phase)
    .where(phase.c.hydration_id == sa.bindparam("hydration"), phase.c.ended_at.is_(None))
    .values(ended_at=utc_now())
)
_BEGIN = sa.insert(phase).values(started_at=utc_now())
_LAST = sa.select(sa.func.max(phase.c.number)).where(phase.c.hydration_id == sa.bindparam("hydration"))


MOST_PHASES = 100
"""Newest phases of a hydration that are kept, beside the first: each copy that is made again has two."""


def enter(connection: Connection, hydration_id: str, entered: Phase) -> None:
    """End the phase that a hydration is in, and begin another; old phases are forgotten, all but the first."""
    connection.execute(_END, {"hydration": hydration_id})
    last = connection.execute(_LAST, {"hydration": hydration_id}).scalar_one() or 0
    begin(connection, hydration_id, last + 1, entered)
    if last >= MOST_PHASES:
        old = phase.c.number.between(2, last + 1 - MOST_PHASES)
        connection.execute(sa.delete(phase).where(phase.c.hydration_id == hydration_id, old))


def begin(connection: Connection, hydration_id: str, number: int, entered: Phase) -> None:
    """Begin a phase of this number."""
    begun = {"hydration_id": hydration_id, "number": number, "phase": entered.value, "ended_at": None}
    connection.execute(_BEGIN, begun)


def read_spans(connection: Connection, hydration_id: str) -> list[Span]:
    """Return the phases of a hydration, in order."""
    rows = connection.execute(_OF.order_by(phase.c.number), {"hydration": hydration_id})
    return [Span(phase=Phase(row.phase), started_at=row.started_at, ended_at=row.ended_at) for row in rows]


def read_snapshot_spans(connection: Connection, ids: Collection[str]) -> dict[str, Span]:
    """Return the latest time in which a snapshot went in, by hydration."""
    rows = connection.execute(
        sa.select(phase)
        .where(phase.c.hydration_id.in_(ids), phase.c.phase != Phase.STEADY_STATE.value)
        .order_by(phase.c.number)
    )
    return {
        row.hydration_id: Span(phase=Phase(row.phase), started_at=row.started_at, ended_at=row.ended_at) for row in rows
    }
