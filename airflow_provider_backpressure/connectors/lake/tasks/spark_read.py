"""Rows of a table that Spark's own connector reads, as a DataFrame. Runs where the lane does."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow
from pyspark.errors import AnalysisException, IllegalArgumentException

from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import cast
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, ReadSpec, Slice, SliceResult
from airflow_provider_backpressure.exceptions import RESTART, SourceRefused, strip_frames
from airflow_provider_backpressure.spark.column_types import arrow_schema, carrier
from airflow_provider_backpressure.spark.task import RESULT, map_batches, outcome
from airflow_provider_backpressure.spark.value_hash import hash_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ZONE = "spark.sql.session.timeZone"
SETTINGS = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
"""Of a session that reads: the files of a version that is gone are an error, whatever the server is set to."""


def read_frame(
    session: "SparkSession", read: ReadSpec, pieces: Sequence[Slice], *, keeps_zone: bool = False
) -> "DataFrame":
    """Return the rows of the pieces, each by a statement of its own.

    ``keeps_zone``: whether the session's time zone is a transform's. Otherwise conditions and views go by UTC, as they
    did when the rows were counted. ``SourceRefused`` where the table is gone, its version is, or columns are of other
    types than planned.
    """
    for name, value in (SETTINGS if keeps_zone else {**SETTINGS, ZONE: "UTC"}).items():
        session.conf.set(name, value)
    try:
        if read.parts:
            # A session keeps a table for some time as it was, without the versions that came since.
            session.sql(f"REFRESH TABLE {read.parts[1]}")
        frame = reduce(lambda left, right: left.union(right), (session.sql(piece.query) for piece in pieces))
        found = [(field.name, field.dataType) for field in frame.schema.fields]
        check_same_table(session, read)
    except (AnalysisException, IllegalArgumentException) as error:
        said = str(error).split("JVM stacktrace:")[0].strip().splitlines()[0][:400]
        raise SourceRefused(f"The planned table cannot be read any more; {RESTART}: {said}") from strip_frames(error)
    planned = [(column.name, carrier(column.type)[1]) for column in read.columns]
    if found != planned:
        raise SourceRefused(f"The source has the columns {found} where {planned} were planned; {RESTART}.")
    return frame


def check_same_table(session: "SparkSession", read: ReadSpec) -> None:
    """Raise ``SourceRefused`` where a Delta table was made again: its versions are numbered from 0 again."""
    planned = read.parts[0].partition("@")[2] if read.parts else ""
    if planned and str(session.sql(f"DESCRIBE DETAIL {read.parts[1]}").collect()[0]["id"]) != planned:
        raise SourceRefused(f"{read.parts[1]} is another table by now, with versions of its own; {RESTART}.")


def run_checksum(session: "SparkSession", spec: ChecksumSpec) -> SliceResult:
    """Count and hash the rows of a slice by their values."""
    assert spec.read is not None, "rows of a source"
    schema = arrow_schema(spec.read.columns)
    frame = read_frame(session, spec.read, [Slice(slice_id="", query=spec.query, bounds=spec.bounds)])

    def hash_rows(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        rows = (cast(batch.rename_columns(schema.names), schema) for batch in batches)
        yield outcome(lambda: hash_batches(spec, rows))

    # Their names are numbers on the way: PySpark reads a dot in one as a field of something.
    numbered = frame.toDF(*(f"_{number}" for number in range(len(schema))))
    found = map_batches(numbered.coalesce(1), hash_rows, RESULT).collect()
    # Of a frame without partitions Spark runs no task.
    return SliceResult(**json.loads(found[0].result)) if found else hash_batches(spec, ())
