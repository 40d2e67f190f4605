"""Arrow batches of a whole range into a table of files: Parquet, Delta or Iceberg. Rows and mark appear in one step."""

import json
from collections.abc import Callable, Iterable
from contextlib import closing

import pyarrow

from airflow_provider_backpressure.connectors.lake.base_table import LakeTable, open_table
from airflow_provider_backpressure.connectors.lake.last_row_per_key import Order, within
from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import Files, cast
from airflow_provider_backpressure.connectors.lake.tasks.quarantine import QuarantineWriter
from airflow_provider_backpressure.connectors.lake.tasks.time_report import report_times
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.bounds import check_marked
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    RangeSpec,
    SliceResult,
    Window,
    columns_from_json,
)
from airflow_provider_backpressure.exceptions import PlanSuperseded, RangeFailed
from airflow_provider_backpressure.spark.column_types import arrow_schema
from airflow_provider_backpressure.spark.reader_timings import time_handovers
from airflow_provider_backpressure.spark.stream_end import (
    apart,
    check_names,
    complete,
    split_marks,
    to_one_slice,
)
from airflow_provider_backpressure.spark.value_hash import BatchSum


def write(
    sink: Endpoint,
    spec: RangeSpec,
    batches: Iterable[pyarrow.RecordBatch],
    read_at: Callable[[], str] | None = None,
) -> SliceResult:
    """Write the rows of a range exactly once, as its first slice. See :class:`..spark.readers_and_writers.Writer`."""
    attempt = Attempt.create(spec, to_one_slice(spec))
    with closing(open_table(spec.write.kind, spec.write.plan_table, sink)) as table:
        with table.translate_errors():
            attempt.check(table.holder(), table.name)
            found = table.marks(attempt.plan_id, [attempt.slice_id]).get(attempt.slice_id)
        if found is not None:
            return _result(found, attempt)
        with report_times(table, attempt):
            return _written(sink, table, attempt, spec, batches)


def checksum(sink: Endpoint, spec: ChecksumSpec) -> SliceResult:
    """Count and hash the values in a table's files. See :class:`..spark.readers_and_writers.Writer`."""
    query = json.loads(spec.query)
    schema = arrow_schema(columns_from_json(query["columns"]))
    window = Window(**query["window"]) if query["window"] else None
    total = BatchSum()
    with closing(open_table(spec.kind, query["at"], sink)) as table, table.translate_errors():
        for batch in table.read(query["files"]):
            total.update(cast(within(batch, window), schema))
    return SliceResult(slice_id="", rows=total.rows, bytes=total.bytes, checksum=str(total))


def _written(
    sink: Endpoint, table: LakeTable, attempt: Attempt, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]
) -> SliceResult:
    """Write files that nobody sees, and commit them; they are deleted where it is certain that they never will be.

    A commit that ends in an error may have succeeded all the same: then its files are the table's.
    """
    write = spec.write
    key = write.key if write.mode == Mode.UPSERT else ()
    order = Order(key=key, name=table.name) if write.ordered else None
    files = Files(
        table=table, attempt=attempt, schema=table.to_stored_schema(arrow_schema(write.columns)), key=key, order=order
    )
    aside = QuarantineWriter(sink=sink, spec=spec, attempt=attempt)
    try:
        mark = _stage(files, spec, batches, aside)
        settled = order.settle() if order is not None and mark.rows else None
    except BaseException:
        files.drop()
        raise
    reach(Step.BEFORE_SINK_COMMIT, attempt.tag)
    try:
        with table.translate_errors():
            stands = table.commit(attempt, mark, write, settled)
    except (PlanSuperseded, RangeFailed):
        files.drop()
        raise
    if stands.nonce == attempt.nonce:
        reach(Step.AFTER_SINK_COMMIT, attempt.tag)
    else:
        files.drop()
        aside.restore()
    return _result(stands, attempt)


def _stage(files: Files, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch], aside: QuarantineWriter) -> Mark:
    """Return the mark of what was written."""
    for batch in time_handovers(complete(batches)):
        good, bad = apart(batch, keep_bad=spec.read.keep_bad)
        good, marks = split_marks(good, spec.write.place) if spec.write.ordered else (good, None)
        check_names(good, spec.write)
        for row, reason in bad:
            aside.refuse(row, reason)
        aside.put_what_fits(files, good, marks)
        reach(Step.IN_COPY, files.attempt.tag)
    kept = aside.commit()
    with files.table.translate_errors():
        return files.finish(quarantined=kept)


def _result(mark: Mark, attempt: Attempt) -> SliceResult:
    """Return what the slice's mark says, whichever attempt has made it; ``LedgerRefused`` for one of other bounds."""
    check_marked(mark.bounds, attempt.bounds, slice_id=attempt.slice_id, plan_id=attempt.plan_id)
    return SliceResult(
        slice_id=mark.slice_id,
        rows=mark.rows,
        bytes=mark.bytes,
        checksum=mark.checksum,
        quarantined=mark.quarantined,
    )
