"""Who may begin: a lane asks for a range, which is there and settled, for a credit and for memory."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState, advance, attempt_tag


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

        ``ready``: whether the range before it is settled, which counts for one that goes in after it.
        """
        lease_until = now + timedelta(seconds=self.lease_seconds)
        if self._has_reserved(record, now):
            return replace(record, session_id=self.session_id or None, lease_until=lease_until)
        if record.state is not RangeState.PLANNED or in_flight >= (1 if record.ordered else credits) or not ready:
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


def fits(*, reserved_bytes: int, request: Request) -> bool:
    """Whether the cluster has the memory for one more range; the only one, or one of unknown size, always goes."""
    free = not request.weighs or not reserved_bytes
    return free or reserved_bytes + request.memory_bytes <= (request.memory_limit or 0)


def lease_runs(record: RangeRecord, now: datetime) -> bool:
    """Whether the range is still held: its lease has not run out."""
    return record.lease_until is not None and record.lease_until > now
