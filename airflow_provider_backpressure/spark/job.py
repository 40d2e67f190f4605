"""Entry into Spark: what a task does, and the jobs made of such tasks.

A job is a DataFrame with one column ``result`` of JSON; collecting it runs the tasks. Logins travel inside the pickled
function of a job and nowhere else: options, configuration, tags and query text are shown by Spark's own pages.

What a task does is in a module of its path: a new worker imports that, and not the others, nor this one.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow

from airflow_provider_backpressure.core.connector_kinds import COPIED
from airflow_provider_backpressure.core.endpoints import Endpoint, endpoint_of
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    COPY,
    FRAME,
    REPLAY,
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    SliceResult,
    Transform,
)
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration, RangeFailed, from_text
from airflow_provider_backpressure.spark.frame_path import Function, describe_columns, frame_job, run_on_frame
from airflow_provider_backpressure.spark.readers_and_writers import SPARK_READ, SPARK_WRITTEN, task_module
from airflow_provider_backpressure.spark.task import (
    ERROR,
    RESULT,
    map_batches,
    measure,
    outcome,
    outcome_or_error,
)
from airflow_provider_backpressure.spark.value_hash import checksum_slice

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession


def range_job(
    session: "SparkSession",
    spec: RangeSpec,
    endpoints: Mapping[str, Endpoint],
    function: Function | None = None,
    profile: "ResourceProfile | None" = None,
) -> "DataFrame":
    """Return the job of a range. ``function``: what a transform without a reference means; ``profile``: its tasks'."""
    if _is_copy(spec):
        return _job(session, _copy_works(spec, endpoints), profile)
    source, sink = endpoint_of(endpoints, spec.read.conn_id), endpoint_of(endpoints, spec.write.conn_id)
    if spec.path == REPLAY:
        whole, *_ = spec.slices
        replay_slice = task_module(spec.write.kind, "change_apply").replay_slice
        return _job(session, [partial(measure, partial(replay_slice, spec, whole, source, sink))], profile)
    if spec.path == FRAME:
        return frame_job(session, spec, source, sink, function, profile)
    raise InvalidDeclaration(f"The path {spec.path!r} cannot be taken by range {spec.seq}.")


def run_range(
    session: "SparkSession",
    spec: RangeSpec,
    endpoints: Mapping[str, Endpoint],
    function: Function | None = None,
    profile: "ResourceProfile | None" = None,
) -> RangeResult:
    """Run a range in a session that stays, and return its result. Arguments as for :func:`range_job`."""
    if spec.write.kind == SPARK_WRITTEN:
        source = endpoint_of(endpoints, spec.read.conn_id)
        if spec.path == REPLAY:
            module = "spark_write_shared_log" if spec.tables else "spark_write_changes"
            result: RangeResult = task_module(SPARK_WRITTEN, module).run_window(session, spec, source, profile)
            return result
        return run_on_frame(session, spec, source, function, profile)
    return range_result(spec, range_job(session, spec, endpoints, function, profile).collect())


def run_checksums(
    session: "SparkSession", specs: Sequence[ChecksumSpec], endpoints: Mapping[str, Endpoint]
) -> tuple[SliceResult, ...]:
    """Run checksums, and return their results in the same order. Those of Spark's own tables take a job each."""
    by_task = [spec for spec in specs if not _is_spark_table(spec)]
    found = iter(slice_results(checksum_job(session, by_task, endpoints).collect()) if by_task else ())
    return tuple(
        _checksum_module(spec.kind).run_checksum(session, spec) if _is_spark_table(spec) else next(found)
        for spec in specs
    )


def _checksum_module(kind: str) -> ModuleType:
    return task_module(kind, "spark_read" if kind == SPARK_READ else "spark_write")


def _is_spark_table(spec: ChecksumSpec) -> bool:
    return spec.kind == SPARK_READ or (spec.kind == SPARK_WRITTEN and spec.read is None)


def joint_job(
    session: "SparkSession",
    specs: Sequence[RangeSpec],
    endpoints: Mapping[str, Endpoint],
    profile: "ResourceProfile | None" = None,
    *,
    tasks: int,
) -> "DataFrame":
    """Return the job of several ranges of :func:`may_share`, in so many tasks. One that fails ends no other one."""
    works = [work for spec in specs for work in _copy_works(spec, endpoints)]

    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield outcome_or_error(works[index])

    return map_batches(session.range(0, len(works), 1, min(len(works), tasks)), run, RESULT, profile)


def may_share(spec: RangeSpec) -> bool:
    """Whether a range may share a job: it is small, and a task of its own reads and writes it."""
    return spec.small and _is_copy(spec) and len(spec.slices) == 1


def joint_results(specs: Sequence[RangeSpec], rows: list[Any]) -> list[RangeResult | BackpressureError]:
    """Read the rows that :func:`joint_job` gave: what became of each range."""
    return [_joint_result(spec, one) for spec, one in zip(specs, rows, strict=True)]


def _joint_result(spec: RangeSpec, one: Any) -> RangeResult | BackpressureError:
    said = json.loads(one.result).get(ERROR)
    if said is None:
        return range_result(spec, [one])
    return from_text(said) or RangeFailed(said)


def checksum_job(
    session: "SparkSession", specs: Sequence[ChecksumSpec], endpoints: Mapping[str, Endpoint]
) -> "DataFrame":
    """Return the job of checksums: one task each, their results in the same order."""
    return _job(session, [partial(checksum_slice, spec, endpoint_of(endpoints, spec.conn_id)) for spec in specs])


def describe(
    session: "SparkSession", read: ReadSpec, transform: Transform, function: Function | None = None
) -> tuple[Column, ...]:
    """Return the columns that a transform makes, without reading a row."""
    return describe_columns(session, read, transform, function)


def slice_results(rows: list[Any]) -> tuple[SliceResult, ...]:
    """Read the rows that a job gave."""
    return tuple(SliceResult(**json.loads(row.result)) for row in rows)


def range_result(spec: RangeSpec, rows: list[Any]) -> RangeResult:
    """Read the rows that :func:`range_job` gave."""
    return RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=slice_results(rows))


def _is_copy(spec: RangeSpec) -> bool:
    return spec.path == COPY and spec.transform is None and (spec.read.kind, spec.write.kind) in COPIED


def _copy_works(spec: RangeSpec, endpoints: Mapping[str, Endpoint]) -> list[Callable[[], SliceResult]]:
    source, sink = endpoint_of(endpoints, spec.read.conn_id), endpoint_of(endpoints, spec.write.conn_id)
    run_slice = task_module(spec.write.kind, "copy").run_slice
    return [partial(run_slice, spec, piece, source, sink) for piece in spec.slices]


def _job(
    session: "SparkSession", tasks: list[Callable[[], SliceResult]], profile: "ResourceProfile | None" = None
) -> "DataFrame":
    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield outcome(tasks[index])

    return map_batches(session.range(0, len(tasks), 1, len(tasks)), run, RESULT, profile)
