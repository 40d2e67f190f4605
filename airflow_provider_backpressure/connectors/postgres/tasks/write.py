"""Arrow batches of a whole range into PostgreSQL in one transaction: as binary COPY, or through a stage as text."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy
import psycopg
import pyarrow
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from airflow_provider_backpressure.connectors.postgres.errors import words
from airflow_provider_backpressure.connectors.postgres.tasks import binary_copy as binary
from airflow_provider_backpressure.connectors.postgres.tasks.connections import SOURCE
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import Reading, open_copy_out
from airflow_provider_backpressure.connectors.postgres.tasks.mirror import mirror_stage
from airflow_provider_backpressure.connectors.postgres.tasks.quarantine import BadRowIsolator, split_cut
from airflow_provider_backpressure.connectors.postgres.tasks.server_hash import algorithm_of, is_server_hash, open_hash
from airflow_provider_backpressure.connectors.postgres.tasks.slice_commit import SliceCommit, move_in_order
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import (
    MIRROR,
    STAGE,
    STAGED,
    RowSum,
    hash_stage,
    make_stage,
    move_stage,
    open_copy_in,
    stage_columns,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, RangeSpec, SliceResult
from airflow_provider_backpressure.core.snapshot.topic_offsets import PLACE, TOMBSTONE
from airflow_provider_backpressure.exceptions import RangeFailed, RunnerRefused, SinkRefused
from airflow_provider_backpressure.spark.column_types import carrier
from airflow_provider_backpressure.spark.reader_timings import time_handovers
from airflow_provider_backpressure.spark.stream_end import (
    apart,
    check_names,
    check_types,
    complete,
    find_hidden,
    name_place,
    split_marks,
    to_one_slice,
)

_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")
_HEX = b"\\x"
_YEARS = (-62_135_596_800, 253_402_300_800)
"""The first second of the year 1, and that of the year 10,000."""


def write(
    sink: Endpoint,
    spec: RangeSpec,
    batches: Iterable[pyarrow.RecordBatch],
    read_at: Callable[[], str] | None = None,
) -> SliceResult:
    """Write the rows of a range exactly once, as its first slice. See :class:`..spark.readers_and_writers.Writer`."""
    piece = to_one_slice(spec)

    def fill(connection: psycopg.Connection) -> SliceResult:
        written = _fill(spec, piece.slice_id, batches, connection)
        if spec.write.mode == MIRROR:
            return mirror_stage(connection, spec, piece, written)
        return written if read_at is None else replace(written, read_at=read_at())

    return SliceCommit(spec=spec, piece=piece).run(sink, fill)


def checksum(sink: Endpoint, spec: ChecksumSpec) -> SliceResult:
    """Hash what PostgreSQL's binary COPY says of the rows. See :class:`..spark.readers_and_writers.Writer`."""
    reading = Reading(
        query=spec.query,
        name="bp-checksum",
        snapshot=spec.snapshot,
        storage=spec.storage,
        compared=True,
        every_row=True,
    )
    if is_server_hash(spec.like):
        with open_hash(sink, reading, algorithm_of(spec.like)) as (_, hashed):
            return SliceResult(slice_id="", rows=hashed.rows, bytes=0, checksum=hashed.checksum)
    total = RowSum()
    with (
        open_copy_out(sink, reading) as rows,
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
    rows = time_handovers(complete(batches))
    columns = binary.targets(connection, spec.write) if spec.attempt == 1 else None
    first = next(rows)
    if columns is not None and spec.write.ordered:
        marks = stage_columns(spec.write)[len(spec.write.columns) :]
        columns = [*columns, *(binary.Target(type=carrier(column.type)[0]) for column in marks)]
    if columns is not None and binary.fits(arrange(spec, first)[0].schema, columns):
        fill = partial(_write_encoded, columns=columns)
    else:
        load = _isolate if spec.attempt > 1 else _at_once
        fill = partial(_write_staged, load=load)
    total, checksum, bad = fill(connection, spec, BadRowIsolator(connection, spec, slice_id), chain([first], rows))
    return SliceResult(
        slice_id=slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=checksum,
        quarantined=bad,
    )


Rows = Iterable[pyarrow.RecordBatch]


def arrange(
    spec: RangeSpec, batch: pyarrow.RecordBatch
) -> tuple[pyarrow.RecordBatch, list[tuple[dict[str, Any], str]]]:
    """Return the rows of a batch with the columns of the stage, and the records that could not be taken apart.

    ``RunnerRefused`` where other columns arrive, or a tombstone without its place.
    """
    rows, bad = apart(batch, keep_bad=spec.read.keep_bad)
    if not spec.write.ordered:
        _check(rows, spec)
        return rows, bad
    rows, marks = split_marks(rows, spec.write.place)
    _check(rows, spec)
    gone = marks.column(TOMBSTONE)
    if any(column.null_count for column in marks.select(list(PLACE)).filter(gone).columns):
        raise RunnerRefused("The transform gives a tombstone without partition or offset: let it keep both.")
    for hidden, name in find_hidden(spec.write.place).items():
        rows = rows.append_column(hidden, marks.column(name))
    return rows.append_column(TOMBSTONE, gone), bad


def _check(rows: pyarrow.RecordBatch, spec: RangeSpec) -> None:
    check_names(rows, spec.write)
    if spec.transform is not None:
        check_types(rows, spec.write.columns)


def _arrange_text(
    spec: RangeSpec, batch: pyarrow.RecordBatch
) -> tuple[pyarrow.RecordBatch, list[tuple[dict[str, Any], str]]]:
    """Do what :func:`arrange` does for rows that travel as text, and keep those out that the server would cut."""
    rows, bad = arrange(spec, batch)
    rows, cut = split_cut(rows, spec.write.columns)
    return rows, [*bad, *((name_place(row) if spec.write.ordered else row, reason) for row, reason in cut)]


def _write_encoded(
    connection: psycopg.Connection,
    spec: RangeSpec,
    isolator: BadRowIsolator,
    rows: Rows,
    columns: Sequence[binary.Target],
) -> tuple[RowSum, str, int]:
    """Send rows as the target has them, hashed on the way: straight into it, but where they are merged by key."""
    write, total = spec.write, RowSum()
    staged = write.ordered or write.mode in STAGED
    if staged:
        make_stage(connection, write)

    def encode(batch: pyarrow.RecordBatch) -> memoryview:
        found = binary.rows(batch, columns)
        total.add(found.to_pylist())
        return binary.block(found)

    form = _Form(options=binary.OPTIONS, beginning=binary.BEGINNING, encoded=encode, ending=binary.ENDING)
    copied = _copy_rows(connection, spec, isolator, rows, STAGE if staged else sql.SQL(write.target), form)
    checksum = total.finish(copied)
    if staged:
        _move(connection, spec)
    return total, checksum, isolator.bad


def _write_staged(
    connection: psycopg.Connection,
    spec: RangeSpec,
    isolator: BadRowIsolator,
    rows: Rows,
    load: "_Load",
) -> tuple[RowSum, str, int]:
    """Let the server make the target's types of the rows' text in a stage, hash what it made, and move it."""
    make_stage(connection, spec.write)
    load(connection, spec, isolator, rows)
    total, checksum = hash_stage(connection, spec.write)
    _move(connection, spec)
    return total, checksum, isolator.bad


def _move(connection: psycopg.Connection, spec: RangeSpec) -> None:
    if spec.write.ordered:
        move_in_order(connection, spec.write)
    elif spec.write.mode != MIRROR:
        move_stage(connection, spec.write, alone=spec.read.tells_position)


_Arrange = Callable[[RangeSpec, pyarrow.RecordBatch], tuple[pyarrow.RecordBatch, list[tuple[dict[str, Any], str]]]]


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How rows are put for COPY."""

    options: str
    encoded: Callable[[pyarrow.RecordBatch], bytes | memoryview]
    beginning: bytes = b""
    ending: bytes = b""
    arrange: "_Arrange" = arrange


def _copy_rows(
    connection: psycopg.Connection,
    spec: RangeSpec,
    isolator: BadRowIsolator,
    rows: Rows,
    table: sql.Composable,
    form: _Form,
) -> int:
    """Write all rows by one COPY and return how many the server took; ``RangeFailed`` where it refuses one."""
    # What is kept aside waits for the end of the stream, during which the connection does nothing else.
    aside: list[tuple[dict[str, Any], str]] = []
    try:
        with open_copy_in(connection, table, stage_columns(spec.write), form.options) as copy:
            copy.put(form.beginning)
            for batch in rows:
                good, bad = form.arrange(spec, batch)
                if good.num_rows:
                    copy.put(form.encoded(good))
                aside += bad
                isolator.check(aside)
                reach(Step.IN_COPY, spec.tag)
            copy.put(form.ending)
    except psycopg.DataError as error:
        raise RangeFailed(f"A row cannot go into {spec.write.fence} ({words(error)}): it is looked for.") from error
    for row, reason in aside:
        isolator.refuse(row, reason)
    return copy.rows


_Load = Callable[[psycopg.Connection, RangeSpec, BadRowIsolator, Rows], object]


def _at_once(connection: psycopg.Connection, spec: RangeSpec, isolator: BadRowIsolator, rows: Rows) -> None:
    form = _Form(options="FORMAT csv", encoded=to_csv, arrange=_arrange_text)
    _copy_rows(connection, spec, isolator, rows, STAGE, form)


def _isolate(connection: psycopg.Connection, spec: RangeSpec, isolator: BadRowIsolator, rows: Rows) -> None:
    def put(batch: pyarrow.RecordBatch) -> None:
        with open_copy_in(connection, STAGE, stage_columns(spec.write), "FORMAT csv") as copy:
            copy.put(to_csv(batch))

    for batch in rows:
        good, bad = _arrange_text(spec, batch)
        for row, reason in bad:
            isolator.refuse(row, reason)
        if good.num_rows:
            isolator.put(good, put)
        reach(Step.IN_COPY, spec.tag)


def to_csv(batch: pyarrow.RecordBatch) -> bytes:
    """Return rows as COPY reads them: text always in quotes, NULL never, bytes in hexadecimal.

    ``SinkRefused`` for a date or a moment that PostgreSQL cannot have.
    """
    columns = [_to_written(column) for column in batch.columns]
    text = io.BytesIO()
    numbers = [str(number) for number in range(len(columns))]
    csv.write_csv(pyarrow.record_batch(columns, names=numbers), text, _OPTIONS)
    return text.getvalue()


def _to_written(column: pyarrow.Array) -> pyarrow.Array:
    if _is_binary(column.type):
        return _to_hex(column)
    is_time = pyarrow.types.is_date32(column.type) or pyarrow.types.is_timestamp(column.type)
    return _to_far_times(column) if is_time and _is_far(column) else column


def _is_far(column: pyarrow.Array) -> bool:
    """Whether a date or a moment is outside of the years 1 to 9999, which alone Arrow writes as PostgreSQL reads."""
    bounds = pc.min_max(column.cast(pyarrow.timestamp("s"), safe=False).view(pyarrow.int64()))
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return least is not None and not _YEARS[0] <= least <= most < _YEARS[1]


def _to_far_times(column: pyarrow.Array) -> pyarrow.Array:
    if binary.is_too_early(column):
        raise SinkRefused(binary.TOO_EARLY)
    days = pyarrow.types.is_date32(column.type)
    zone = "" if days or column.type.tz is None else "Z"
    numbers = column.view(pyarrow.int32() if days else pyarrow.int64()).to_pylist()
    texts = numpy.array([each or 0 for each in numbers], "datetime64[D]" if days else "datetime64[us]").astype(str)
    written = [None if each is None else _to_era(text, zone) for each, text in zip(numbers, texts, strict=True)]
    return pyarrow.array(written, pyarrow.string())


def _to_era(text: str, zone: str) -> str:
    """Return a time of ISO, in which the year before 1 is 0, as PostgreSQL reads it."""
    year = text.partition("T")[0].rsplit("-", 2)[0]
    return f"{text}{zone}" if int(year) > 0 else f"{1 - int(year):04d}{text[len(year) :]}{zone} BC"


def _is_binary(type_: pyarrow.DataType) -> bool:
    return type_ in (pyarrow.binary(), pyarrow.large_binary())


def _to_hex(column: pyarrow.Array) -> pyarrow.Array:
    values = (None if value is None else (_HEX + value.hex().encode()).decode() for value in column.to_pylist())
    return pyarrow.array(values, pyarrow.string())
