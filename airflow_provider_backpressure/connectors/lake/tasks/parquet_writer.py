"""The Parquet files of one execution: as few as their size allows, hashed while they are written."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_backpressure.connectors.lake.base_table import LakeTable
from airflow_provider_backpressure.connectors.lake.last_row_per_key import Order, check_unique
from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import MARK, batches
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused, strip_frames
from airflow_provider_backpressure.spark.value_hash import BatchSum

NULLS = b"backpressure.nulls"
"""Key of a file's metadata with the number of NULLs of each column without statistics, as JSON."""
GROUP_BYTES = 64 * 1024 * 1024
"""Bytes of rows, as Arrow has them, that make a row group: what a task holds at the most."""
_SAMPLE, _REPEATED = 65_536, 10
"""Rows that are looked at, and how often a value has to come among them for a dictionary to be worth its making."""

_DAYS = (date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days
_DAY_MICROSECONDS = 86_400_000_000


def cast(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Return the columns of a schema, in its order and types; ``pyarrow.ArrowInvalid`` where values do not fit."""
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    return pyarrow.record_batch(columns, schema=schema)


def check_years(rows: pyarrow.RecordBatch) -> None:
    """Raise ``pyarrow.ArrowInvalid`` for a date or time outside of the years 1 to 9999, those that Python knows."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pyarrow.types.is_date32(column.type):
            first, last = _DAYS
        elif pyarrow.types.is_timestamp(column.type) and column.type.unit == "us":
            first, last = _DAYS[0] * _DAY_MICROSECONDS, (_DAYS[1] + 1) * _DAY_MICROSECONDS - 1
        else:
            continue
        ends = pc.min_max(column)
        for end in (ends["min"], ends["max"]):
            if end.is_valid and not first <= end.value <= last:
                text = end.cast(pyarrow.string()).as_py()
                raise pyarrow.ArrowInvalid(f"column {name}: {text} is outside of the years 1 to 9999")


def to_row(batch: pyarrow.RecordBatch) -> dict[str, Any]:
    """Return the only row of a batch; dates and times are text where Python has no such year."""
    try:
        return dict(batch.to_pylist()[0])
    except (OverflowError, ValueError):
        columns = [
            column.cast(pyarrow.string()) if pyarrow.types.is_temporal(column.type) else column
            for column in batch.columns
        ]
        return dict(pyarrow.record_batch(columns, names=batch.schema.names).to_pylist()[0])


def find_repetitive_columns(rows: pyarrow.Table) -> list[str]:
    """Return the columns whose values come again and again.

    Parquet gives every column a dictionary until that grows too large: two fifths of the time that writing takes.
    """
    return [
        name
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if pc.count_distinct(column, "all").as_py() * _REPEATED <= rows.num_rows
    ]


@dataclass(kw_only=True)
class Files:
    """Takes batches and makes files of them, which no reader sees."""

    table: LakeTable
    attempt: Attempt
    schema: pyarrow.Schema
    key: tuple[str, ...] = ()
    """Columns whose values have to differ from row to row; they are held in memory until the end."""
    order: Order | None = None
    """Takes the keys instead where later rows win over earlier ones."""
    names: list[str] = field(default_factory=list)
    _total: BatchSum = field(default_factory=BatchSum)
    _keys: list[pyarrow.RecordBatch] = field(default_factory=list)
    _held: list[pyarrow.RecordBatch] = field(default_factory=list)
    _held_bytes: int = 0
    _stream: pyarrow.NativeFile | None = None
    _writer: pq.ParquetWriter | None = None

    def put(self, rows: pyarrow.RecordBatch, marks: pyarrow.RecordBatch | None = None) -> None:
        """Add rows, which have the files' schema; ``marks``: positions and tombstones of those that have an order."""
        if not rows.num_rows:
            return
        self._total.update(rows)
        if self.order is not None and marks is not None:
            self.order.add(rows, marks)
        elif self.key:
            self._keys.append(rows.select(list(self.key)))
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= GROUP_BYTES:
            self._write_group()

    def finish(self, *, quarantined: int = 0) -> Mark:
        """Close the last file, whose footer is the mark, and return the mark.

        ``quarantined``: rows of the slice that are kept elsewhere.

        Without rows there is an empty file where a slice is one file, otherwise none. ``SinkRefused`` where two rows
        share their key.
        """
        self._write_group(last=True)
        if self._keys:
            check_unique(pyarrow.Table.from_batches(self._keys), self.key, self.table.name)
        mark = Mark.made(
            self.attempt,
            rows=self._total.rows,
            bytes=self._total.bytes,
            checksum=str(self._total),
            files=tuple(self.names),
            quarantined=quarantined,
        )
        self._close(mark)
        return mark

    def drop(self) -> None:
        """Delete what was written, as far as that can be done: it is not seen, and why it is dropped matters more."""
        with contextlib.suppress(OSError, pyarrow.ArrowException):
            self._close()
        with contextlib.suppress(OSError):
            self.table.drop(self.names)

    def _write_group(self, *, last: bool = False) -> None:
        alone = last and not self.names and self.table.file_bytes is None
        if not self._held and not alone:
            return
        rows = pyarrow.Table.from_batches(self._held, self.schema)
        if self._writer is None:
            self._open(rows)
        assert self._writer is not None
        assert self._stream is not None
        if self._held:
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._held, self._held_bytes = [], 0
        most = self.table.file_bytes
        if not last and most is not None and self._stream.tell() >= most:
            self._close()

    def _open(self, rows: pyarrow.Table) -> None:
        self.names.append(f"{self.attempt.stem}-{len(self.names)}.parquet")
        self._stream = self.table.output(self.names[-1])
        repetitive = find_repetitive_columns(rows.slice(0, _SAMPLE))
        self._writer = open_writer(self._stream, self.schema, use_dictionary=repetitive)

    def _close(self, mark: Mark | None = None) -> None:
        if self._writer is None or self._stream is None:
            return
        if mark is not None:
            self._writer.add_key_value_metadata({MARK: mark.to_json().encode()})
        self._writer.close()
        self._stream.close()
        self._writer = self._stream = None


@contextmanager
def require_files(table: str) -> Iterator[None]:
    """Raise ``RangeFailed`` where a staged file is not there: the next attempt writes it again.

    No reader sees such a file and no log names it, so a clean-up of the table may remove it.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise RangeFailed(
            f"A file of {table} was deleted before it was committed: {error}. The range is written again. Let no "
            "vacuum and no removal of orphan files delete files that are younger than a range takes."
        ) from strip_frames(error)


@dataclass(kw_only=True)
class StagedRows:
    """The rows of an attempt's files, in the order in which they were written."""

    mark: Mark
    table: str
    """How sentences call the table."""
    open_file: Callable[[str], pyarrow.NativeFile]
    error: RangeFailed | SinkRefused | None = None
    """What ended the last :meth:`read`: a library that reads may raise an error of its own instead."""

    def read(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield them all. ``RangeFailed`` where a file is gone, or where rows are not as many as were written."""
        self.error, rows = None, 0
        try:
            for name in self.mark.files:
                with require_files(self.table):
                    stream = self.open_file(name)
                for batch in batches(stream):
                    rows += batch.num_rows
                    yield batch
            if rows != self.mark.rows:
                raise RangeFailed(
                    f"The files of slice {self.mark.slice_id} hold {rows} rows before they are committed to "
                    f"{self.table}, and {self.mark.rows} were written. The range is written again."
                )
        except RangeFailed as error:
            self.error = error
            raise

    def read_as(self, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        """Yield them with the table's columns in the table's order, which libraries take by position."""
        return (cast(batch, schema) for batch in self.read())


def check_arriving(table: str, there: Iterable[str], write: WriteSpec) -> None:
    """Raise ``SinkRefused`` where a table has got a column that does not arrive: merged rows would lose its values."""
    missing = sorted(set(there) - {column.name for column in write.columns})
    if missing:
        raise SinkRefused(
            f"{table} has the column {missing[0]}, which the arriving rows do not have: drop it there, or add it to "
            "the source and restart."
        )


class CountingWriter(pq.ParquetWriter):  # type: ignore[misc]
    """Writes the number of NULLs of columns without statistics into the footer, for the manifests of Iceberg."""

    def __init__(self, stream: pyarrow.NativeFile, schema: pyarrow.Schema, **more: Any) -> None:
        super().__init__(stream, schema, **more)
        self._nulls = {each.name: 0 for each in schema if pyarrow.types.is_floating(each.type)}

    def write_table(self, table: pyarrow.Table, row_group_size: int | None = None) -> None:
        """Write rows, and count their NULLs."""
        for name in self._nulls:
            self._nulls[name] += table.column(name).null_count
        super().write_table(table, row_group_size)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self.is_open and self._nulls:
            self.add_key_value_metadata({NULLS: json.dumps(self._nulls).encode()})
        super().close()


def open_writer(stream: pyarrow.NativeFile, schema: pyarrow.Schema, **more: Any) -> pq.ParquetWriter:
    """Return a writer of a file of rows."""
    return CountingWriter(
        stream,
        schema,
        compression="zstd",
        # Bounds leave NaN out: a filter by `!=` in Arrow then skips a row group that holds NaN.
        write_statistics=[each.name for each in schema if not pyarrow.types.is_floating(each.type)],
        store_decimal_as_integer=True,
        **more,
    )
