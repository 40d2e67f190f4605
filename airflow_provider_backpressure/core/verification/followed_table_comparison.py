"""Comparison of a followed table with its source by value, range by range, while windows of its log go in.

Source and target are read in snapshots of their own (:mod:`..core.ports.comparison_snapshots`). What the source's
snapshot sees and the target does not have yet is worked out from the log, so that a row that changes all the time is
compared too, and a difference is never one of time. Neither side is locked, and no snapshot is kept for longer than a
turn.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.poll_policy import Clock, SystemClock
from airflow_provider_backpressure.core.ports import ChangeLog, Runner, SharesLog, Source
from airflow_provider_backpressure.core.ports.comparison_snapshots import (
    HasSourceMoments,
    HasTargetMoments,
    Late,
    SourceMoment,
    TargetMoment,
)
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, NullBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    COPY,
    ChecksumSpec,
    ReadSpec,
    SliceResult,
    choose_path,
)
from airflow_provider_backpressure.core.verification.mismatch_report import Mismatch, Report
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LogLost, SinkRefused, SnapshotLost

log = logging.getLogger(__name__)

TURN_SECONDS = 60.0
"""How long ranges are begun in one pair of snapshots."""
LOG_SHARE = 10
"""A turn lasts at least so many times as long as it took to read the log for it."""
MOST_SECONDS = 900.0
"""But no longer than that: the source keeps what is deleted for as long as its snapshot."""
TRIES = 5
"""Most snapshots that are lost one after another without a range being compared."""
PAUSE_SECONDS = 1.0
ROWS, BYTES = 250_000, 64 * 2**20
"""Most rows and bytes of a range that is cut to be compared."""
SUFFIX = "_log"
Piece = tuple[int, Bounds | None]
"""Number and bounds of a range; -1 and ``None``: the table as a whole."""
UNLIKE = (
    "verify='full' compares a followed table only where its target has the same columns and types as the source: use "
    "verify='target'."
)
UNABLE = "verify='full' cannot compare {} while its changes are followed: use verify='target'."


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Source and target as two snapshots show them, and what the log says of their difference."""

    source: SourceMoment
    target: TargetMoment
    until: float
    """When, by the clock, no more ranges are begun in it."""


