"""Changes of a log on their way into the sink: rows of a binary COPY, every value as text.

A row is :data:`FIELDS` of its own, then the old key where the key was changed, then the columns as planned. A reader
of a log makes such rows by :func:`change`, or bytes that are the same; the sink alone folds them by key, so that
nothing of a window has to be held in memory.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Protocol, cast

import pyarrow
import pyarrow.compute

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.messages import Column, RangeSpec, ReadSpec, Slice, WriteSpec
from airflow_provider_backpressure.core.snapshot.offsets import TOMBSTONE
from airflow_provider_backpressure.exceptions import RangeFailed, RunnerRefused
from airflow_provider_backpressure.spark.arrow_buffers import FALSE, TRUE
from airflow_provider_backpressure.spark.registry import task_module
from airflow_provider_backpressure.spark.types import carrier

DELETE, UPSERT, MOVE, TRUNCATE = 0, 1, 2, 3
"""What was done: ``MOVE`` is the upsert of a row whose key was another one before; the ``DELETE`` of that one has the
number just below its own. ``TRUNCATE`` has no values."""
FIELDS = ("seq bigint", "op smallint", "kept smallint[]")
"""Number in the window, rising; what was done; numbers from 0 of columns that the log leaves out as unchanged."""
NULL = b"\xff\xff\xff\xff"
_HEAD = Struct(">hiqih")
_LENGTH = Struct(">i")
_SMALLINT = 21


class _Kept:
    """Stands for a value that the log leaves out since it did not change."""


KEPT = _Kept()
Value = bytes | None | _Kept


class Changes(Protocol):
    """One window's changes, being read."""

    read_at: str
    """The log's position after the latest row that was read again; empty where none was."""

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield rows of a binary COPY, some at a time, in the log's order."""
        ...

    def again(self, keys: Sequence[Sequence[str]]) -> Iterator[list[bytes]]:
        """Yield the rows of these keys as they are in the source now, as ``UPSERT``; none for a key that is gone."""
        ...


class LogReader(Protocol):
    """What a module of a kind that can be replayed has beside its ``read``."""

    def position(self, source: Endpoint, name: str) -> str:
        """Return the log's position, once everything before that is safe on the source's disk (a ``LogPosition``)."""
        ...

    def changes(self, source: Endpoint, read: ReadSpec, piece: Slice, key: Sequence[str], name: str) -> Changes:
        """Return the changes of a window; ``key``: the columns that the target is upserted by.

        Errors: ``SourceRefused``, ``SourceUnavailable``, ``LogLost``.
        """
        ...


def log_reader(kind: str) -> LogReader:
    """Return the reader of a log; :class:`InvalidDeclaration` where there is none."""
    return cast("LogReader", task_module(kind.removesuffix("_log"), "changes"))


def change(seq: int, op: int, values: Sequence[Value], old_key: Sequence[Value]) -> bytes:
    """Return a row. ``old_key``: as many values as the key has columns, each ``None`` but for a ``MOVE``."""
    kept = [number for number, value in enumerate(values) if value is KEPT]
    parts = [head(seq, op, 3 + len(old_key) + len(values)), numbers(kept) if kept else NULL]
    for value in (*old_key, *values):
        parts.append(NULL if value is None or isinstance(value, _Kept) else _LENGTH.pack(len(value)) + value)
    return b"".join(parts)


def head(seq: int, op: int, fields: int) -> bytes:
    """Return a row's beginning, up to what it keeps: the number of its fields, its own number, what was done."""
    return _HEAD.pack(fields, 8, seq, 2, op)


def numbers(values: Sequence[int]) -> bytes:
    """Return a field that holds an array of small integers."""
    body = Struct(">iiiii").pack(1, 0, _SMALLINT, len(values), 1)
    body += b"".join(Struct(">ih").pack(2, value) for value in values)
    return _LENGTH.pack(len(body)) + body


END = "backpressure_end"
"""Last column of what is written: true in one row that follows all others and is not written itself."""
BAD = "backpressure_bad"
"""Last column but one where a reader keeps what it cannot take apart: NULL, or such a record's reason and value."""


