"""Arrow batches of a whole range into PostgreSQL: through a stage of the target's types, in one transaction."""

import io
import time
from collections.abc import Iterable
from functools import partial

import psycopg
import pyarrow
from pyarrow import csv

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.messages import ChecksumSpec, RangeSpec, SliceResult
from airflow_provider_backpressure.spark.batches import check_names, complete, whole
from airflow_provider_backpressure.spark.checksum import RowSum
from airflow_provider_backpressure.spark.connections import SOURCE
from airflow_provider_backpressure.spark.readers.postgres import Reading, reading
from airflow_provider_backpressure.spark.writers.postgres import SliceCommit
from airflow_provider_backpressure.spark.writers.stage import STAGE, copying, hash_stage, make_stage, move_stage

_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")
_HEX = b"\\x"


def write(sink: Endpoint, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]) -> SliceResult:
    """Write the rows of a range exactly once, as its first slice. See :class:`..spark.kinds.Writer`."""
    piece = whole(spec)
    return SliceCommit(spec=spec, piece=piece).run(sink, partial(_fill, spec, piece.slice_id, batches))


def checksum(sink: Endpoint, spec: ChecksumSpec) -> SliceResult:
    """Hash what PostgreSQL's binary COPY says of the rows. See :class:`..spark.kinds.Writer`."""
    total = RowSum()
    with (
        reading(sink, Reading(query=spec.query, name="bp-checksum", compared=True)) as rows,
        SOURCE.translated(sink),
    ):
        for messages in rows:
            total.update(messages)
        found = total.finish(rows.rows)
    return SliceResult(slice_id="", rows=total.rows, bytes=total.bytes, checksum=found)


def _fill(
    spec: RangeSpec, slice_id: str, batches: Iterable[pyarrow.RecordBatch], connection: psycopg.Connection
) -> SliceResult:
    target, reads, writes = spec.write, 0.0, 0.0
    make_stage(connection, target)
    rows = complete(batches)
    with copying(connection, STAGE, target.columns, "FORMAT csv") as copy:
        while True:
            started = time.perf_counter()
            batch = next(rows, None)
            read = time.perf_counter()
            reads += read - started
            if batch is None:
                break
            check_names(batch, target)
            copy.put(to_csv(batch))
            writes += time.perf_counter() - read
            reach(Step.IN_COPY, spec.tag)
    total, checksum = hash_stage(connection, target)
    move_stage(connection, target)
    return SliceResult(
        slice_id=slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=checksum,
        read_seconds=reads,
        write_seconds=writes,
    )


def to_csv(batch: pyarrow.RecordBatch) -> bytes:
    """Return rows as COPY reads them: text always in quotes, NULL never, bytes in hexadecimal."""
    columns = [_hexed(column) if _is_binary(column.type) else column for column in batch.columns]
    text = io.BytesIO()
    numbers = [str(number) for number in range(len(columns))]
    csv.write_csv(pyarrow.record_batch(columns, names=numbers), text, _OPTIONS)
    return text.getvalue()


def _is_binary(type_: pyarrow.DataType) -> bool:
    return type_ in (pyarrow.binary(), pyarrow.large_binary())


def _hexed(column: pyarrow.Array) -> pyarrow.Array:
    values = (None if value is None else (_HEX + value.hex().encode()).decode() for value in column.to_pylist())
    return pyarrow.array(values, pyarrow.string())
