"""Statements on ``backpressure_source_statistics``: a row per worker, and one for the plan's total.

Sums are made in Python, under the hydration's lock: SQLite has no unsigned 64-bit arithmetic.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from airflow_provider_backpressure.core.monitoring.ledger_pruning import KEPT
from airflow_provider_backpressure.core.progress.rates_and_eta import WorkerStatistics
from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, StageTime, flow_of, times_of, total
from airflow_provider_backpressure.ledger.models import flow, push, statistics
from airflow_provider_backpressure.ledger.sql_types import utc_now
from airflow_provider_backpressure.ledger.tables.range import now

_OF = sa.select(statistics).where(statistics.c.hydration_id == sa.bindparam("hydration"))
_ROW = (statistics.c.hydration_id == sa.bindparam("hydration"), statistics.c.worker_id == sa.bindparam("worker"))
_ONE = sa.select(statistics).where(*_ROW)
_UPDATE = sa.update(statistics).where(*_ROW).values(updated_at=utc_now())
_INSERT = sa.insert(statistics).values(updated_at=utc_now())
_COUNTED = (
    "snapshot_total",
    "snapshot_total_exact",
    "snapshot_progress",
    "snapshot_read",
    "upstream_rate",
    "process_rate",
    "offset_known",
    "offset_committed",
    "messages_received",
    "bytes_received",
)


def read_statistics(connection: Connection, hydration_id: str) -> list[WorkerStatistics]:
    """Return the rows of a hydration, in the order of their workers."""
    rows = connection.execute(_OF.order_by(statistics.c.worker_id), {"hydration": hydration_id})
    return [_statistics(row) for row in rows.mappings()]


def of_many(connection: Connection, hydration_ids: Sequence[str]) -> dict[str, list[WorkerStatistics]]:
    """Return the rows of some hydrations, by their id."""
    found: dict[str, list[WorkerStatistics]] = {one: [] for one in hydration_ids}
    rows = connection.execute(sa.select(statistics).where(statistics.c.hydration_id.in_(hydration_ids)))
    for row in rows.mappings():
        found[row["hydration_id"]].append(_statistics(row))
    return found


def worker(connection: Connection, hydration_id: str, worker_id: str) -> WorkerStatistics:
    """Return a worker's row, or zeros where it has none yet."""
    row = connection.execute(_ONE, {"hydration": hydration_id, "worker": worker_id}).mappings().one_or_none()
    return WorkerStatistics(hydration_id=hydration_id, worker_id=worker_id) if row is None else _statistics(row)


def begin(connection: Connection, totals: WorkerStatistics, *, clear: bool = True) -> None:
    """Restart a hydration's statistics with the row of its plan; ``clear``: whether there may be others."""
    if clear:
        connection.execute(sa.delete(statistics).where(statistics.c.hydration_id == totals.hydration_id))
    save(connection, totals)


def save(connection: Connection, row: WorkerStatistics) -> None:
    """Write a row back; one that came from no row is added."""
    counts: dict[str, Any] = {name: getattr(row, name) for name in _COUNTED}
    if row.updated_at is None:
        connection.execute(_INSERT, {"hydration_id": row.hydration_id, "worker_id": row.worker_id, **counts})
    else:
        connection.execute(_UPDATE, {"hydration": row.hydration_id, "worker": row.worker_id, **counts})


def _statistics(row: RowMapping) -> WorkerStatistics:
    return WorkerStatistics(
        hydration_id=row["hydration_id"],
        worker_id=row["worker_id"],
        updated_at=row["updated_at"],
        **{name: row[name] for name in _COUNTED},
    )


_OF_HYDRATION = flow.c.hydration_id == sa.bindparam("hydration")


def add(connection: Connection, hydration_id: str, *, worker: str, times: Flow) -> None:
    """Add what a worker's stages did since its last row, and forget what is old."""
    at = now(connection)
    old = sa.delete(flow).where(_OF_HYDRATION, flow.c.at < at - KEPT)
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
    query = sa.select(flow.c.at, flow.c.times).where(_OF_HYDRATION, flow.c.at >= first).order_by(flow.c.at)
    return [(row.at, flow_of(json.loads(row.times))) for row in connection.execute(query, {"hydration": hydration_id})]


def read_flows(
    connection: Connection, hydration_ids: Sequence[str], *, seconds: float
) -> dict[str, dict[Stage, StageTime]]:
    """Return what the stages of some hydrations did in the last seconds, by their id."""
    first = now(connection) - timedelta(seconds=seconds)
    query = sa.select(flow.c.hydration_id, flow.c.times)
    found: dict[str, list[dict[Stage, StageTime]]] = {one: [] for one in hydration_ids}
    for row in connection.execute(query.where(flow.c.hydration_id.in_(hydration_ids), flow.c.at >= first)):
        found[row.hydration_id].append(flow_of(json.loads(row.times)))
    return {one: total(*flows) for one, flows in found.items()}


def keep(connection: Connection, process: str, counts: str) -> None:
    """Replace a process's counts, and remove all that are older than an hour."""
    at = now(connection)
    connection.execute(sa.delete(push).where(sa.or_(push.c.process == process, push.c.at < at - KEPT)))
    connection.execute(sa.insert(push), {"process": process, "at": at, "counts": counts})


def latest(connection: Connection) -> list[str]:
    """Return the counts of every process that said something within the last hour."""
    rows = connection.execute(sa.select(push.c.counts).where(push.c.at >= now(connection) - KEPT))
    return list(rows.scalars())