@dataclass(kw_only=True)
class FollowedVerifier:
    """Compares the ranges of one followed table on the executors, some at a time."""

    plan: Plan
    source: Source
    sink: Sink
    runner: Runner
    hydration_id: str
    at_once: int
    on_range: Callable[[int, int | None], None] | None = None
    clock: Clock = field(default_factory=SystemClock)
    _committed: int = 0
    _done: int = 0
    _rows: int = 0
    _sum: int = 0

    def verify(self, ranges: Sequence[tuple[int, Bounds]] | None) -> Report:
        """Compare these ranges, or those that the source is cut into now; a range that differs is compared twice.

        ``InvalidDeclaration`` where source and target cannot be compared. ``LedgerRefused`` where windows are to be
        replayed first, or ranges to be read.
        """
        self._check()
        self._committed = len(ranges or ())
        pieces = self._list_pieces(ranges)
        doubted = {piece: found for piece, found in self._compare_all(pieces, of=len(pieces)) if found}
        if doubted:
            log.info("%s of %s ranges differ, and are compared once more: %s", len(doubted), len(pieces), self._label)
        found = {piece: said for piece, said in self._compare_all([*doubted], of=None) if said} if doubted else {}
        return Report(
            ranges=len(pieces),
            rows=self._rows,
            checksum=f"{self._sum % 2**64:016x}",
            mismatches=tuple(
                Mismatch(seq=seq, sentence=self._name(seq, bounds, said)) for (seq, bounds), said in found.items()
            ),
        )

    @property
    def _label(self) -> str:
        return self.plan.write.fence

    @property
    def _read(self) -> ReadSpec:
        """Return how rows are read: as a plan of ranges reads them."""
        read = self.plan.read
        return replace(read, kind=read.kind.removesuffix(SUFFIX), window=None, tells_position=False)

    def _check(self) -> None:
        if not isinstance(self.source, HasSourceMoments) or not isinstance(self.sink, HasTargetMoments):
            raise InvalidDeclaration(UNABLE.format(self.plan.source_identity))
        if choose_path(self._read, self.plan.write, None) != COPY:
            raise InvalidDeclaration(UNLIKE)

    def _list_pieces(self, ranges: Sequence[tuple[int, Bounds]] | None) -> list[Piece]:
        """Return the ranges, or the whole table where its rows in the target cannot be separated by them."""
        if ranges is None:
            snapshot = self.source.snapshot(Consistency.CATCH_UP)
            planned = self.source.ranges(snapshot, rows=ROWS, bytes=BYTES)
            ranges = [(each.seq, each.bounds) for each in planned]
        try:
            for _, bounds in ranges[:1]:
                self.sink.slice_query(self.plan.write, bounds)
        except SinkRefused as error:
            log.info("The table is compared as a whole: %s", error)
            return [(-1, None)]
        assert isinstance(self.sink, HasTargetMoments), "checked"
        # An empty source may have rows in the target.
        return [*ranges, *_list_keyless(ranges, self.sink.find_nullable(self.plan.write))] or [(-1, None)]

    def _compare_all(self, pieces: Sequence[Piece], *, of: int | None) -> Iterator[tuple[Piece, str]]:
        """Yield each range with how it differs, in words. ``of``: how many there are; ``None``: they were counted."""
        left, lost = [*pieces], 0
        while left:
            try:
                with self._open() as moment:
                    # At least one batch for each moment, however long that took to open.
                    over = False
                    while left and not over:
                        batch = left[: self.at_once]
                        found = self._compare(moment, batch)
                        left, lost = left[len(batch) :], 0
                        if of is not None:
                            self._report(found, of)
                        yield from zip(batch, [each.difference for each in found], strict=True)
                        over = self.clock.monotonic() >= moment.until
            except (SnapshotLost, LogLost) as error:
                # Windows went in meanwhile and let the log go, or the table was rewritten.
                lost += 1
                if lost == TRIES:
                    raise
                log.info("Ranges of %s are compared as of another moment: %s", self._label, error)
                self.clock.sleep(PAUSE_SECONDS)

    @contextmanager
    def _open(self) -> Iterator[Moment]:
        """Open both sides, the target first: what it has, the source's later snapshot sees."""
        assert isinstance(self.source, HasSourceMoments), "checked"
        assert isinstance(self.sink, HasTargetMoments), "checked"
        with closing(self.sink.open_moment(self.plan, committed=self._committed)) as target:
            read = replace(target.plan.read, kind=target.plan.read.kind.removesuffix(SUFFIX))
            with closing(self.source.open_moment(read, self._open_log())) as source:
                begun = self.clock.monotonic()
                late = target.bring(source.changes(target.at, target.plan.write.key))
                now = self.clock.monotonic()
                log.info("%s is compared at %s, with %s later changes.", self._label, target.at.label, late)
                yield Moment(source=source, target=target, until=now + choose_turn(now - begun))

    def _open_log(self) -> ChangeLog:
        if not self.plan.stream:
            return self.source.log(self.hydration_id)
        assert isinstance(self.source, SharesLog), "its plan says so"
        return self.source.get_shared_log(self.plan.stream)

    def _compare(self, moment: Moment, batch: Sequence[Piece]) -> list["Compared"]:
        jobs = [(bounds, *self._start(moment, bounds)) for _, bounds in batch]
        try:
            # Before the jobs are waited for, which may take longer than the target lets a session do nothing.
            late = [moment.target.measure_late(bounds) for bounds, *_ in jobs]
            return [
                compare_late(each, target.result(), source.result())
                for each, (_, target, source) in zip(late, jobs, strict=True)
            ]
        finally:
            # None of them may read in a snapshot that is let go.
            for _, *sides in jobs:
                for side in sides:
                    side.cancel() or side.exception()

    def _start(self, moment: Moment, bounds: Bounds | None) -> tuple["Future[SliceResult]", "Future[SliceResult]"]:
        read, write = self._read, self.plan.write
        whole = KeyBounds(columns=(), start=None, end=None)
        query = self.source.slice(read, whole if bounds is None else bounds, "").query
        there = ChecksumSpec(
            kind=write.kind,
            conn_id=write.conn_id,
            query=self.sink.slice_query(write, bounds),
            snapshot=moment.target.snapshot,
        )
        here = ChecksumSpec(
            kind=read.kind,
            conn_id=read.conn_id,
            query=query,
            snapshot=moment.source.snapshot,
            storage=moment.source.storage,
        )
        return self.runner.checksum(there), self.runner.checksum(here)

    def _name(self, seq: int, bounds: Bounds | None, said: str) -> str:
        if bounds is None:
            return said
        return f"range {seq} ({bounds}): {said}" if seq >= 0 else f"{bounds}: {said}"

    def _report(self, found: Sequence["Compared"], of: int) -> None:
        self._done += len(found)
        self._rows += sum(each.rows for each in found)
        self._sum += sum(each.total for each in found)
        if self.on_range is not None:
            self.on_range(self._done, of)


def choose_turn(seconds: float) -> float:
    """Return for how many seconds ranges are begun in a pair of snapshots whose log took so long to read."""
    return max(TURN_SECONDS, min(LOG_SHARE * seconds, MOST_SECONDS))


def _list_keyless(ranges: Sequence[Piece], nullable: Collection[str]) -> list[Piece]:
    """Return pieces for the rows that no range has: those without a value of the key, which only the target may hold.

    ``nullable``: the key's columns that may be NULL there. A row that lacks a later column only may be in a range too.
    It is a difference in both then.
    """
    keyed = [bounds for _, bounds in ranges if isinstance(bounds, KeyBounds)]
    if not keyed or any(bounds.is_open for bounds in keyed):
        return []
    there = {bounds.column for _, bounds in ranges if isinstance(bounds, NullBounds)}
    return [(-1, NullBounds(column=name)) for name in keyed[0].columns if name in nullable and name not in there]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What one range holds in the target, with what the log makes of it, and how that differs from the source."""

    rows: int
    total: int
    """Sum of its hashes."""
    difference: str
    """In words; empty where there is none."""


def compare_late(late: Late, target: SliceResult, source: SliceResult) -> Compared:
    """Compare a range of the target, changed as the log says, with that of the source."""
    rows, total = late.after.rows, _number(late.after.checksum)
    if late.before is not None:
        # Of an emptied table no row of before counts.
        rows += target.rows - late.before.rows
        total += _number(target.checksum) - _number(late.before.checksum)
    total, wanted = total % 2**64, _number(source.checksum)
    difference = ""
    if rows != source.rows:
        difference = f"the target holds {rows} rows, and the source {source.rows}"
    elif total != wanted:
        difference = f"of {rows} rows the target's checksum is {total:016x}, and the source's {wanted:016x}"
    return Compared(rows=rows, total=total, difference=difference)


def _number(checksum: str) -> int:
    return int(checksum.rpartition(":")[2] or "0", 16)
