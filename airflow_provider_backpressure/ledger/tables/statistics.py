"""Statements on ``backpressure_source_statistics``: a row per worker, and one for the plan's total.

Sums are made in Python, under the hydration's lock: SQLite has no unsigned 64-bit arithmetic.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from airflow_provider_backpressure.core.progress.statistics import WorkerStatistics
from airflow_provider_backpressure.ledger.models import statistics
from airflow_provider_backpressure.ledger.sqltypes import utc_now

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


def begin(connection: Connection, totals: WorkerStatistics) -> None:
    """Restart a hydration's statistics with the row of its plan."""
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
