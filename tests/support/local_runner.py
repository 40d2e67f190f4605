"""A runner without Spark: threads or processes of this host carry ranges out by the code that Spark's tasks run."""

import multiprocessing
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from airflow_provider_backpressure.connectors.postgres.tasks.change_apply import replay_slice
from airflow_provider_backpressure.connectors.postgres.tasks.copy import copy_slice
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.ports import ExecutorEnvironment
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    COPY,
    REPLAY,
    ChecksumSpec,
    RangeResult,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
)
from airflow_provider_backpressure.exceptions import RangeFailed
from airflow_provider_backpressure.spark import frame_path as frame
from airflow_provider_backpressure.spark import value_hash as checksum
from airflow_provider_backpressure.spark.readers_and_writers import writer
from airflow_provider_backpressure.spark.stream_end import append_end, hidden_columns
from airflow_provider_backpressure.spark.task import measure

START_SECONDS = 240.0
THREADS = 16


@dataclass(kw_only=True)
class LocalRunner:
    """Carries out as many ranges at once as the pool has workers. It implements ``Runner`` without a transform."""

    logins: Mapping[str, Endpoint]
    """Endpoints by connection id."""
    pool: Executor = field(default_factory=partial(ThreadPoolExecutor, THREADS))
    """Only processes measure what a range's stages did: they are measured by process."""
    session_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    overhead_seconds: float = 0.0
    returns_results: bool = True
    on_submit: Callable[[RangeSpec, "Future[RangeResult]"], None] = lambda spec, future: None
    """Called in the lane's thread with each range that was begun."""
    submitted: list[tuple[float, RangeSpec]] = field(default_factory=list)
    """Each range with its time since the epoch, in the order of submission."""
    results: list[RangeResult] = field(default_factory=list)

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See ``Runner.run``."""
        self.submitted.append((time.time(), spec))
        source, sink = self._login(spec.read.conn_id), self._login(spec.write.conn_id)
        timed = isinstance(self.pool, ProcessPoolExecutor)
        future = self.pool.submit(carry_out, spec, source, sink, timed=timed)
        future.add_done_callback(self._keep)
        self.on_submit(spec, future)
        return future

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        """See ``Runner.probe``."""
        python = ".".join(platform.python_version_tuple()[:2])
        return ExecutorEnvironment(python=python, modules={name: _version(name) for name in modules})

    def describe(self, read: ReadSpec, transform: Any) -> Any:
        """See ``Runner.describe``."""
        raise NotImplementedError("A transform needs Spark.")

    def checksum(self, spec: ChecksumSpec) -> "Future[SliceResult]":
        """See ``Runner.checksum``."""
        return self.pool.submit(checksum._checksum, spec, self._login(spec.conn_id))

    def interrupt(self, session_id: str, tag: str) -> None:
        """See ``Runner.interrupt``: nothing is interrupted, so every attempt that was given up is a zombie."""

    def memory(self) -> MemoryReading:
        """See ``Runner.memory``: there is room enough."""
        return MemoryReading(used_bytes=1, limit_bytes=2**40, age_seconds=0.0, slots=8, slots_each=8)

    def close(self) -> None:
        """See ``Runner.close``: waits for threads; processes are the caller's."""
        if isinstance(self.pool, ThreadPoolExecutor):
            self.pool.shutdown(wait=True)

    def _login(self, conn_id: str | None) -> Endpoint:
        return self.logins.get(conn_id or "", NOWHERE)

    def _keep(self, done: "Future[RangeResult]") -> None:
        if not done.cancelled() and done.exception() is None:
            self.results.append(done.result())


@contextmanager
def processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Give so many processes, all of them started, so that no measurement contains the time of an import."""
    spawn = multiprocessing.get_context("spawn")
    everybody = spawn.Barrier(number)
    with ProcessPoolExecutor(number, spawn, initializer=_meet, initargs=(everybody,)) as pool:
        for started in [pool.submit(_nothing) for _ in range(number)]:
            started.result(START_SECONDS)
        yield pool


def carry_out(spec: RangeSpec, source: Endpoint, sink: Endpoint, *, timed: bool) -> RangeResult:
    """Carry out a range in this thread. ``timed``: with what its stages did, which needs the process for itself."""
    works = [partial(_slice, spec, piece, source, sink) for piece in spec.slices]
    if spec.path not in (COPY, REPLAY):
        works = [partial(_framed, spec, source, sink)]
    results = tuple(measure(work) if timed else work() for work in works)
    return RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=results)


def _slice(spec: RangeSpec, piece: Slice, source: Endpoint, sink: Endpoint) -> SliceResult:
    return (replay_slice if spec.path == REPLAY else copy_slice)(spec, piece, source, sink)


def _framed(spec: RangeSpec, source: Endpoint, sink: Endpoint) -> SliceResult:
    """Do what the frame path does without a transform."""
    trusting = replace(spec, read=replace(spec.read, trusts=frame._target_looks(spec)))
    rows = (batch for piece in spec.slices for batch in frame._read(trusting, piece, source))
    told = partial(frame._position, spec, source) if spec.read.tells_position else None
    given = append_end(rows, spec.read.columns, hidden_columns(spec.read))
    return writer(spec.write.kind).write(sink, spec, given, told)


def _meet(everybody: Any) -> None:
    everybody.wait(START_SECONDS)


def _nothing() -> None:
    pass


def _version(name: str) -> str | None:
    try:
        return version(name.replace("_", "-"))
    except ModuleNotFoundError:
        return None


def fail_range(message: str) -> "Future[Any]":
    """Return an attempt at a range that has failed."""
    failed: Future[Any] = Future()
    failed.set_exception(RangeFailed(message))
    return failed
