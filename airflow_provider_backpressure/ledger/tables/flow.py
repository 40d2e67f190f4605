"""Statements on ``backpressure_flow``: what the stages did in the last hour, a row for each look of a lane."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, StageTime, flow_of, times_of, total
from airflow_provider_backpressure.ledger.models import flow
from airflow_provider_backpressure.ledger.tables.range import now

KEPT = timedelta(hours=1)

_OF = flow.c.hydration_id == sa.bindparam("hydration")


def add(connection: Connection, hydration_id: str, *, worker: str, times: Flow) -> None:
    """Add what a worker's stages did since its last row, and forget what is old."""
    at = now(connection)
    old = sa.delete(flow).where(_OF, flow.c.at < at - KEPT)
    connection.execute(old, {"hydration": hydration_id})
    connection.execute(
        sa.insert(flow),
        {"hydration_id": hydration_id, "at": at, "worker_id": worker, "times": json.dumps(times_of(times))},
    )


def read_flow(connection: Connection, hydration_id: str, *, seconds: float) -> dict[Stage, StageTime]:
    """Return what the stages did in the last seconds."""
    return total(*(times for _, times in since(connection, hydration_id, seconds=seconds)))


def since(connection: Connection, hydration_id: str, *, seconds: float) -> list[tuple[datetime, Flow]]:
    """Return what the stages did in the last seconds, look by look, the oldest first."""
    first = now(connection) - timedelta(seconds=seconds)
    query = sa.select(flow.c.at, flow.c.times).where(_OF, flow.c.at >= first).order_by(flow.c.at)
    return [(row.at, flow_of(json.loads(row.times))) for row in connection.execute(query, {"hydration": hydration_id})]


def of_many(
    connection: Connection, hydration_ids: Sequence[str], *, seconds: float
) -> dict[str, dict[Stage, StageTime]]:
    """Return what the stages of some hydrations did in the last seconds, by their id."""
    first = now(connection) - timedelta(seconds=seconds)
    query = sa.select(flow.c.hydration_id, flow.c.times)
    found: dict[str, list[dict[Stage, StageTime]]] = {one: [] for one in hydration_ids}
    for row in connection.execute(query.where(flow.c.hydration_id.in_(hydration_ids), flow.c.at >= first)):
        found[row.hydration_id].append(flow_of(json.loads(row.times)))
    return {one: total(*flows) for one, flows in found.items()}
