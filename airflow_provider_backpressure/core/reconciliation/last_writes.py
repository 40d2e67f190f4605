"""What proves that the target holds a range's rows already: the latest write of the range."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.core.snapshot.spark_messages import LastWrite, RangeResult


@dataclass(frozen=True)
class LastWrites:
    """The latest writes of a plan's ranges: in an earlier snapshot of it, or in plans whose bounds it reuses.

    Bounds are only ever split from one of these plans to the next, so nothing newer overlaps a range's latest write.
    """

    plan: Plan
    sink: Sink
    _own: dict[str, Marker] = field(default_factory=dict)
    """Markers of earlier snapshots of the plan, by their slices, as far as they were asked for."""

    @cached_property
    def markers(self) -> dict[Bounds, Marker]:
        """The markers under ``mirror`` by their bounds; the target is asked once."""
        if not self.plan.mirrored_since:
            return {}
        found = self.sink.mirror(self.plan.write).writes(self.plan.mirrored_since)
        return {bounds_from_json(dict(marker.bounds)): marker for marker in found}

    def find(self, record: RangeRecord) -> LastWrite | None:
        """Return what a task compares the source's rows with; ``None`` where nothing proves what the target holds.

        Asks the target about a range that was tried before.
        """
        own = self._find_own(record)
        if own is not None:
            return LastWrite(rows=own.rows, checksum=own.checksum, staged=False, epoch=own.epoch)
        marker = self.markers.get(record.bounds)
        if marker is not None and record.attempt > 1 and not self._is_there(marker):
            del self.markers[record.bounds]
            return None
        if marker is None or marker.quarantined or marker.plan_id == self.plan.plan_id:
            return None
        # The first of the plans has staged every range, whether it had changed or not.
        staged = marker.plan_id == self.plan.held_by and marker.epoch > self.plan.mirrored_since
        return LastWrite(rows=marker.rows, checksum=marker.checksum, staged=staged)

    def _find_own(self, record: RangeRecord) -> Marker | None:
        """Return the range's marker of an earlier snapshot. One that was never tried before has none."""
        self._own.pop(record.slice_id, None)
        if not self.plan.survives or record.attempt < 2:
            return None
        marker = self.sink.markers(self.plan.plan_id, [record.slice_id]).get(record.slice_id)
        if marker is None or marker.revoked or not self.plan.is_outdated(marker.plan_id, marker.epoch):
            return None
        self._own[record.slice_id] = marker
        return marker

    def _is_there(self, marker: Marker) -> bool:
        """Whether the target still has it: a person may have the range repaired while the lane runs."""
        found = self.sink.markers(marker.plan_id, [marker.slice_id]).get(marker.slice_id)
        return found is not None and not found.revoked

    def confirm(self, record: RangeRecord, result: RangeResult) -> Marker | None:
        """Return the marker of a range that an attempt found unchanged; ``None`` where it did not."""
        marker = self._own.get(record.slice_id) or self.markers.get(record.bounds)
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
