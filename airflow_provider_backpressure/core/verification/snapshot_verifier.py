"""Comparison of the source with what was committed of it, while the snapshot is kept in which it was read."""

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from airflow_provider_backpressure.core.ports.ledger import LedgerReader, every_range
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.reconciliation.last_writes import LastWrites
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import SliceResult
from airflow_provider_backpressure.core.verification.mismatch_report import list_ranges
from airflow_provider_backpressure.core.verification.source_reader import SourceReader, choose_batch
from airflow_provider_backpressure.core.verification.verifier import compare
from airflow_provider_backpressure.exceptions import SinkRefused, VerificationFailed

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two looks at the snapshot, while ranges are read."""


@dataclass(frozen=True, kw_only=True)
class SnapshotVerifier:
    """Reads every committed range again in the snapshot that its lane keeps, and compares it with its marker.

    The target is not read: the task that verifies compares it with the same markers, when the snapshot is gone.
    """

    ledger: LedgerReader
    reader: SourceReader
    look: Callable[[], None]
    """Called all the while; it raises where the snapshot is lost, or the lane is to end."""

    @property
    def _plan(self) -> Plan:
        return self.reader.plan

    @cached_property
    def _writes(self) -> LastWrites:
        return LastWrites(self._plan, self.reader.sink)

    def verify(self) -> None:
        """Raise ``VerificationFailed`` where ranges of the source differ from what was committed, which it names.

        ``SnapshotLost`` where the snapshot is gone before all are compared.
        """
        records = every_range(self.ledger, self._plan.plan_id, [RangeState.COMMITTED])
        different: list[int] = []
        count = 0
        for batch in _batches(records, choose_batch(self.reader.runner)):
            if not count and not self._can_compare(batch[0]):
                return
            for record, sentence in self._compare(batch):
                count += 1
                if sentence:
                    log.error("Range %s: %s", record.seq, sentence)
                    different.append(record.seq)
        if different:
            raise VerificationFailed(
                f"{len(different)} of {count} ranges of {self._plan.source_identity} differ from what was committed, "
                f"though they were read in the same snapshot: {list_ranges(different)}. Clear "
                "this task: it reads them in a new snapshot, and writes those that differ once more."
            )
        log.info("%s ranges of %s were read again, and are equal.", count, self._plan.source_identity)

    def _can_compare(self, first: RangeRecord) -> bool:
        """Whether ranges can be found in a target that has to be hashed as the source is."""
        if not self.reader.reads_target:
            return True
        try:
            self.reader.sink.slice_query(self._plan.write, first.bounds)
        except SinkRefused as error:
            log.warning("The source cannot be compared with %s range by range: %s", self._plan.write.target, error)
            return False
        return True

    def _compare(self, batch: list[RangeRecord]) -> Iterator[tuple[RangeRecord, str]]:
        """Yield each range with how it differs, in words."""
        owned = [(record, marker) for record, marker in zip(batch, self._find_markers(batch), strict=True)]
        jobs = [(record, marker, self.reader.start(record, marker)) for record, marker in owned]
        sides = [side for *_, each in jobs for side in each]
        try:
            self._await(sides)
            for record, marker, each in jobs:
                yield record, compare(marker, None, *[side.result() for side in each])
        finally:
            # None of them has to begin in a snapshot that is let go.
            for side in sides:
                side.cancel()

    def _find_markers(self, batch: list[RangeRecord]) -> Iterator[Marker | None]:
        found = self.reader.sink.markers(self._plan.plan_id, [record.slice_id for record in batch])
        for record in batch:
            marker = found.get(record.slice_id)
            own = marker is not None and not marker.revoked and marker.has_bounds(record.bounds)
            yield marker if own else self._writes.proves(record)

    def _await(self, jobs: "list[Future[SliceResult]]") -> None:
        left: Iterable[Future[SliceResult]] = jobs
        while left:
            left = wait(left, timeout=LOOK_SECONDS).not_done
            self.look()


def _batches(records: Iterable[RangeRecord], size: int) -> Iterator[list[RangeRecord]]:
    iterator = iter(records)
    while batch := list(islice(iterator, size)):
        yield batch
