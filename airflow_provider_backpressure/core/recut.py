"""Cutting a range that is too large while its plan is under way: a person wants smaller ones, or its memory ran out."""

import logging
import math
from dataclasses import dataclass

from airflow_provider_backpressure.core.ledger_port import Ledger
from airflow_provider_backpressure.core.ports import Sink, Source
from airflow_provider_backpressure.core.ranges import RangeRecord
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.exceptions import SinkRefused, SourceRefused, SourceUnavailable

log = logging.getLogger(__name__)

WORTH = 1.5
"""A range is cut where it is expected to hold more than so many times what is wanted."""


def parts_for(record: RangeRecord, rows: int | None) -> int:
    """Return into how many pieces a range is to be cut so that each holds about ``rows``; 1: it stays as it is."""
    return math.ceil(record.planned_rows / rows) if rows and record.planned_rows > WORTH * rows else 1


@dataclass(frozen=True, kw_only=True)
class Knife:
    """Cuts ranges of one plan."""

    plan: Plan
    ledger: Ledger
    source: Source
    sink: Sink

    def cut(self, record: RangeRecord, parts: int, *, tried: bool) -> bool:
        """Put smaller ranges in the place of one that this lane holds, and give its credit back; whether it was done.

        ``tried``: whether an attempt at it was ever submitted. The sink refuses it then before others take its place; a
        lane that was killed in between has left that undone, which is made up for here, also with one piece. Rows of a
        log that go in by its order are not cut: their pieces would come too late. A source that does not answer now
        leaves the range as it is.
        """
        if record.ordered:
            return False
        begun = record.attempt > 1 and self._begun(record)
        if parts < 2 and not begun:
            return False
        try:
            pieces = self.source.cut(self.plan.read, record.bounds, parts=max(2, parts))
        except (SourceUnavailable, SourceRefused) as error:
            if begun:
                raise
            log.info("Range %s stays whole: %s", record.seq, error)
            return False
        if not begun and (len(pieces) < 2 or (tried and not self._revoked(record))):
            return False
        made = self.ledger.recut(record.plan_id, record.seq, attempt=record.attempt, pieces=pieces)
        if made:
            log.info("Range %s was cut into the ranges %s to %s.", record.seq, made[0], made[-1])
        return bool(made)

    def _begun(self, record: RangeRecord) -> bool:
        """Whether the sink refuses the range already, though the ledger does not know of it."""
        marker = self.sink.markers(record.plan_id, [record.slice_id]).get(record.slice_id)
        return marker is not None and marker.revoked

    def _revoked(self, record: RangeRecord) -> bool:
        """Whether nothing of the range can come into the sink any more."""
        try:
            return self.sink.revoke(self.plan, record.slice_id, record.bounds)
        except SinkRefused as error:
            log.info("Range %s stays whole: %s", record.seq, error)
            return False
