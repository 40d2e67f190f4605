"""Reads the lines of a slice."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice
from airflow_provider_backpressure.spark.column_types import arrow_schema


def read(source: Endpoint, read: ReadSpec, piece: Slice, name: str) -> Iterator[pyarrow.RecordBatch]:
    """Yield the lines. See ``registry.Reader``."""
    path, start, end = json.loads(piece.query)
    lines = list(enumerate(Path(path).read_text().splitlines()))[start:end]
    numbers, texts = [number for number, _ in lines], [text for _, text in lines]
    yield pyarrow.record_batch([pyarrow.array(numbers, pyarrow.int64()), texts], schema=arrow_schema(read.columns))
