"""What becomes of a range: committed, released, opened again, left out, or cut into others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.ranges import (
    SKIPPED,
    PlannedRange,
    RangeRecord,
    RangeState,
    attempt_tag,
)
from airflow_provider_backpressure.exceptions import IllegalTransition

ERROR_LENGTH = 4000

LEGAL: dict[RangeState, frozenset[RangeState]] = {
    # The sink's marker wins: one found later commits a range that the ledger had set back or given up.
    RangeState.PLANNED: frozenset({RangeState.ADMITTED, RangeState.COMMITTED, RangeState.REVOKED}),
    RangeState.ADMITTED: frozenset({RangeState.COMMITTED, RangeState.PLANNED, RangeState.FAILED, RangeState.REVOKED}),
    RangeState.FAILED: frozenset({RangeState.PLANNED, RangeState.COMMITTED, RangeState.REVOKED}),
    # A person's repair removes rows and marker from the sink, and the range is read once more.
    RangeState.COMMITTED: frozenset({RangeState.PLANNED}),
    RangeState.REVOKED: frozenset(),
}


def advance(state: RangeState, to: RangeState) -> RangeState:
    """Return ``to`` where the step is legal; :class:`IllegalTransition` otherwise."""
    if to not in LEGAL[state]:
        raise IllegalTransition(f"A range cannot go from {state} to {to}.")
    return to


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


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a lane asks for. ``session_id`` is empty where a sensor reserves for a later submission."""

    lane: str
    session_id: str
    lease_seconds: float
    memory_bytes: int
    memory_limit: int | None
    """Executor memory that all ranges on the cluster may reserve; ``None`` where each has executors of its own."""
    seq: int | None

    @property
    def weighs(self) -> bool:
        """Whether memory is looked at: it is bounded, and what the range may take is known."""
        return self.memory_limit is not None and self.memory_bytes > 0

    def admit(
        self, record: RangeRecord, *, in_flight: int, credits: int, now: datetime, ready: bool = True
    ) -> RangeRecord | None:
        """Return the range with its new attempt, or as it was reserved; ``None`` where it may not start.

        ``ready``: whether the range that it waits for is settled.
        """
        lease_until = now + timedelta(seconds=self.lease_seconds)
        if self._has_reserved(record, now):
            return replace(record, session_id=self.session_id or None, lease_until=lease_until)
        if record.state is not RangeState.PLANNED or in_flight >= (1 if record.is_alone else credits) or not ready:
            return None
        attempt = record.attempt + 1
        return replace(
            record,
            state=advance(record.state, RangeState.ADMITTED),
            attempt=attempt,
            lane=self.lane,
            session_id=self.session_id or None,
            tag=attempt_tag(record.plan_id, record.slice_id, attempt),
            lease_until=lease_until,
            memory_bytes=self.memory_bytes,
            admitted_at=now,
        )

    def _has_reserved(self, record: RangeRecord, now: datetime) -> bool:
        return (
            record.state is RangeState.ADMITTED
            and record.lane == self.lane
            and record.session_id is None
            and lease_runs(record, now)
        )


def settles(before: RangeState | None) -> bool:
    """Whether a range that goes in after another one in this state may begin; ``None``: there is none before it."""
    return before in (None, RangeState.COMMITTED, RangeState.REVOKED)


LOOK_AHEAD = 100
"""Planned ranges among which one is looked for that may begin, where those of several partitions go in side by side.

It bounds by how many ranges one partition gets ahead of another one."""


def find_ready(planned: Sequence[RangeRecord], states: Mapping[int, RangeState]) -> RangeRecord | None:
    """Return the first planned range that may begin. ``states``: of the ranges that they wait for."""
    return next((each for each in planned if each.waits_for is None or settles(states.get(each.waits_for))), None)


def fits(*, reserved_bytes: int, request: Request) -> bool:
    """Whether the cluster has the memory for one more range; the only one, or one of unknown size, always goes."""
    free = not request.weighs or not reserved_bytes
    return free or reserved_bytes + request.memory_bytes <= (request.memory_limit or 0)


def lease_runs(record: RangeRecord, now: datetime) -> bool:
    """Whether the range is still held: its lease has not run out."""
    return record.lease_until is not None and record.lease_until > now
