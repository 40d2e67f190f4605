"""Arrow batches of a whole range into PostgreSQL in one transaction: as binary COPY, or through a stage as text."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import psycopg
import pyarrow
from psycopg import sql
from pyarrow import csv

from airflow_provider_backpressure.connectors.postgres.errors import words
from airflow_provider_backpressure.connectors.postgres.tasks import binary_copy as binary
from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import Reading, open_copy_out
from airflow_provider_backpressure.connectors.postgres.tasks.quarantine import BadRowIsolator
from airflow_provider_backpressure.connectors.postgres.tasks.slice_commit import Place, SliceCommit, move_in_order
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import (
    STAGE,
    RowSum,
    hash_stage,
    make_stage,
    move_stage,
    open_copy_in,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.messages import ChecksumSpec, RangeSpec, SliceResult, WriteSpec
from airflow_provider_backpressure.core.snapshot.offsets import PLACE
from airflow_provider_backpressure.exceptions import RangeFailed, RunnerRefused
from airflow_provider_backpressure.spark.reader_timings import time_handovers
from airflow_provider_backpressure.spark.stream_end import apart, check_names, complete, split_tombstones, to_one_slice

_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")
_HEX = b"\\x"


def write(
    sink: Endpoint,
    spec: RangeSpec,
    batches: Iterable[pyarrow.RecordBatch],
    read_at: Callable[[], str] | None = None,
) -> SliceResult:
    """Write the rows of a range exactly once, as its first slice. See :class:`..spark.registry.Writer`."""
    piece = to_one_slice(spec)

    def fill(connection: psycopg.Connection) -> SliceResult:
        written = _fill(spec, piece.slice_id, batches, connection)
        return written if read_at is None else replace(written, read_at=read_at())

    return SliceCommit(spec=spec, piece=piece).run(sink, fill)


def checksum(sink: Endpoint, spec: ChecksumSpec) -> SliceResult:
    """Hash what PostgreSQL's binary COPY says of the rows. See :class:`..spark.registry.Writer`."""
    total = RowSum()
    with (
        open_copy_out(sink, Reading(query=spec.query, name="bp-checksum", compared=True, every_row=True)) as rows,
        SOURCE.translate_errors(sink),
    ):
        for messages in rows:
            total.update(messages)
        found = total.finish(rows.rows)
    return SliceResult(slice_id="", rows=total.rows, bytes=total.bytes, checksum=found)


def _fill(
    spec: RangeSpec, slice_id: str, batches: Iterable[pyarrow.RecordBatch], connection: psycopg.Connection
) -> SliceResult:
    """Write the rows, in the binary form where the target's types allow, otherwise as text that the server reads.

    The first attempt is one COPY. Where a row is refused, the next one looks for it, batch by batch: a savepoint for
    each would cost all the others, and a transaction of very many is a burden to the server.
    """
    rows, tombstones = time_handovers(complete(batches)), list[Place]()
    if spec.write.ordered:
        rows = _note_tombstones(rows, tombstones)
    columns = binary.targets(connection, spec.write) if spec.attempt == 1 else None
    first = next(rows)
    if columns is not None and binary.fits(apart(first, keep_bad=spec.read.keep_bad)[0].schema, columns):
        fill = partial(_write_encoded, columns=columns, tombstones=tombstones)
    else:
        load = _isolate if spec.attempt > 1 else _at_once
        fill = partial(_write_staged, load=load, tombstones=tombstones)
    total, checksum, bad = fill(connection, spec, BadRowIsolator(connection, spec, slice_id), chain([first], rows))
    return SliceResult(
        slice_id=slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=checksum,
        quarantined=bad,
    )


Rows = Iterable[pyarrow.RecordBatch]


def _note_tombstones(rows: Rows, tombstones: list[Place]) -> Iterator[pyarrow.RecordBatch]:
    """Yield rows without the mark of tombstones, and add the place of each of these."""
    for batch in rows:
        rest, gone = split_tombstones(batch)
        places = rest.select(list(PLACE)).filter(gone)
        if any(column.null_count for column in places.columns):
            raise RunnerRefused("The transform gives a tombstone without partition or offset: let it keep both.")
        tombstones += zip(*(column.to_pylist() for column in places.columns), strict=True)
        yield rest


