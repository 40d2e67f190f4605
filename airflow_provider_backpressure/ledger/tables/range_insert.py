"""Storing the ranges of a new plan: a million of them in seconds, streamed."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeRecord
from airflow_provider_backpressure.exceptions import LedgerUnavailable
from airflow_provider_backpressure.ledger.database import Database
from airflow_provider_backpressure.ledger.models import range_

T = TypeVar("T")

FEW = 100
"""Ranges that go in with their plan, by one statement: most tables have no more."""
BATCH = 5_000
"""Ranges per statement, or per piece of a COPY stream (about 1 MiB)."""


def store(database: Database, ranges: Iterable[PlannedRange], *, hydration_id: str, plan_id: str) -> Iterator[int]:
    """Store the ranges of a plan to which no hydration leads yet, and yield how many are in with each transaction.

    A source may take its time between two ranges. MySQL would end a transaction that waits for it, and SQLite let
    nobody else write; to PostgreSQL it is one COPY.
    """
    pieces = (ranges,) if database.engine.dialect.name == "postgresql" else _batches(ranges)
    for piece in pieces:
        with database.write() as connection:
            number = add_ranges(connection, piece, hydration_id=hydration_id, plan_id=plan_id)
        yield number


def check_stored(connection: Connection, plan_id: str, number: int) -> None:
    """Raise ``LedgerUnavailable`` where ranges are missing. The hydration is locked, so none goes after that."""
    there = connection.scalar(sa.select(sa.func.count()).where(range_.c.plan_id == plan_id))
    if there != number:
        raise LedgerUnavailable(f"{there} of {number} ranges of plan {plan_id} are left: it has to be planned again.")


def add_ranges(connection: Connection, ranges: Iterable[PlannedRange], *, hydration_id: str, plan_id: str) -> int:
    """Store planned ranges as they come and return their number; the rest of a row is the table's defaults."""
    batches = _batches(ranges)
    if connection.dialect.name == "postgresql":
        return _copy(connection, batches, hydration_id=hydration_id, plan_id=plan_id)
    return sum(insert_ranges(connection, batch, hydration_id=hydration_id, plan_id=plan_id) for batch in batches)


def put_records(connection: Connection, records: Iterable[RangeRecord], *, plan_id: str) -> None:
    """Store the ranges of a plan as they are, in the place of those that are there."""
    connection.execute(sa.delete(range_).where(range_.c.plan_id == plan_id))
    for batch in _batches(records):
        connection.execute(sa.insert(range_), [_values(record) for record in batch])


def _values(record: RangeRecord) -> dict[str, Any]:
    return {
        "plan_id": record.plan_id,
        "seq": record.seq,
        "hydration_id": record.hydration_id,
        "bounds": json.dumps(record.bounds.to_json()),
        "state": record.state.value,
        "planned_rows": record.planned_rows,
        "planned_bytes": record.planned_bytes,
        "attempt": record.attempt,
        "lane": record.lane,
        "tag": record.tag,
        "committed_rows": record.rows,
        "committed_bytes": record.bytes,
        "checksum": record.checksum,
        "error": record.error,
        "admitted_at": record.admitted_at,
        "committed_at": record.committed_at,
    }


def _batches(ranges: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(ranges)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def _copy(connection: Connection, batches: Iterator[list[PlannedRange]], *, hydration_id: str, plan_id: str) -> int:
    number = 0
    driver: Any = connection.connection.driver_connection
    with (
        driver.cursor() as cursor,
        cursor.copy(
            f"COPY {range_.name} (hydration_id, plan_id, seq, bounds, planned_rows, planned_bytes) FROM STDIN"
        ) as copy,
    ):
        for batch in batches:
            copy.write("".join([_line(planned, f"{hydration_id}\t{plan_id}\t") for planned in batch]))
            number += len(batch)
    return number


def _line(planned: PlannedRange, keys: str) -> str:
    """Return a line of COPY's text format. JSON escapes control characters itself, so backslashes alone are special."""
    bounds = _json(planned).replace("\\", "\\\\")
    return f"{keys}{planned.seq}\t{bounds}\t{planned.rows}\t{planned.bytes}\n"


def insert_ranges(connection: Connection, ranges: Sequence[PlannedRange], *, hydration_id: str, plan_id: str) -> int:
    """Store planned ranges by one statement and return their number."""
    values = [
        {
            "hydration_id": hydration_id,
            "plan_id": plan_id,
            "seq": planned.seq,
            "bounds": _json(planned),
            "planned_rows": planned.rows,
            "planned_bytes": planned.bytes,
        }
        for planned in ranges
    ]
    if values:
        connection.execute(sa.insert(range_), values[0] if len(values) == 1 else values)
    return len(values)


def _json(planned: PlannedRange) -> str:
    return json.dumps(planned.bounds.to_json())
