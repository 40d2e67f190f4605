"""Arrow batches of a whole range into a table of files: Parquet, Delta or Iceberg. Rows and mark appear in one step."""

import json
import time
from collections.abc import Iterable
from contextlib import closing

import pyarrow

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.messages import (
    ChecksumSpec,
    RangeSpec,
    SliceResult,
    Window,
    columns_from_json,
)
from airflow_provider_backpressure.lakes.marks import Attempt, Mark
from airflow_provider_backpressure.lakes.table import LakeTable, open_table
from airflow_provider_backpressure.lakes.types import arrow_schema
from airflow_provider_backpressure.lakes.windows import within
from airflow_provider_backpressure.spark.batches import check_names, complete, whole
from airflow_provider_backpressure.spark.checksum import BatchSum
from airflow_provider_backpressure.spark.writers.lake_files import Files, cast


def write(sink: Endpoint, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]) -> SliceResult:
    """Write the rows of a range exactly once, as its first slice. See :class:`..spark.kinds.Writer`."""
    attempt = Attempt.of(spec, whole(spec))
    with closing(open_table(spec.write.kind, spec.write.plan_table, sink)) as table:
        with table.translated():
            attempt.check(table.holder(), table.name)
            found = table.marks(attempt.plan_id, [attempt.slice_id]).get(attempt.slice_id)
        if found is not None:
            return _result(found)
        return _written(table, attempt, spec, batches)


def checksum(sink: Endpoint, spec: ChecksumSpec) -> SliceResult:
    """Count and hash the values in a table's files. See :class:`..spark.kinds.Writer`."""
    query = json.loads(spec.query)
    schema = arrow_schema(columns_from_json(query["columns"]))
    window = Window(**query["window"]) if query["window"] else None
    total = BatchSum()
    with closing(open_table(spec.kind, query["at"], sink)) as table, table.translated():
        for batch in table.read(query["files"]):
            total.update(cast(within(batch, window), schema))
    return SliceResult(slice_id="", rows=total.rows, bytes=total.bytes, checksum=str(total))


def _written(
    table: LakeTable, attempt: Attempt, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]
) -> SliceResult:
    files = Files(table=table, attempt=attempt, schema=arrow_schema(spec.write.columns))
    reads = writes = 0.0
    rows = complete(batches)
    kept = False
    try:
        while True:
            started = time.perf_counter()
            batch = next(rows, None)
            read = time.perf_counter()
            reads += read - started
            if batch is None:
                break
            check_names(batch, spec.write)
            with table.translated():
                files.put(batch)
            writes += time.perf_counter() - read
            reach(Step.IN_COPY, attempt.tag)
        with table.translated():
            mark = files.finish()
            reach(Step.BEFORE_SINK_COMMIT, attempt.tag)
            stands = table.commit(attempt, mark, spec.write)
        kept = stands.nonce == attempt.nonce
    finally:
        if not kept:
            files.drop()
    if kept:
        reach(Step.AFTER_SINK_COMMIT, attempt.tag)
    return _result(stands, reads, writes)


def _result(mark: Mark, reads: float = 0.0, writes: float = 0.0) -> SliceResult:
    return SliceResult(
        slice_id=mark.slice_id,
        rows=mark.rows,
        bytes=mark.bytes,
        checksum=mark.checksum,
        read_seconds=reads,
        write_seconds=writes,
    )
