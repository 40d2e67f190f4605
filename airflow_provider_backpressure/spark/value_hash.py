"""Order-independent checksum of rows by their values, for sides that share no encoding: a log, a table, files."""

from collections import Counter
from collections.abc import Iterable
from functools import partial

import numpy
import pyarrow
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    ReadSpec,
    Slice,
    SliceResult,
    digest_row,
)
from airflow_provider_backpressure.spark import arrow_buffers as buffers
from airflow_provider_backpressure.spark.readers_and_writers import reader, writer
from airflow_provider_backpressure.spark.refused_rows import kept_of
from airflow_provider_backpressure.spark.stream_end import apart
from airflow_provider_backpressure.spark.task import measure

ALGORITHM = "values-xxh3"
_BITS = 64


class BatchSum:
    """Counts and hashes rows by their values.

    A row's hash is xxh3-64 over a bit for each column, set for NULL, filled up to 8 bytes; then the part of each column
    that has a fixed width; then the texts and bytes. A column's fixed part is 8 bytes, the lowest first: an integer,
    days or microseconds since 1970, a double's bits, the length of a text in UTF-8 or of bytes; of a decimal 16 bytes,
    the number without its point; of NULL zero. So no two rows read the same, and the width of a value's type does not
    count. Written as ``values-xxh3:<16 hex digits>``; summed as the hash of binary COPY is.
    """

    def __init__(self) -> None:
        """Begin with no rows."""
        self.rows = 0
        self.bytes = 0
        self._sum = 0

    def update(self, batch: pyarrow.RecordBatch) -> None:
        """Add the rows of a batch."""
        self.rows += batch.num_rows
        if not batch.num_rows or not batch.num_columns:
            return
        texts = _texts(batch)
        self.bytes += sum(map(len, texts))
        self._sum = (self._sum + sum(map(xxh3_64_intdigest, texts))) & 0xFFFF_FFFF_FFFF_FFFF

    def __str__(self) -> str:
        """Return ``<algorithm>:<16 hex digits>``."""
        return f"{ALGORITHM}:{self._sum:016x}"


def digest_rows(batch: pyarrow.RecordBatch) -> numpy.ndarray:
    """Return a number of 64 bits for each row: the same for rows that read the same."""
    return numpy.fromiter(map(xxh3_64_intdigest, _texts(batch)), "u8", batch.num_rows)


def _texts(batch: pyarrow.RecordBatch) -> list[bytes]:
    """Return what is hashed of each row."""
    nulls = numpy.zeros((batch.num_rows, -(-batch.num_columns // _BITS)), "<u8")
    parts, others = [nulls], []
    for place, column in enumerate(batch.columns):
        if column.null_count:
            nulls[~buffers.present(column), place // _BITS] |= numpy.uint64(1 << place % _BITS)
        values = _numbers(column)
        if values is None:
            text = column if _is_binary(column.type) else column.cast(pyarrow.large_string())
            others.append(pc.fill_null(text.cast(pyarrow.large_binary()), buffers.NOTHING))
            values = buffers.lengths(others[-1])
        parts.append(values)
    record = numpy.empty(batch.num_rows, [(f"{n}", part.dtype.str, part.shape[1:]) for n, part in enumerate(parts)])
    for n, part in enumerate(parts):
        record[f"{n}"] = part
    kept = pyarrow.py_buffer(record)
    fixed = pyarrow.Array.from_buffers(pyarrow.binary(record.itemsize), batch.num_rows, [None, kept])
    if others:
        fixed = pc.binary_join_element_wise(fixed.cast(pyarrow.large_binary()), *others, buffers.NOTHING)
    texts: list[bytes] = fixed.to_pylist()
    return texts


def _is_binary(type_: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_binary(type_) or pyarrow.types.is_large_binary(type_))


def _numbers(column: pyarrow.Array) -> numpy.ndarray | None:
    """Return the values' fixed part, zero for NULL; ``None`` for what is hashed as text."""
    type_ = column.type
    if pyarrow.types.is_decimal128(type_):
        return buffers.to_words(column)
    if pyarrow.types.is_floating(type_):
        found = buffers.numbers(column.cast(pyarrow.float64()))
        return numpy.where(numpy.isnan(found), numpy.nan, found)
    if pyarrow.types.is_timestamp(type_):
        column = column.cast(pyarrow.timestamp("us", type_.tz)).cast(pyarrow.int64())
    elif pyarrow.types.is_date32(type_):
        column = column.cast(pyarrow.int32())
    elif not (pyarrow.types.is_signed_integer(type_) or pyarrow.types.is_boolean(type_)):
        return None
    return buffers.numbers(column.cast(pyarrow.int64()))


def checksum_slice(spec: ChecksumSpec, endpoint: Endpoint) -> SliceResult:
    """Count and hash the rows of a query, inside a task."""
    return measure(partial(_checksum, spec, endpoint))


def _checksum(spec: ChecksumSpec, endpoint: Endpoint) -> SliceResult:
    if spec.read is None:
        return writer(spec.kind).checksum(endpoint, spec)
    piece = Slice(slice_id="", query=spec.query, bounds=spec.bounds)
    return hash_batches(spec, reader(spec.kind).read(endpoint, spec.read, piece, "bp-checksum"))


def hash_batches(spec: ChecksumSpec, batches: Iterable[pyarrow.RecordBatch]) -> SliceResult:
    """Count and hash the rows of a source, but for those of the spec that are counted apart."""
    assert spec.read is not None, "rows of a source"
    total, read, left = BatchSum(), 0, Counter(spec.quarantined)
    for batch in batches:
        read += batch.num_rows
        total.update(_without(apart(batch, keep_bad=spec.read.keep_bad)[0], spec, spec.read, left))
    return SliceResult(
        slice_id="", rows=total.rows, bytes=total.bytes, checksum=str(total), quarantined=read - total.rows
    )


def _without(
    batch: pyarrow.RecordBatch, spec: ChecksumSpec, read: ReadSpec, left: "Counter[str]"
) -> pyarrow.RecordBatch:
    """Return a batch but for the rows whose digests are ``left``; each takes its own out of them."""
    if not left:
        return batch
    rows = batch.rename_columns([column.name for column in read.columns])
    digested = numpy.arange(rows.num_rows)
    for name, values in spec.quarantined_at.items():
        column = rows.column(name)
        found = pc.is_in(column, pyarrow.array(values, column.type)).to_numpy(zero_copy_only=False)
        digested = digested[found[digested]]
    kept = numpy.ones(rows.num_rows, bool)
    # To make JSON of a row and digest it takes several times as long as to hash its values.
    for index, row in zip(digested, rows.take(pyarrow.array(digested)).to_pylist(), strict=True):
        kept[index] = not _take(left, digest_row(kept_of(row)))
    return batch.filter(pyarrow.array(kept))


def _take(left: "Counter[str]", digest: str) -> bool:
    """Whether a digest is among those left, where there is one less of it then."""
    if digest not in left:
        return False
    left.subtract([digest])
    if not left[digest]:
        del left[digest]
    return True
