"""Statements on ``backpressure_control``: who steered what, when and why."""

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.ledger.models import control
from airflow_provider_backpressure.ledger.sqltypes import utc_now


def add(
    connection: Connection, *, hydration_id: str, who: str, action: str, why: str | None, values: dict[str, Any]
) -> None:
    """Write down one act of a person. ``values`` are the settings after it."""
    connection.execute(
        sa.insert(control).values(
            hydration_id=hydration_id, at=utc_now(), who=who, action=action, why=why, values=json.dumps(values)
        )
    )
