"""Reads and writes our Parquet files: footers with a mark, and rows streamed back."""

from collections.abc import Iterator

import pyarrow
import pyarrow.parquet as pq

from airflow_provider_backpressure.connectors.lake.storage import Place

MARK = b"backpressure"
"""Key of a slice's mark in the footer of its (last) file."""
READ_ROWS = 65_536
"""Rows that are read back at once."""


def footer(place: Place, name: str) -> pq.FileMetaData:
    """Return the footer of a file; nothing else of it is read."""
    with place.input(name) as stream:
        return pq.read_metadata(stream)


def batches(stream: pyarrow.NativeFile) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a file, one row group's columns at a time in memory, and close it."""
    with stream:
        yield from pq.ParquetFile(stream).iter_batches(batch_size=READ_ROWS)