def _write_encoded(
    connection: psycopg.Connection,
    spec: RangeSpec,
    sieve: BadRowIsolator,
    rows: Rows,
    columns: Sequence[binary.Target],
    tombstones: Sequence[Place],
) -> tuple[RowSum, str, int]:
    """Send rows as the target has them, hashed on the way: straight into it, but where they are merged by key."""
    write, total = spec.write, RowSum()
    staged = write.ordered or write.mode == "upsert"
    if staged:
        make_stage(connection, write)

    def encode(batch: pyarrow.RecordBatch) -> memoryview:
        found = binary.rows(batch, columns)
        total.add(found.to_pylist())
        return binary.block(found)

    form = _Form(options=binary.OPTIONS, beginning=binary.BEGINNING, encoded=encode, ending=binary.ENDING)
    copied = _copy_rows(connection, spec, sieve, rows, STAGE if staged else sql.SQL(write.target), form)
    checksum = total.finish(copied)
    if staged:
        _move(connection, write, tombstones)
    return total, checksum, sieve.bad


def _write_staged(
    connection: psycopg.Connection,
    spec: RangeSpec,
    sieve: BadRowIsolator,
    rows: Rows,
    load: "_Load",
    tombstones: Sequence[Place],
) -> tuple[RowSum, str, int]:
    """Let the server make the target's types of the rows' text in a stage, hash what it made, and move it."""
    make_stage(connection, spec.write)
    load(connection, spec, sieve, rows)
    total, checksum = hash_stage(connection, spec.write)
    _move(connection, spec.write, tombstones)
    return total, checksum, sieve.bad


def _move(connection: psycopg.Connection, write: WriteSpec, tombstones: Sequence[Place]) -> None:
    if write.ordered:
        move_in_order(connection, write, tombstones)
    else:
        move_stage(connection, write)


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How rows are put for COPY."""

    options: str
    encoded: Callable[[pyarrow.RecordBatch], bytes | memoryview]
    beginning: bytes = b""
    ending: bytes = b""


def _copy_rows(
    connection: psycopg.Connection,
    spec: RangeSpec,
    sieve: BadRowIsolator,
    rows: Rows,
    table: sql.Composable,
    form: _Form,
) -> int:
    """Write all rows by one COPY and return how many the server took; ``RangeFailed`` where it refuses one."""
    # What is kept aside waits for the end of the stream, during which the connection does nothing else.
    aside: list[tuple[dict[str, Any], str]] = []
    try:
        with open_copy_in(connection, table, spec.write.columns, form.options) as copy:
            copy.put(form.beginning)
            for batch in rows:
                good, bad = apart(batch, keep_bad=spec.read.keep_bad)
                check_names(good, spec.write)
                if good.num_rows:
                    copy.put(form.encoded(good))
                aside += bad
                sieve.check(aside)
                reach(Step.IN_COPY, spec.tag)
            copy.put(form.ending)
    except psycopg.DataError as error:
        raise RangeFailed(f"A row cannot go into {spec.write.fence} ({words(error)}): it is looked for.") from error
    for row, reason in aside:
        sieve.refuse(row, reason)
    return copy.rows


_Load = Callable[[psycopg.Connection, RangeSpec, BadRowIsolator, Rows], object]


def _at_once(connection: psycopg.Connection, spec: RangeSpec, sieve: BadRowIsolator, rows: Rows) -> None:
    _copy_rows(connection, spec, sieve, rows, STAGE, _Form(options="FORMAT csv", encoded=to_csv))


def _isolate(connection: psycopg.Connection, spec: RangeSpec, sieve: BadRowIsolator, rows: Rows) -> None:
    def put(batch: pyarrow.RecordBatch) -> None:
        with open_copy_in(connection, STAGE, spec.write.columns, "FORMAT csv") as copy:
            copy.put(to_csv(batch))

    for batch in rows:
        good, bad = apart(batch, keep_bad=spec.read.keep_bad)
        check_names(good, spec.write)
        for row, reason in bad:
            sieve.refuse(row, reason)
        if good.num_rows:
            sieve.put(good, put)
        reach(Step.IN_COPY, spec.tag)


def to_csv(batch: pyarrow.RecordBatch) -> bytes:
    """Return rows as COPY reads them: text always in quotes, NULL never, bytes in hexadecimal."""
    columns = [_to_hex(column) if _is_binary(column.type) else column for column in batch.columns]
    text = io.BytesIO()
    numbers = [str(number) for number in range(len(columns))]
    csv.write_csv(pyarrow.record_batch(columns, names=numbers), text, _OPTIONS)
    return text.getvalue()


def _is_binary(type_: pyarrow.DataType) -> bool:
    return type_ in (pyarrow.binary(), pyarrow.large_binary())


def _to_hex(column: pyarrow.Array) -> pyarrow.Array:
    values = (None if value is None else (_HEX + value.hex().encode()).decode() for value in column.to_pylist())
    return pyarrow.array(values, pyarrow.string())
