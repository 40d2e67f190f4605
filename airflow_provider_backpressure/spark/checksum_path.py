"""Counts and hashes rows that are there already, of a target or of a source, as the other paths do while they copy."""

from functools import partial

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.messages import ChecksumSpec, Slice, SliceResult
from airflow_provider_backpressure.spark.registry import reader, writer
from airflow_provider_backpressure.spark.stream_end import apart
from airflow_provider_backpressure.spark.task import measure
from airflow_provider_backpressure.spark.value_hash import BatchSum


def checksum_slice(spec: ChecksumSpec, endpoint: Endpoint) -> SliceResult:
    """Count and hash the rows of a query, inside a task."""
    return measure(partial(_checksum, spec, endpoint))


def _checksum(spec: ChecksumSpec, endpoint: Endpoint) -> SliceResult:
    if spec.read is None:
        return writer(spec.kind).checksum(endpoint, spec)
    total = BatchSum()
    piece = Slice(slice_id="", query=spec.query, bounds=spec.bounds)
    for batch in reader(spec.kind).read(endpoint, spec.read, piece, "bp-checksum"):
        total.update(apart(batch, keep_bad=spec.read.keep_bad)[0])
    return SliceResult(slice_id="", rows=total.rows, bytes=total.bytes, checksum=str(total))