def bad(reason: str, value: bytes | None) -> str:
    """Return what :data:`BAD` holds of a record: JSON, its value as text or in base64."""
    try:
        kept = {"value": None if value is None else value.decode()}
    except UnicodeDecodeError:
        kept = {"base64": base64.b64encode(value or b"").decode()}
    return json.dumps({"reason": reason, **kept})


def apart(
    batch: pyarrow.RecordBatch, *, keep_bad: bool
) -> tuple[pyarrow.RecordBatch, list[tuple[dict[str, Any], str]]]:
    """Return the rows of a batch, and the records that could not be taken apart, each with the reason.

    ``keep_bad``: its last column is :data:`BAD`. The name alone does not say so: a table may have such a column too.
    """
    if not keep_bad:
        return batch, []
    marks, rows = batch.column(batch.num_columns - 1), batch.select(range(batch.num_columns - 1))
    if marks.null_count == len(marks):
        return rows, []
    found = []
    for row, text in zip(rows.to_pylist(), marks.to_pylist(), strict=True):
        if text is not None:
            said = json.loads(text)
            reason = said.pop("reason")
            kept = {name: value for name, value in row.items() if value is not None and name != TOMBSTONE}
            found.append(({**kept, **said}, reason))
    return rows.filter(pyarrow.compute.is_null(marks)), found


def split_tombstones(batch: pyarrow.RecordBatch) -> tuple[pyarrow.RecordBatch, pyarrow.BooleanArray]:
    """Return the rows of an ordered plan, and by row whether it is a tombstone; ``RunnerRefused`` without the mark."""
    at = batch.schema.get_field_index(TOMBSTONE)
    if at < 0:
        raise RunnerRefused(f"The transform does not give {TOMBSTONE}, without which no row of a log can be upserted.")
    rest = batch.select([index for index in range(batch.num_columns) if index != at])
    return rest, pyarrow.compute.fill_null(batch.column(at), False)


def complete(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches without the last column and the last row; ``RangeFailed`` where that row is missing.

    A worker whose input breaks off sees an ordinary end of it, and half a range must not be committed.
    """
    ended = False
    for batch in batches:
        if ended:
            raise RangeFailed("Rows arrived behind the end of their range.")
        ended = bool(pyarrow.compute.any(batch.column(batch.num_columns - 1)).as_py())
        rows = batch.select(range(batch.num_columns - 1))
        yield rows.slice(0, rows.num_rows - 1) if ended else rows
    if not ended:
        raise RangeFailed("The rows broke off before the end of their range.")


def hidden_columns(read: ReadSpec) -> tuple[Column, ...]:
    """Return the columns that a reader adds behind those of the source, for the writer alone."""
    return (
        *([Column(name=TOMBSTONE, type="boolean", nullable=False)] if read.marks_tombstones else []),
        *([Column(name=BAD, type="text")] if read.keep_bad else []),
    )


def append_end(
    batches: Iterable[pyarrow.RecordBatch], columns: Sequence[Column], hidden: Sequence[Column] = ()
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches with the last column, and behind them the row that :func:`complete` looks for.

    ``hidden``: what the batches have behind these columns, see :func:`hidden_columns`.
    """
    types = [carrier(column.type)[0] for column in (*columns, *hidden)]
    names = [*(column.name for column in (*columns, *hidden)), END]
    for batch in batches:
        going_on = pyarrow.repeat(FALSE, batch.num_rows)
        yield pyarrow.record_batch([*batch.columns, going_on], names=names)
    nothing = [pyarrow.nulls(1, type_) for type_ in types]
    yield pyarrow.record_batch([*nothing, pyarrow.repeat(TRUE, 1)], names=names)


def check_names(batch: pyarrow.RecordBatch, write: WriteSpec) -> None:
    """``RunnerRefused`` unless the rows have the planned columns: a transform may be changed in mid-plan."""
    planned = [column.name for column in write.columns]
    if batch.schema.names != planned:
        raise RunnerRefused(f"The transform gives the columns {batch.schema.names} where {planned} were planned.")


def to_one_slice(spec: RangeSpec) -> Slice:
    """Return the range as one slice, since after a transform it can only be committed as a whole."""
    first, *others = spec.slices
    if not others:
        return first
    return Slice(slice_id=first.slice_id, query="", bounds={"pieces": [dict(piece.bounds) for piece in spec.slices]})
