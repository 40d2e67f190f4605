"""What proves, under ``mirror``, that the target holds a range's rows already: the latest write of the range."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.messages import LastWrite, RangeResult
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord


@dataclass(frozen=True)
class LastWrites:
    """The latest writes of a plan's ranges, in this plan or in those whose bounds it reuses.

    Bounds are only ever split from one of these plans to the next, so nothing newer overlaps a range's latest write.
    """

    plan: Plan
    sink: Sink

    @cached_property
    def markers(self) -> Mapping[Bounds, Marker]:
        """The markers by their bounds; the target is asked once."""
        if not self.plan.mirrored_since:
            return {}
        found = self.sink.mirror().writes(self.plan.mirrored_since)
        return {bounds_from_json(dict(marker.bounds)): marker for marker in found}

    def find(self, bounds: Bounds) -> LastWrite | None:
        """Return what a task compares the source's rows with; ``None`` where nothing proves what the target holds."""
        marker = self.markers.get(bounds)
        if marker is None or marker.quarantined or marker.plan_id == self.plan.plan_id:
            return None
        # The first of the plans has staged every range, whether it had changed or not.
        staged = marker.plan_id == self.plan.held_by and marker.epoch > self.plan.mirrored_since
        return LastWrite(rows=marker.rows, checksum=marker.checksum, staged=staged)

    def confirm(self, record: RangeRecord, result: RangeResult) -> Marker | None:
        """Return the marker of a range that an attempt found unchanged; ``None`` where it did not."""
        marker = self.markers.get(record.bounds)
        same = [(piece.rows, piece.checksum) for piece in result.slices if piece.unchanged]
        if marker is None or same != [(marker.rows, marker.checksum)]:
            return None
        return replace(marker, attempt=record.attempt)

    def proves(self, record: RangeRecord) -> Marker | None:
        """Return the earlier plan's marker that proves a range which the ledger has as committed, if there is one."""
        marker = self.markers.get(record.bounds)
        if marker is None or (marker.rows, marker.checksum) != (record.rows, record.checksum):
            return None
        return marker if marker.plan_id != self.plan.plan_id else None
