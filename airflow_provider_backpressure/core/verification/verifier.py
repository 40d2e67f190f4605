"""Verification: count and order-independent checksum, range by range, target against markers and source."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, islice
from typing import TypeVar

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.reconciliation.last_writes import LastWrites
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, SliceResult, Window
from airflow_provider_backpressure.core.verification.followed_table_comparison import FollowedVerifier
from airflow_provider_backpressure.core.verification.mismatch_report import (
    NO_MARKER,
    NOT_READ_AGAIN,
    SURPLUS_ADVICE,
    Mismatch,
    Report,
)
from airflow_provider_backpressure.core.verification.source_reader import SourceReader, choose_batch
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused

log = logging.getLogger(__name__)


class Verify(StrEnum):
    """How far verification goes."""

    NONE = "none"
    TARGET = "target"
    """The target is read back and compared with the markers, which hold what was read from the source."""
    FULL = "full"
    """The source is read once more too."""


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """Verifies the committed ranges of a plan on the executors, some at a time."""

    plan: Plan
    source: Source
    sink: Sink
    runner: Runner
    hydration_id: str = ""
    """Needed where a followed table is compared by value."""
    on_range: Callable[[int, int | None], None] | None = None
    """Called after each range with the number of those that are compared, and of all where that is another one than
    the plan's."""

    def verify(self, ranges: Iterable[RangeRecord], how: Verify) -> Report:
        """Compare each range by itself; the whole target at once where its rows cannot be separated by range.

        That is so after a transform, which may move keys, and where the target lacks the key or orders it otherwise.

        ``ranges``: those of the plan that are committed or revoked. Where one was skipped under ``mirror``, the target
        keeps its rows of before, so that only the other ranges can be compared.
        """
        if how is Verify.FULL and self.plan.consistency is Consistency.SNAPSHOT:
            # The lane has compared the source with the markers, in the snapshot that it kept.
            how, ranges = Verify.TARGET, self._check_read_again(ranges)
        self.sink.check_history()
        if how is Verify.FULL and self.plan.consistency is Consistency.CATCH_UP:
            return self._verify_followed(ranges)
        markers = {key: mark for key, mark in self.sink.markers(self.plan.plan_id).items() if not mark.revoked}
        skips = False
        if self.plan.mode is Mode.MIRROR:
            ranges = list(ranges)
            skips = any(record.skipped for record in ranges)
        if self.plan.mirrored_since:
            ranges, writes = list(ranges), LastWrites(self.plan, self.sink)
            found = {record.slice_id: writes.proves(record) for record in ranges if record.slice_id not in markers}
            markers |= {key: mark for key, mark in found.items() if mark is not None}
        ranges = (record for record in ranges if record.state is not RangeState.REVOKED)
        if self.plan.write.ordered or self.plan.stream:
            return self._in_order(ranges, markers)
        if skips:
            # A transform keeps the key under mirror, but not what is hashed in the source.
            return self._by_range(ranges, how if self.plan.transform is None else Verify.TARGET, markers)
        if self.plan.transform is not None:
            return self._with_surplus(self._verify_sum(markers))
        bounds = next((bounds_from_json(dict(marker.bounds)) for marker in markers.values()), None)
        try:
            self._query(bounds)
        except SinkRefused as error:
            log.info("The target is compared as a whole: %s", error)
            return self._with_surplus(self._verify_sum(markers))
        if how is Verify.TARGET and bounds is not None and len(markers) > 1:
            ranges = list(ranges)
            queries = self.sink.scan_queries(self.plan.write, bounds, self._window, parts=len(markers))
            report = self._by_scan(ranges, markers, queries) if queries else None
            if report is not None:
                return self._with_surplus(report)
        return self._with_surplus(self._by_range(ranges, how, markers))

    def _by_scan(
        self, ranges: Sequence[RangeRecord], markers: Mapping[str, Marker], queries: Sequence[str]
    ) -> Report | None:
        """Compare the sum of a target that is read once, where its ranges can only be found by looking at all rows.

        ``None`` where it differs, or a range has no marker: then each range has to be read by itself, to be named.
        """
        if len(markers) != len(ranges) or any(_own(markers, record) is None for record in ranges):
            return None
        log.info("The target has no index on the key of its ranges: it is read once, and compared as a whole.")
        rows = total = done = 0
        for batch in _batches(queries, self._at_once):
            for job in [self._checksum(query, _choose_one(markers)) for query in batch]:
                found = job.result()
                rows, total, done = rows + found.rows, total + _number(found.checksum), done + 1
                self._report(len(ranges) * done // len(queries))
        total %= 2**64
        if (rows, total) != _add_up(markers):
            log.warning("The target as a whole differs from what was committed: each range is compared by itself.")
            return None
        return Report(ranges=len(ranges), rows=rows, checksum=f"{total:016x}", mismatches=())

    @property
    def _window(self) -> Window | None:
        """Of an increment, the window that its rows are in."""
        return self.plan.read.window if self.plan.increment else None

    def _check_read_again(self, ranges: Iterable[RangeRecord]) -> Iterable[RangeRecord]:
        """Return the ranges; ``InvalidDeclaration`` where there are any that the lane has not read twice."""
        iterator = iter(ranges)
        first = list(islice(iterator, 1))
        if first and self.plan.transform is None and not self.plan.is_read_again:
            raise InvalidDeclaration(NOT_READ_AGAIN.format(self.plan.plan_id))
        return chain(first, iterator)

    @property
    def _at_once(self) -> int:
        return choose_batch(self.runner)

    def _with_surplus(self, report: Report) -> Report:
        """Add what the target holds beside the plan's own rows, where it should hold nothing else."""
        surplus = self.sink.find_surplus(self.plan)
        found = (Mismatch(seq=-1, sentence=surplus),) if surplus else ()
        return replace(report, mismatches=(*report.mismatches, *found))

    def _query(self, bounds: Bounds | None) -> str:
        """Return the statement for the target's rows of these bounds, of an increment those of its window only."""
        return self.sink.slice_query(self.plan.write, bounds, self._window)

    def _verify_followed(self, ranges: Iterable[RangeRecord]) -> Report:
        """Compare a table that is followed with its source, by value, as of moments that both show."""
        # A plan of windows has no ranges of rows: they are cut again.
        own = None if self.plan.replays else [record for record in ranges if record.state is not RangeState.REVOKED]
        return FollowedVerifier(
            plan=self.plan,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            hydration_id=self.hydration_id,
            at_once=self._at_once,
            on_range=self.on_range,
        ).verify(None if own is None else [(record.seq, record.bounds) for record in own])

    def _in_order(self, ranges: Iterable[RangeRecord], markers: Mapping[str, Marker]) -> Report:
        """See that every range is in: later rows have taken the place of earlier ones, which none could find again."""
        log.info("Rows took each other's place by key: that every range is in is all that can be verified.")
        mismatches, count = [], 0
        for record in ranges:
            count += 1
            if _own(markers, record) is None:
                mismatches.append(Mismatch(seq=record.seq, sentence=f"range {record.seq}: {NO_MARKER}"))
        rows, total = _add_up(markers)
        checksum = f"{total:016x}"
        return Report(ranges=count, rows=rows, checksum=checksum, mismatches=tuple(mismatches), compared=False)

    def _verify_sum(self, markers: Mapping[str, Marker]) -> Report:
        """Compare the target with the sum of its markers: checksums add up as the rows do."""
        rows, total = _add_up(markers)
        target = self._checksum(self._query(None), _choose_one(markers)).result()
        differences = []
        if target.rows != rows:
            staying = f"; {SURPLUS_ADVICE}" if self.plan.mode is Mode.UPSERT and target.rows > rows else ""
            differences.append(f"the target holds {target.rows} rows, {rows} were committed{staying}")
        elif _number(target.checksum) != total:
            differences.append(f"the target's checksum is {_number(target.checksum):016x}, {total:016x} was committed")
        return Report(
            ranges=len(markers),
            rows=target.rows,
            checksum=f"{_number(target.checksum):016x}",
            mismatches=tuple(Mismatch(seq=-1, sentence=difference) for difference in differences),
        )

    def _by_range(self, ranges: Iterable[RangeRecord], how: Verify, markers: Mapping[str, Marker]) -> Report:
        mismatches: list[Mismatch] = []
        rows, total, count = 0, 0, 0
        self._report(0)
        for batch in _batches(ranges, self._at_once):
            owned = [(record, _own(markers, record)) for record in batch]
            jobs = [(record, marker, self._start(record, how, marker)) for record, marker in owned]
            for record, marker, sides in jobs:
                target, *others = [side.result() for side in sides]
                count, rows, total = count + 1, rows + target.rows, total + _number(target.checksum)
                self._report(count)
                difference = compare(marker, target, *others)
                if self.plan.mode is Mode.UPSERT and marker is not None and target.rows > marker.rows:
                    difference += f"; {SURPLUS_ADVICE}"
                if difference:
                    mismatches.append(Mismatch(seq=record.seq, sentence=f"range {record.seq}: {difference}"))
        return Report(ranges=count, rows=rows, checksum=f"{total % 2**64:016x}", mismatches=tuple(mismatches))

    def _report(self, done: int) -> None:
        if self.on_range is not None:
            self.on_range(done, None)

    def _start(self, record: RangeRecord, how: Verify, marker: Marker | None) -> "list[Future[SliceResult]]":
        """Begin to read a range back: from the target, and where asked from the source; see :func:`compare`."""
        query = self._query(record.bounds)
        jobs = [self._checksum(query, marker)]
        if how is not Verify.FULL:
            return jobs
        again = SourceReader(plan=self.plan, source=self.source, sink=self.sink, runner=self.runner)
        return [*jobs, *again.start(record, marker)]

    def _checksum(self, query: str, marker: Marker | None) -> "Future[SliceResult]":
        write, like = self.plan.write, marker.checksum if marker is not None else ""
        return self.runner.checksum(ChecksumSpec(kind=write.kind, conn_id=write.conn_id, query=query, like=like))


def compare(
    marker: Marker | None,
    target: SliceResult | None,
    source: SliceResult | None = None,
    values: SliceResult | None = None,
) -> str:
    """Return how one range differs, in words, or an empty string.

    ``target``: left out where only the source is compared. ``source``: the same rows read again. ``values``: the
    target's rows hashed as the source's are, where its markers are made in another way; where that is left out, they
    are made in the source's.
    """
    if marker is None:
        return NO_MARKER
    differences = []
    for name, side in (("source", source), ("target", target)):
        if side is None:
            continue
        checksum = values.checksum if values is not None and side is source else marker.checksum
        # What is in quarantine is in the source, and not in the target.
        rows = marker.rows_read if side is source else marker.rows
        if side.rows + side.quarantined != rows:
            aside = " or quarantined" if rows > marker.rows else ""
            differences.append(f"the {name} holds {side.rows + side.quarantined} rows, {rows} were committed{aside}")
        elif side.checksum != checksum:
            differences.append(f"the {name}'s checksum is {side.checksum}, {checksum} was committed")
    return " and ".join(differences)


def _own(markers: Mapping[str, Marker], record: RangeRecord) -> Marker | None:
    """Return the range's marker; one with other bounds is of another range that had the same number."""
    marker = markers.get(record.slice_id)
    return marker if marker is not None and marker.has_bounds(record.bounds) else None


def _add_up(markers: Mapping[str, Marker]) -> tuple[int, int]:
    """Return the rows of all markers, and the sum of their checksums."""
    total = sum(_number(marker.checksum) for marker in markers.values()) % 2**64
    return sum(marker.rows for marker in markers.values()), total


def _choose_one(markers: Mapping[str, Marker]) -> Marker | None:
    """Return one of the markers: the target as a whole is hashed as it is.

    A plan that two releases have drained may have others. Then the sum differs, and its ranges are compared instead.
    """
    return next(iter(markers.values()), None)


def _number(checksum: str) -> int:
    return int(checksum.rpartition(":")[2], 16)


Item = TypeVar("Item")


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
