"""Rows of a PostgreSQL query as typed Arrow batches: COPY in CSV, cut at whole rows, parsed a block at a time."""

from collections.abc import Iterator

import pyarrow

from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import Reading, open_copy_out
from airflow_provider_backpressure.connectors.relational.csv_blocks import parse, pieces
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice
from airflow_provider_backpressure.exceptions import RangeFailed

# Every value is quoted and only NULL is not, so that NULL and '' differ.
CSV = "FORMAT csv, FORCE_QUOTE *"


def read(source: Endpoint, read: ReadSpec, piece: Slice, name: str) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a slice. See :class:`..spark.readers_and_writers.Reader`.

    Raises ``SourceRefused`` for a value that its column's type in Spark cannot hold, and the errors of
    :func:`open_copy_out`.
    """
    rows = 0
    with open_copy_out(source, Reading.from_slice(read, piece, name), options=CSV) as stream:
        for text in pieces(map(b"".join, SOURCE.translate_blocks(stream, source))):
            for batch in parse(text, read.columns, way_out).to_batches():
                rows += batch.num_rows
                yield batch
        if rows != stream.rows:
            raise RangeFailed(f"{rows} rows were understood where the source sent {stream.rows}.")


def way_out(column: Column) -> str:
    """Return what PostgreSQL has and Spark has not, and what to do about it."""
    return f'(infinity, NaN or a far year): carry it as text, with as_text=("{column.name}",) on the source.'
