"""The end of a stream of rows, rows put aside, and what a writer asks of both."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.compute

from airflow_provider_backpressure.core.snapshot.spark_messages import Column, RangeSpec, ReadSpec, Slice, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import HIDDEN_PLACE, PLACE, TOMBSTONE, list_marks
from airflow_provider_backpressure.exceptions import RESTART, RangeFailed, RunnerRefused
from airflow_provider_backpressure.spark.arrow_buffers import FALSE, TRUE
from airflow_provider_backpressure.spark.column_types import carrier

END = "backpressure_end"
"""Last column of what is written: true in one row that follows all others and is not written itself."""


BAD = "backpressure_bad"
"""Last column but one where a reader keeps what it cannot take apart: NULL, or such a record's reason and value."""


def bad(reason: str, value: bytes | None, place: Mapping[str, int] | None = None) -> str:
    """Return what :data:`BAD` holds of a record: JSON, its value as text or in base64, and its position."""
    try:
        kept = {"value": None if value is None else value.decode()}
    except UnicodeDecodeError:
        kept = {"base64": base64.b64encode(value or b"").decode()}
    return json.dumps({**(place or {}), "reason": reason, **kept})


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
    for row, text in zip(rows.filter(marks.is_valid()).to_pylist(), marks.drop_null().to_pylist(), strict=True):
        said = json.loads(text)
        reason = said.pop("reason")
        kept = {name: value for name, value in name_place(row).items() if value is not None}
        found.append(({**kept, **said}, reason))
    return rows.filter(marks.is_null()), found


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


def check_types(batch: pyarrow.RecordBatch, columns: Sequence[Column]) -> None:
    """``RunnerRefused`` unless a transform gives the planned types: as text, the server might cut or round others."""
    for found, column in zip(batch.schema, columns, strict=True):
        if _plain(found.type) != _plain(carrier(column.type)[0]):
            raise RunnerRefused(
                f"The transform gives {found.name} as {found.type} where {column.type} was planned: let it give the "
                f"same type each time, and {RESTART}."
            )


def _plain(type_: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type of which another one is only another form: by its zone, or the size of its offsets."""
    if pyarrow.types.is_timestamp(type_) and type_.tz is not None:
        return pyarrow.timestamp(type_.unit, tz="UTC")
    return _FORMS.get(type_, type_)


_FORMS = {
    pyarrow.large_string(): pyarrow.string(),
    pyarrow.large_binary(): pyarrow.binary(),
    pyarrow.int8(): pyarrow.int16(),
}


def to_one_slice(spec: RangeSpec) -> Slice:
    """Return the range as one slice, since after a transform it can only be committed as a whole."""
    first, *others = spec.slices
    if not others:
        return first
    return Slice(slice_id=first.slice_id, query="", bounds={"pieces": [dict(piece.bounds) for piece in spec.slices]})


def split_marks(batch: pyarrow.RecordBatch, place: Sequence[str]) -> tuple[pyarrow.RecordBatch, pyarrow.RecordBatch]:
    """Return the rows of an ordered plan, and of each its position and whether it is a tombstone, as :data:`PLACE` and
    :data:`TOMBSTONE`; ``RunnerRefused`` without one of them.

    ``place``: the columns with the position. NULL is no mark of a tombstone: a join or a CASE of a transform makes it,
    and the row of a deleted key would be written.
    """
    names = (*place, TOMBSTONE)
    lacking = next((name for name in names[::-1] if batch.schema.get_field_index(name) < 0), None)
    if lacking is not None:
        raise RunnerRefused(
            f"The rows come without {lacking}, without which no row of a log can be upserted: let the transform keep "
            f"it and {RESTART}."
        )
    marks = pyarrow.record_batch([batch.column(name) for name in names], names=[*PLACE, TOMBSTONE])
    if marks.column(TOMBSTONE).null_count:
        raise RunnerRefused(
            f"The transform gives a row whose {TOMBSTONE} is NULL, so it is not known whether its key was deleted: let "
            f"the transform keep the mark of each record and {RESTART}."
        )
    gone = {TOMBSTONE, *find_hidden(place)}
    return batch.select([index for index, name in enumerate(batch.schema.names) if name not in gone]), marks


def find_hidden(place: Sequence[str]) -> dict[str, str]:
    """Return by hidden column of the position what it is called otherwise."""
    return {hidden: name for hidden, name in zip(place, PLACE, strict=True) if hidden != name}


_HIDDEN = {column.name: name for name, column in HIDDEN_PLACE.items()}


def name_place(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as people read it: without the mark of a tombstone, with its position under its common name."""
    return {_HIDDEN.get(name, name): value for name, value in row.items() if name != TOMBSTONE}


def hidden_columns(read: ReadSpec) -> tuple[Column, ...]:
    """Return the columns that a reader adds behind those of the source, for the writer alone."""
    return (
        *(list_marks(read.columns) if read.marks_tombstones else ()),
        *([Column(name=BAD, type="text")] if read.keep_bad else []),
    )
