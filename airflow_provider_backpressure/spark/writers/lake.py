"""Arrow batches of a whole range into a table of files: Parquet, Delta or Iceberg. Rows and mark appear in one step."""

import json
import time
from collections.abc import Iterable
from contextlib import closing

import pyarrow

from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.messages import (
    ChecksumSpec,
    RangeSpec,
    SliceResult,
    Window,
    columns_from_json,
)
from airflow_provider_backpressure.exceptions import PlanSuperseded
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
    """Write files that nobody sees, and commit them; they are deleted where it is certain that they never will be.

    A commit that ends in an error may have come through all the same: then its files are the table's.
    """
    write = spec.write
    key = write.key if write.mode == Mode.UPSERT else ()
    files = Files(table=table, attempt=attempt, schema=table.stored(arrow_schema(write.columns)), key=key)
    try:
        mark, reads, writes = _staged(files, spec, batches)
    except BaseException:
        files.drop()
        raise
    reach(Step.BEFORE_SINK_COMMIT, attempt.tag)
    try:
        with table.translated():
            stands = table.commit(attempt, mark, write)
    except PlanSuperseded:
        files.drop()
        raise
    if stands.nonce == attempt.nonce:
        reach(Step.AFTER_SINK_COMMIT, attempt.tag)
    else:
        files.drop()
    return _result(stands, reads, writes)


def _staged(files: Files, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]) -> tuple[Mark, float, float]:
    """Return the mark of what was written, and the seconds that went into reading and writing."""
    reads = writes = 0.0
    rows = complete(batches)
    while True:
        started = time.perf_counter()
        batch = next(rows, None)
        read = time.perf_counter()
        reads += read - started
        if batch is None:
            break
        check_names(batch, spec.write)
        with files.table.translated():
            files.put(batch)
        writes += time.perf_counter() - read
        reach(Step.IN_COPY, files.attempt.tag)
    with files.table.translated():
        return files.finish(), reads, writes


def _result(mark: Mark, reads: float = 0.0, writes: float = 0.0) -> SliceResult:
    return SliceResult(
        slice_id=mark.slice_id,
        rows=mark.rows,
        bytes=mark.bytes,
        checksum=mark.checksum,
        read_seconds=reads,
        write_seconds=writes,
    )
