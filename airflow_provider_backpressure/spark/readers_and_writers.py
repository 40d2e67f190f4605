"""What reads and what writes, by the kind that a message names; a module is imported only where it is needed."""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Protocol, cast

import pyarrow

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
)
from airflow_provider_backpressure.exceptions import InvalidDeclaration

CONNECTORS = {
    "delta": "lake",
    "iceberg": "lake",
    "kafka": "kafka",
    "landed": "lake",
    "mysql": "mysql",
    "parquet": "lake",
    "postgres": "postgres",
    "spark_catalog": "lake",
    "spark_table": "lake",
}
"""Folder in ``connectors`` of each kind. Its ``tasks`` have a module for each thing that it can do: ``read`` is a
:class:`Reader`, ``write`` a :class:`Writer`, ``changes`` a :class:`..spark.change_rows.LogReader`."""

SPARK_WRITTEN = "spark_table"
"""Kind of a target that no task writes: Spark's own connector does, see ``connectors.lake.tasks.spark_write``."""
SPARK_READ = "spark_catalog"
"""Kind of a source that no task reads: Spark's own connector does, see ``connectors.lake.tasks.spark_read``."""


class Reader(Protocol):
    """A kind of source, inside a task."""

    def read(self, source: Endpoint, read: ReadSpec, piece: Slice, name: str) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of a slice, streamed, typed as :func:`..spark.column_types.carrier` says.

        ``name``: the attempt's tag, or any name where nothing is written. Errors: ``SourceRefused``,
        ``SourceUnavailable``, ``SnapshotLost``.
        """
        ...


class Writer(Protocol):
    """A kind of sink, inside a task."""

    def write(
        self,
        sink: Endpoint,
        spec: RangeSpec,
        batches: Iterable[pyarrow.RecordBatch],
        read_at: Callable[[], str] | None = None,
    ) -> SliceResult:
        """Write the rows of a range exactly once and return what its marker says.

        ``read_at`` returns the position of the source's log when all rows were read; the marker keeps it.

        The batches end with a row that says so, see :func:`..spark.stream_end.complete`. Errors: ``PlanSuperseded``,
        ``SinkRefused``, ``SinkUnavailable``, ``RangeFailed``.
        """
        ...

    def checksum(self, sink: Endpoint, spec: ChecksumSpec) -> SliceResult:
        """Count and hash the rows that ``spec.query`` selects, as a marker has them."""
        ...


def reader(kind: str) -> Reader:
    """Return the reader of a kind; :class:`InvalidDeclaration` where there is none."""
    return cast("Reader", task_module(kind, "read"))


def writer(kind: str) -> Writer:
    """Return the writer of a kind; :class:`InvalidDeclaration` where there is none."""
    return cast("Writer", task_module(kind, "write"))


def task_module(kind: str, name: str) -> ModuleType:
    """Return a module of the tasks of a kind; :class:`InvalidDeclaration` where its connector has none."""
    path = f"airflow_provider_backpressure.connectors.{CONNECTORS.get(kind)}.tasks.{name}"
    if kind not in CONNECTORS or find_spec(path) is None:
        raise InvalidDeclaration(f"This version knows no {kind}.")
    return import_module(path)
