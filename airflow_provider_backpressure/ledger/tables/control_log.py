"""Statements on ``backpressure_control``: who steered what, when and why."""

import json
import math
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.gate.cluster_queue import Control
from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.ledger.models import control
from airflow_provider_backpressure.ledger.sql_types import utc_now


def add(
    connection: Connection, *, hydration_id: str, who: str, action: str, why: str | None, values: dict[str, Any]
) -> None:
    """Write down one act of a person. ``values`` are the settings after it."""
    connection.execute(
        sa.insert(control).values(
            hydration_id=hydration_id, at=utc_now(), who=who, action=action, why=why, values=json.dumps(values)
        )
    )


def latest(connection: Connection, hydration_id: str | None, *, limit: int) -> list[Control]:
    """Return the latest acts on a hydration, or on all, the newest first."""
    query = sa.select(control).order_by(control.c.id.desc()).limit(limit)
    if hydration_id is not None:
        query = query.where(control.c.hydration_id == hydration_id)
    return [
        Control(
            hydration_id=row.hydration_id,
            at=row.at,
            who=row.who,
            action=row.action,
            why=row.why,
            # By its place: a row's own method has this name too.
            values=json.loads(row._mapping["values"] or "{}"),
        )
        for row in connection.execute(query)
    ]


def to_json(decision: Decision) -> str:
    """Return ``{"open": …, "pressure": …, "signals": […]}``; a pressure without bound is null."""
    pressure = round(decision.pressure, 4) if math.isfinite(decision.pressure) else None
    return json.dumps(
        {"open": decision.open, "pressure": pressure, "signals": [signal.to_json() for signal in decision.signals]}
    )


def from_json(text: str | None) -> dict[str, Any] | None:
    """Return the decision's JSON object, if one was kept."""
    return None if text is None else json.loads(text)


def memory_closed(text: str | None) -> bool:
    """Whether live executor memory closed the gate."""
    decision = from_json(text)
    signals = decision["signals"] if decision else ()
    return any(signal["name"] == "executor memory" and signal["closed"] for signal in signals)
