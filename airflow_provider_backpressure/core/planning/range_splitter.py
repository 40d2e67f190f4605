"""Splits a planned range that is larger than what is wanted by now: smaller ranges take its place."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, check_marked
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, slice_id
from airflow_provider_backpressure.exceptions import SinkRefused, SourceRefused, SourceUnavailable

log = logging.getLogger(__name__)

WORTH = 1.5
"""A range is cut where it is expected to hold more than so many times what is wanted."""


def parts_for(record: RangeRecord, rows: int | None) -> int:
    """Return into how many pieces a range is to be cut so that each holds about ``rows``; 1: it stays as it is."""
    return math.ceil(record.planned_rows / rows) if rows and record.planned_rows > WORTH * rows else 1


@dataclass(frozen=True, kw_only=True)
class RangeSplitter:
    """Cuts ranges of one plan."""

    plan: Plan
    ledger: Ledger
    source: Source
    sink: Sink

    def cut(self, record: RangeRecord, parts: int, *, tried: bool) -> bool:
        """Put smaller ranges in the place of one that this lane holds, and give its credit back; whether it was done.

        ``tried``: whether an attempt at it was ever submitted. The sink refuses the range before others take its place,
        so that nothing of it can come in beside them, even if the ledger is restored to a time before the cut. A lane
        that was killed in between has left the rest undone, which is made up for here, also with one piece. Rows of a
        log that go in by its order are not cut: their pieces would come too late. A source that does not answer now
        leaves the range as it is. ``LedgerRefused`` where the sink has seen the new numbers before.
        """
        if record.ordered:
            return False
        marker = self._marker(record) if parts > 1 or record.attempt > 1 else None
        begun = marker is not None and marker.revoked
        if (marker is not None and not begun) or (parts < 2 and not begun):
            return False
        try:
            pieces = self.source.cut(self.plan.read, record.bounds, parts=max(2, parts))
        except (SourceUnavailable, SourceRefused) as error:
            if begun:
                raise
            log.info("Range %s stays whole: %s", record.seq, error)
            return False
        if not begun and (len(pieces) < 2 or not self._is_closed(record, tried=tried)):
            return False
        made = self.ledger.recut(record.plan_id, record.seq, attempt=record.attempt, pieces=pieces)
        if made:
            log.info("Range %s was cut into the ranges %s to %s.", record.seq, made[0], made[-1])
            self._check_numbers(dict(zip(made, pieces, strict=True)))
        return bool(made)

    def _marker(self, record: RangeRecord) -> Marker | None:
        return self.sink.markers(record.plan_id, [record.slice_id]).get(record.slice_id)

    def _is_closed(self, record: RangeRecord, *, tried: bool) -> bool:
        """Whether nothing of the range can come into the sink any more: it refuses it, or was never sent any of it."""
        try:
            return self.sink.revoke(self.plan, record.slice_id, record.bounds)
        except SinkRefused as error:
            log.info("The target keeps no mark of the cut of range %s: %s", record.seq, error)
            return not tried

    def _check_numbers(self, made: Mapping[int, Bounds]) -> None:
        """Raise ``LedgerRefused`` where the sink has seen these numbers with other bounds: the ledger is older."""
        marked = self.sink.markers(self.plan.plan_id, [slice_id(seq) for seq in made])
        for seq, bounds in made.items():
            marker = marked.get(slice_id(seq))
            if marker is not None:
                check_marked(marker.bounds, bounds.to_json(), slice_id=marker.slice_id, plan_id=self.plan.plan_id)
