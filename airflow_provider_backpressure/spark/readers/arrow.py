"""Rows of a query as typed Arrow batches: COPY in CSV, cut at whole rows, parsed a block at a time."""

import re
from collections.abc import Iterator, Sequence

import pyarrow
from pyarrow import csv

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.messages import Column, ReadSpec, Slice
from airflow_provider_backpressure.exceptions import RangeFailed, SourceRefused
from airflow_provider_backpressure.spark.connections import SOURCE
from airflow_provider_backpressure.spark.readers.postgres import Reading, reading
from airflow_provider_backpressure.spark.streams import CopyOut
from airflow_provider_backpressure.spark.types import carrier

# Every value is quoted and only NULL is not, so that NULL and '' differ.
CSV = "FORMAT csv, FORCE_QUOTE *"
BLOCK = 512 * 1024
"""Bytes of text parsed at a time: enough that the parser's own start does not count."""
_PARSE = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
_COLUMN = re.compile(r"In CSV column #(\d+)")


def read(source: Endpoint, read: ReadSpec, piece: Slice, name: str) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a slice. See :class:`..spark.kinds.Reader`.

    Raises ``SourceRefused`` for a value that its column's counterpart in Spark cannot hold; else as :func:`reading`.
    """
    rows = 0
    with reading(source, Reading.of(read, piece, name), options=CSV) as stream:
        for text in _texts(stream, source):
            for batch in parse(text, read.columns).to_batches():
                rows += batch.num_rows
                yield batch
        if rows != stream.rows:
            raise RangeFailed(f"{rows} rows were understood where the source sent {stream.rows}.")


def _texts(stream: CopyOut, source: Endpoint) -> Iterator[bytes]:
    """Yield whole rows in pieces of about :data:`BLOCK` bytes."""
    text, blocks = bytearray(), iter(stream)
    while True:
        with SOURCE.translated(source):
            messages = next(blocks, None)
        if messages is not None:
            text += b"".join(messages)
        if text and (messages is None or len(text) >= BLOCK):
            yield bytes(text)
            text.clear()
        if messages is None:
            return


def parse(text: bytes, columns: Sequence[Column]) -> pyarrow.Table:
    """Return whole CSV rows as a table of these columns; ``SourceRefused`` where a value does not fit its type."""
    types = [carrier(column.type)[0] for column in columns]
    # Columns go by number: PostgreSQL's names may differ in nothing but case, or hold anything at all.
    numbers = [str(number) for number in range(len(columns))]
    convert = csv.ConvertOptions(
        column_types={
            number: pyarrow.string() if type_ == pyarrow.binary() else type_
            for number, type_ in zip(numbers, types, strict=True)
        },
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    )
    read = csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=numbers)
    try:
        table = csv.read_csv(pyarrow.BufferReader(text), read, _PARSE, convert)
    except pyarrow.ArrowInvalid as error:
        raise SourceRefused(_misfit(str(error), columns)) from error
    arrays = [
        _unhexed(column) if type_ == pyarrow.binary() else column
        for column, type_ in zip(table.columns, types, strict=True)
    ]
    return pyarrow.table(arrays, names=[column.name for column in columns])


def _unhexed(column: pyarrow.ChunkedArray) -> pyarrow.Array:
    r"""Return bytes for PostgreSQL's ``\x…``."""
    values = (None if text is None else bytes.fromhex(text[2:]) for text in column.to_pylist())
    return pyarrow.array(values, pyarrow.binary())


def _misfit(text: str, columns: Sequence[Column]) -> str:
    match = _COLUMN.match(text)
    if match is None:
        return "The source's rows could not be understood as CSV."
    column = columns[int(match[1])]
    return (
        f"Column {column.name} ({column.type}) holds a value that Spark's {carrier(column.type)[1].simpleString()} "
        f'cannot (infinity, NaN or a far year): carry it as text, with as_text=("{column.name}",) on the source.'
    )
