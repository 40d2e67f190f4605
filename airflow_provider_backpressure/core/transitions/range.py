"""What becomes of a range: committed, released, opened again, left out, or cut into others."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.ranges import SKIPPED, PlannedRange, RangeRecord, RangeState, advance

ERROR_LENGTH = 4000


def commit(record: RangeRecord, *, attempt: int, rows: int, bytes: int, checksum: str, now: datetime) -> RangeRecord:
    """Return the range as the sink's marker says it is, whichever attempt wrote that."""
    return replace(
        record,
        state=advance(record.state, RangeState.COMMITTED),
        attempt=max(record.attempt, attempt),
        lease_until=None,
        rows=rows,
        bytes=bytes,
        checksum=checksum,
        error=None,
        committed_at=now,
    )


def release(record: RangeRecord, *, attempt: int, error: str, fail: bool) -> RangeRecord | None:
    """Return the range without its credit; ``None`` where this attempt does not hold it.

    One that has failed keeps what leads to the attempt's log.
    """
    if record.state is not RangeState.ADMITTED or record.attempt != attempt:
        return None
    return replace(
        record,
        state=advance(record.state, RangeState.FAILED if fail else RangeState.PLANNED),
        lane=record.lane if fail else None,
        session_id=record.session_id if fail else None,
        lease_until=None,
        error=error.replace("\x00", "")[:ERROR_LENGTH],  # what every database takes
    )


def credits_back(record: RangeRecord) -> int:
    """Return what the end of an attempt does to the number of ranges in flight."""
    return -1 if record.state is RangeState.ADMITTED else 0


def reopen(record: RangeRecord) -> RangeRecord | None:
    """Return a range that is to be read once more; ``None`` where it is neither committed nor failed."""
    if record.state not in (RangeState.COMMITTED, RangeState.FAILED):
        return None
    return replace(
        record,
        state=advance(record.state, RangeState.PLANNED),
        lane=None,
        session_id=None,
        rows=None,
        bytes=None,
        checksum=None,
        error=None,
        committed_at=None,
    )


def skip(record: RangeRecord, *, why: str) -> RangeRecord | None:
    """Return a range that is left out for good; ``None`` where it is neither planned nor failed."""
    if record.state not in (RangeState.PLANNED, RangeState.FAILED):
        return None
    return replace(record, state=advance(record.state, RangeState.REVOKED), error=f"{SKIPPED}{why}"[:ERROR_LENGTH])


def recut(record: RangeRecord, *, attempt: int, first: int, number: int) -> RangeRecord | None:
    """Return a range in whose place others come, numbered from ``first`` on; ``None`` where it is not to be had."""
    held = record.state is RangeState.ADMITTED and record.attempt == attempt
    if not held and record.state is not RangeState.PLANNED:
        return None
    return replace(
        record,
        state=advance(record.state, RangeState.REVOKED),
        lane=None,
        session_id=None,
        lease_until=None,
        error=f"cut into the ranges {first} to {first + number - 1}",
    )


def pieces_of(record: RangeRecord, pieces: Sequence[Bounds], *, first: int) -> list[PlannedRange]:
    """Return what comes in a range's place; each is expected to hold its share."""
    rows, bytes = (-(-size // len(pieces)) for size in (record.planned_rows, record.planned_bytes))
    return [PlannedRange(seq=first + at, bounds=piece, rows=rows, bytes=bytes) for at, piece in enumerate(pieces)]
