"""The runner without Spark."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.ports import ExecutorEnvironment
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
    Transform,
)
from airflow_provider_backpressure.exceptions import PlanSuperseded, RangeFailed, SinkRefused, SnapshotLost
from airflow_provider_backpressure.testing.sink import MemorySink, checksum_of
from airflow_provider_backpressure.testing.source import MemorySource


@dataclass(kw_only=True)
class MemoryRunner:
    """Copies from a :class:`MemorySource` into a :class:`MemorySink`, at once or when a test says so.

    Implements ``Runner``.
    """

    source: MemorySource
    sink: MemorySink
    session_id: str = "memory-session"
    overhead_seconds: float = 0.0
    returns_results: bool = True
    held: bool = False
    """Keep jobs pending until :meth:`complete`; otherwise each is done when it is submitted."""
    reading: MemoryReading | None = field(
        default_factory=lambda: MemoryReading(used_bytes=0, limit_bytes=2**30, age_seconds=0.0)
    )
    failures: dict[int, list[Exception]] = field(default_factory=dict)
    """Errors to raise, by range, one per attempt, before the sink is written."""
    submitted: list[RangeSpec] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    modules: Mapping[str, str | None] = field(
        default_factory=lambda: {"numpy": "2", "psycopg": "3", "pyarrow": "15", "xxhash": "3"}
    )
    _pending: list[tuple[RangeSpec, "Future[RangeResult]"]] = field(default_factory=list)

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        return ExecutorEnvironment(python="3.11", modules=self.modules)

    def describe(self, read: ReadSpec, transform: Transform) -> tuple[Column, ...]:
        return read.columns

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        future: Future[RangeResult] = Future()
        self.submitted.append(spec)
        self._pending.append((spec, future))
        if not self.held:
            self.complete()
        return future

    def complete(self, count: int | None = None) -> int:
        """Carry out pending jobs, the oldest first, and return how many there were."""
        todo = self._pending[: len(self._pending) if count is None else count]
        del self._pending[: len(todo)]
        for spec, future in todo:
            self._carry_out(spec, future)
        return len(todo)

    def _carry_out(self, spec: RangeSpec, future: "Future[RangeResult]") -> None:
        errors = self.failures.get(spec.seq)
        if errors:
            future.set_exception(errors.pop(0))
            return
        try:
            results = tuple(self._copy(spec, piece) for piece in spec.slices)
        except (PlanSuperseded, RangeFailed, SinkRefused, SnapshotLost) as error:
            future.set_exception(error)
            return
        slices = results if self.returns_results else ()
        future.set_result(RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=slices))

    def _copy(self, spec: RangeSpec, piece: Slice) -> SliceResult:
        sink = self.sink.beside.get(spec.write.fence, self.sink)
        keys = self.source.read(piece.query)
        found = SliceResult(slice_id=piece.slice_id, rows=len(keys), bytes=8 * len(keys), checksum=checksum_of(keys))
        if spec.is_unchanged(found):
            return replace(found, unchanged=True)
        marker = sink.commit(spec, piece, keys)
        return SliceResult(
            slice_id=piece.slice_id,
            rows=marker.rows,
            bytes=marker.bytes,
            checksum=marker.checksum,
            peak_memory_bytes=2**20,
        )

    def checksum(self, spec: ChecksumSpec) -> "Future[SliceResult]":
        """See ``Runner.checksum``; the connection id says whether source or sink is read."""
        side: Any = self.sink if spec.conn_id == "sink" else self.source
        keys = side.read(spec.query)
        future: Future[SliceResult] = Future()
        future.set_result(SliceResult(slice_id="", rows=len(keys), bytes=8 * len(keys), checksum=checksum_of(keys)))
        return future

    def interrupt(self, session_id: str, tag: str) -> None:
        """See ``Runner.interrupt``: pending jobs of this tag never run."""
        self.interrupted.append(tag)
        self._pending = [(spec, future) for spec, future in self._pending if spec.tag != tag]

    def memory(self) -> MemoryReading | None:
        return self.reading

    def close(self) -> None:
        """See ``Runner.close``."""
