"""Arrow batches of a whole range into PostgreSQL: through a stage of the target's types, in one transaction."""

import io
import time
from collections.abc import Iterable, Iterator
from functools import partial

import psycopg
import pyarrow
import pyarrow.compute
from pyarrow import csv

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.messages import RangeSpec, Slice, SliceResult, WriteSpec
from airflow_provider_backpressure.exceptions import RangeFailed, RunnerRefused
from airflow_provider_backpressure.spark.writers.postgres import SliceCommit
from airflow_provider_backpressure.spark.writers.stage import STAGE, copying, hash_stage, make_stage, move_stage

END = "backpressure_end"
"""Last column of what is written: true in one row that stands behind all others and is not written itself."""
_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")
_HEX = b"\\x"


def write_range(spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch], sink: Endpoint) -> SliceResult:
    """Write the rows of a range exactly once, as its first slice; errors as in :meth:`SliceCommit.run`.

    ``RangeFailed`` where the batches end without the row that :data:`END` marks: a worker whose input breaks off sees
    an ordinary end of it, and half a range must not be committed.
    """
    piece = whole(spec)
    return SliceCommit(spec=spec, piece=piece).run(sink, partial(_fill, spec, piece.slice_id, batches))


def whole(spec: RangeSpec) -> Slice:
    """Return the range as one slice, since after a transform it can only be committed as a whole."""
    first, *others = spec.slices
    if not others:
        return first
    return Slice(slice_id=first.slice_id, query="", bounds={"pieces": [dict(piece.bounds) for piece in spec.slices]})


def _fill(
    spec: RangeSpec, slice_id: str, batches: Iterable[pyarrow.RecordBatch], connection: psycopg.Connection
) -> SliceResult:
    write, reads, writes = spec.write, 0.0, 0.0
    make_stage(connection, write)
    rows = complete(batches)
    with copying(connection, STAGE, write.columns, "FORMAT csv") as copy:
        while True:
            started = time.perf_counter()
            batch = next(rows, None)
            read = time.perf_counter()
            reads += read - started
            if batch is None:
                break
            check_names(batch, write)
            copy.put(to_csv(batch))
            writes += time.perf_counter() - read
            reach(Step.IN_COPY, spec.tag)
    total, checksum = hash_stage(connection, write)
    move_stage(connection, write)
    return SliceResult(
        slice_id=slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=checksum,
        read_seconds=reads,
        write_seconds=writes,
    )


def complete(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches without the last column and the last row; ``RangeFailed`` where that row is missing."""
    ended = False
    for batch in batches:
        if ended:
            raise RangeFailed("Rows arrived behind the end of their range.")
        ended = bool(pyarrow.compute.any(batch.column(batch.num_columns - 1)).as_py())
        rows = batch.select(range(batch.num_columns - 1))
        yield rows.slice(0, rows.num_rows - 1) if ended else rows
    if not ended:
        raise RangeFailed("The rows broke off before the end of their range.")


def check_names(batch: pyarrow.RecordBatch, write: WriteSpec) -> None:
    """``RunnerRefused`` unless the rows have the planned columns: a transform may be changed in mid-plan."""
    planned = [column.name for column in write.columns]
    if batch.schema.names != planned:
        raise RunnerRefused(f"The transform gives the columns {batch.schema.names} where {planned} were planned.")


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
