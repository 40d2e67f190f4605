"""Statements on ``backpressure_phase``: which phases a hydration has been in. Under the hydration's lock."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.phases import Phase, Span
from airflow_provider_backpressure.ledger.models import phase
from airflow_provider_backpressure.ledger.sqltypes import utc_now

_OF = sa.select(phase).where(phase.c.hydration_id == sa.bindparam("hydration"))
_END = (
    sa.update(phase)
    .where(phase.c.hydration_id == sa.bindparam("hydration"), phase.c.ended_at.is_(None))
    .values(ended_at=utc_now())
)
_LAST = sa.select(sa.func.max(phase.c.number)).where(phase.c.hydration_id == sa.bindparam("hydration"))


def enter(connection: Connection, hydration_id: str, entered: Phase) -> None:
    """End the phase that a hydration is in, and begin another."""
    connection.execute(_END, {"hydration": hydration_id})
    last = connection.execute(_LAST, {"hydration": hydration_id}).scalar_one() or 0
    connection.execute(
        sa.insert(phase).values(
            hydration_id=hydration_id, number=last + 1, phase=entered.value, started_at=utc_now(), ended_at=None
        )
    )


def read_spans(connection: Connection, hydration_id: str) -> list[Span]:
    """Return the phases of a hydration, in order."""
    rows = connection.execute(_OF.order_by(phase.c.number), {"hydration": hydration_id})
    return [Span(phase=Phase(row.phase), started_at=row.started_at, ended_at=row.ended_at) for row in rows]
