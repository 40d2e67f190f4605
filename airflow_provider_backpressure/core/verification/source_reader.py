"""How a range of the source is read once more, to be compared with what was committed of it."""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from airflow_provider_backpressure.core.connector_kinds import READ_AS_SOURCES
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.core.ports.sink import Marker, Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    COPY,
    ChecksumSpec,
    ReadSpec,
    SliceResult,
    digest_row,
)

PARALLEL = 2
"""Ranges that are compared at once."""
TOGETHER = 64
"""Ranges that are handed over at once where a job costs seconds: the runner does them together."""
_INTEGERS = frozenset({"smallint", "integer", "bigint"})


def choose_batch(runner: Runner) -> int:
    """Return how many ranges are compared at once."""
    return PARALLEL if runner.overhead_seconds < 1 else TOGETHER


@dataclass(frozen=True, kw_only=True)
class SourceReader:
    """Reads ranges of a plan's source again on the executors, for their count and checksum."""

    plan: Plan
    source: Source
    sink: Sink
    runner: Runner
    snapshot: str | None = None
    """The exported snapshot in which they are read; ``None``: as they are now."""

    @property
    def reads_target(self) -> bool:
        """Whether the target's rows have to be hashed as the source's are: its markers hash them in another way."""
        return self.plan.path != COPY and self.plan.write.kind in READ_AS_SOURCES

    def start(self, record: RangeRecord, marker: Marker | None) -> "list[Future[SliceResult]]":
        """Begin to read a range: from the source, and where :attr:`reads_target` from the target by its values."""
        read, write = self.plan.read, self.plan.write
        piece = self.source.slice(read, record.bounds, record.slice_id)
        if self.plan.path == COPY:
            again = ChecksumSpec(
                kind=read.kind,
                conn_id=read.conn_id,
                query=piece.query,
                snapshot=self.snapshot,
                storage=read.storage if self.snapshot else None,
                like=marker.checksum if marker is not None else "",
            )
            return [self.runner.checksum(again)]
        quarantine = self._read_quarantine(marker)
        values = ChecksumSpec(
            kind=read.kind,
            conn_id=read.conn_id,
            query=piece.query,
            read=replace(read, snapshot=self.snapshot),
            bounds=dict(piece.bounds),
            quarantined=tuple(map(digest_row, quarantine)),
            quarantined_at=_find_values(read, quarantine),
        )
        jobs = [self.runner.checksum(values)]
        if self.reads_target:
            there = ReadSpec(kind=write.kind, conn_id=write.conn_id, columns=write.columns)
            window = read.window if self.plan.increment else None
            query = self.sink.slice_query(write, record.bounds, window)
            jobs.append(
                self.runner.checksum(ChecksumSpec(kind=write.kind, conn_id=write.conn_id, query=query, read=there))
            )
        return jobs

    def _read_quarantine(self, marker: Marker | None) -> tuple[str, ...]:
        """Return a range's rows that the target has refused, as JSON: the source still has them."""
        if marker is None or not marker.quarantined:
            return ()
        return self.sink.read_quarantine(self.plan, marker.slice_id)


def _find_values(read: ReadSpec, rows: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the values by which most of these rows differ, of one column of integers; nothing where none has any."""
    try:
        found = [json.loads(row) for row in rows]
    except ValueError:
        # A long row is kept in part.
        return {}
    every = [
        (column.name, tuple({row.get(column.name) for row in found}))
        for column in read.columns
        if column.base_type in _INTEGERS
    ]
    whole = [(name, values) for name, values in every if values and None not in values]
    return dict([max(whole, key=lambda each: len(each[1]))]) if whole else {}
