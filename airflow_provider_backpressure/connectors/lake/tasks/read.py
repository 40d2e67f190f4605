"""Rows that a hydration has landed in files, as typed Arrow batches; they are what was written, or nothing is."""

import json
from collections.abc import Iterator
from contextlib import closing

import pyarrow

from airflow_provider_backpressure.connectors.lake.base_table import LakeTable, open_table
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import cast
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import FileBounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice
from airflow_provider_backpressure.exceptions import (
    RESTART,
    InvalidDeclaration,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    SourceUnavailable,
)
from airflow_provider_backpressure.spark.column_types import arrow_schema
from airflow_provider_backpressure.spark.value_hash import BatchSum

_MOVED = f"the table was written since it was planned. If its rows are right, {RESTART}"


def read(source: Endpoint, read: ReadSpec, piece: Slice, name: str) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a slice. See :class:`..spark.readers_and_writers.Reader`.

    Raises ``SourceRefused`` behind the last row where files hold others than were landed, or have gone: count and
    checksum are those of their marks. The slice is not committed then.
    """
    bounds = bounds_from_json(dict(piece.bounds))
    if not isinstance(bounds, FileBounds):
        raise InvalidDeclaration(f"Landed rows are read by files, not by {bounds}.")
    what, total = json.loads(piece.query), BatchSum()
    table = open_table(what["kind"], what["at"], source)
    with closing(table):
        for batch in _batches(table, read, bounds):
            total.update(batch)
            yield batch
    if total.rows != bounds.rows:
        raise SourceRefused(
            f"{bounds} of {table.name} hold {total.rows} rows, and {bounds.rows} were landed: {_MOVED}."
        )
    if bounds.checksum and str(total) != bounds.checksum:
        raise SourceRefused(
            f"{bounds} of {table.name} have the checksum {total}, and {bounds.checksum} was landed: {_MOVED}."
        )


def _batches(table: LakeTable, read: ReadSpec, bounds: FileBounds) -> Iterator[pyarrow.RecordBatch]:
    schema = arrow_schema(read.columns)
    try:
        with table.translate_errors():
            for batch in table.read(bounds.files):
                yield cast(batch, schema)
    except SinkRefused as error:
        raise SourceRefused(str(error)) from error
    except SinkUnavailable as error:
        raise SourceUnavailable(str(error)) from error
