"""What reads and what writes, by the kind that a message names; a module is imported only where it is needed."""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Protocol, cast

import pyarrow

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.messages import ChecksumSpec, RangeSpec, ReadSpec, Slice, SliceResult
from airflow_provider_backpressure.exceptions import InvalidDeclaration

ROOM = "airflow_provider_backpressure.spark"
READERS = {"kafka": "readers.kafka", "landed": "readers.landed", "mysql": "readers.mysql", "postgres": "readers.arrow"}
"""Modules that are a :class:`Reader`."""
WRITERS = {
    "postgres": "writers.frame",
    "parquet": "writers.lake",
    "delta": "writers.lake",
    "iceberg": "writers.lake",
}
"""Modules that are a :class:`Writer`."""


class Reader(Protocol):
    """A kind of source, inside a task."""

    def read(self, source: Endpoint, read: ReadSpec, piece: Slice, name: str) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of a slice, streamed, typed as :func:`..spark.types.carrier` says.

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

        ``read_at`` is asked where the source's log stands when all rows were read; the marker keeps that.

        The batches end with a row that says so, see :func:`..spark.batches.complete`. Errors: ``PlanSuperseded``,
        ``SinkRefused``, ``SinkUnavailable``, ``RangeFailed``.
        """
        ...

    def checksum(self, sink: Endpoint, spec: ChecksumSpec) -> SliceResult:
        """Count and hash the rows that ``spec.query`` selects, as a marker has them."""
        ...


def reader(kind: str) -> Reader:
    """Return the reader of a kind; :class:`InvalidDeclaration` where there is none."""
    return cast("Reader", _module(READERS, kind))


def writer(kind: str) -> Writer:
    """Return the writer of a kind; :class:`InvalidDeclaration` where there is none."""
    return cast("Writer", _module(WRITERS, kind))


def _module(modules: dict[str, str], kind: str) -> object:
    if kind not in modules:
        raise InvalidDeclaration(f"This version knows no {kind}.")
    return import_module(f"{ROOM}.{modules[kind]}")
