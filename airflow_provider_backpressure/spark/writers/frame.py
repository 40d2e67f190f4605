"""Arrow batches of a whole range into PostgreSQL: through a stage of the target's types, in one transaction."""

import io
import time
from collections.abc import Iterable, Iterator
from functools import partial

import psycopg
import pyarrow
from pyarrow import csv

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.messages import ChecksumSpec, RangeSpec, SliceResult
from airflow_provider_backpressure.exceptions import RangeFailed
from airflow_provider_backpressure.postgres.errors import words
from airflow_provider_backpressure.spark.batches import apart, check_names, complete, whole
from airflow_provider_backpressure.spark.checksum import RowSum
from airflow_provider_backpressure.spark.connections import SOURCE
from airflow_provider_backpressure.spark.readers.postgres import Reading, reading
from airflow_provider_backpressure.spark.writers.ordered import move_in_order
from airflow_provider_backpressure.spark.writers.postgres import SliceCommit
from airflow_provider_backpressure.spark.writers.sieve import Sieve
from airflow_provider_backpressure.spark.writers.stage import STAGE, copying, hash_stage, make_stage, move_stage

_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")
_HEX = b"\\x"


def write(sink: Endpoint, spec: RangeSpec, batches: Iterable[pyarrow.RecordBatch]) -> SliceResult:
    """Write the rows of a range exactly once, as its first slice. See :class:`..spark.kinds.Writer`."""
    piece = whole(spec)
    return SliceCommit(spec=spec, piece=piece).run(sink, partial(_fill, spec, piece.slice_id, batches))


def checksum(sink: Endpoint, spec: ChecksumSpec) -> SliceResult:
    """Hash what PostgreSQL's binary COPY says of the rows. See :class:`..spark.kinds.Writer`."""
    total = RowSum()
    with (
        reading(sink, Reading(query=spec.query, name="bp-checksum", compared=True)) as rows,
        SOURCE.translated(sink),
    ):
        for messages in rows:
            total.update(messages)
        found = total.finish(rows.rows)
    return SliceResult(slice_id="", rows=total.rows, bytes=total.bytes, checksum=found)


def _fill(
    spec: RangeSpec, slice_id: str, batches: Iterable[pyarrow.RecordBatch], connection: psycopg.Connection
) -> SliceResult:
    """Fill the stage and move it into the target.

    The first attempt is one COPY. Where a row is refused, the next one looks for it, batch by batch: a savepoint for
    each would cost all the others, and a transaction of very many is a burden to the server.
    """
    make_stage(connection, spec.write)
    clock = _Clock(complete(batches))
    load = _sifted if spec.attempt > 1 else _at_once
    bad = load(connection, spec, slice_id, clock)
    started = time.perf_counter()
    total, checksum = hash_stage(connection, spec.write)
    (move_in_order if spec.write.ordered else move_stage)(connection, spec.write)
    return SliceResult(
        slice_id=slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=checksum,
        quarantined=bad,
        read_seconds=clock.seconds,
        write_seconds=time.perf_counter() - started + clock.outside,
    )


def _at_once(connection: psycopg.Connection, spec: RangeSpec, slice_id: str, rows: "_Clock") -> int:
    # What is kept aside waits for the end of the stream, during which the connection does nothing else.
    sieve, aside = Sieve(connection, spec, slice_id), []
    try:
        with copying(connection, STAGE, spec.write.columns, "FORMAT csv") as copy:
            for batch in rows:
                good, bad = apart(batch)
                check_names(good, spec.write)
                copy.put(to_csv(good))
                aside += bad
                sieve.check(aside)
                reach(Step.IN_COPY, spec.tag)
    except psycopg.DataError as error:
        raise RangeFailed(f"A row cannot go into {spec.write.fence} ({words(error)}): it is looked for.") from error
    for row, reason in aside:
        sieve.refuse(row, reason)
    return sieve.bad


def _sifted(connection: psycopg.Connection, spec: RangeSpec, slice_id: str, rows: "_Clock") -> int:
    def put(batch: pyarrow.RecordBatch) -> None:
        with copying(connection, STAGE, spec.write.columns, "FORMAT csv") as copy:
            copy.put(to_csv(batch))

    sieve = Sieve(connection, spec, slice_id)
    for batch in rows:
        good, bad = apart(batch)
        check_names(good, spec.write)
        for row, reason in bad:
            sieve.refuse(row, reason)
        if good.num_rows:
            sieve.put(good, put)
        reach(Step.IN_COPY, spec.tag)
    return sieve.bad


class _Clock:
    """Iterates over batches and tells how long they were waited for, and how long they were worked on."""

    def __init__(self, batches: Iterable[pyarrow.RecordBatch]) -> None:
        self._batches = batches
        self.seconds = self.outside = 0.0

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        started = time.perf_counter()
        for batch in self._batches:
            given = time.perf_counter()
            self.seconds += given - started
            yield batch
            started = time.perf_counter()
            self.outside += started - given
        self.seconds += time.perf_counter() - started


def to_csv(batch: pyarrow.RecordBatch) -> bytes:
    """Return rows as COPY reads them: text always in quotes, NULL never, bytes in hexadecimal."""
    columns = [_hexed(column) if _is_binary(column.type) else column for column in batch.columns]
    text = io.BytesIO()
    numbers = [str(number) for number in range(len(columns))]
    csv.write_csv(pyarrow.record_batch(columns, names=numbers), text, _OPTIONS)
    return text.getvalue()


def _is_binary(type_: pyarrow.DataType) -> bool:
    return type_ in (pyarrow.binary(), pyarrow.large_binary())


def _hexed(column: pyarrow.Array) -> pyarrow.Array:
    values = (None if value is None else (_HEX + value.hex().encode()).decode() for value in column.to_pylist())
    return pyarrow.array(values, pyarrow.string())
