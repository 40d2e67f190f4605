"""Rows of a log by key, in the log's order: the last one wins, and a tombstone takes its key's row away."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import PLACE, TOMBSTONE, LogWindow, keyless
from airflow_provider_backpressure.exceptions import SinkRefused

GONE = "backpressure_gone"
"""Column that distinguishes a deleted key from a row."""
_AT, _RANK = ("backpressure_partition", "backpressure_offset"), "backpressure_rank"


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What is left of a range's rows once each has taken the place of the one before it with its key."""

    live: pyarrow.BooleanArray
    """By row, in the order in which they were written: whether it is the last of its key, and no tombstone."""
    gone: pyarrow.Table
    """Keys whose last row is a tombstone."""

    @property
    def is_every_row_live(self) -> bool:
        """Whether every row is live."""
        return bool(pc.all(self.live, min_count=0).as_py())

    def with_deletes(
        self, schema: pyarrow.Schema, batches: Iterable[pyarrow.RecordBatch]
    ) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
        """Return the live rows, and after them a row for each deleted key; :data:`GONE` distinguishes them."""
        fields = [pyarrow.field(each.name, each.type) for each in schema]
        marked = pyarrow.schema([*fields, pyarrow.field(GONE, pyarrow.bool_())])

        def rows() -> Iterator[pyarrow.RecordBatch]:
            for batch in self.select_live(batches):
                yield _mark_rows(
                    marked, {name: batch.column(name) for name in batch.schema.names}, batch.num_rows, False
                )
            for batch in self.gone.to_batches():
                yield _mark_rows(
                    marked, {name: batch.column(name) for name in batch.schema.names}, batch.num_rows, True
                )

        return marked, rows()

    def select_live(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Yield what is live of all rows, read back in the order in which they were written."""
        at = 0
        for batch in batches:
            yield batch.filter(self.live.slice(at, batch.num_rows))
            at += batch.num_rows


@dataclass(kw_only=True)
class Order:
    """Takes the rows of a range as they are written, and keeps of each its key and its place."""

    key: Sequence[str]
    name: str
    """How sentences call the table."""
    _held: list[pyarrow.RecordBatch] = field(default_factory=list)

    def add(self, rows: pyarrow.RecordBatch, marks: pyarrow.RecordBatch) -> None:
        """Add rows, and of each its position and whether it is a tombstone.

        ``SinkRefused`` names one without a key: it could be no row's successor, and have none.
        """
        keys = rows.select(list(self.key))
        self._check(keys, marks)
        names = [*keys.schema.names, *_AT, GONE]
        places = [marks.column(name).cast(pyarrow.int64()) for name in PLACE]
        self._held.append(pyarrow.record_batch([*keys.columns, *places, marks.column(TOMBSTONE)], names=names))

    def settle(self) -> Settled:
        """Return which rows stay."""
        held = pyarrow.Table.from_batches(self._held).combine_chunks()
        by_place = pc.sort_indices(held, [(name, "ascending") for name in _AT]).to_numpy()
        ranks = numpy.empty(held.num_rows, "<i8")
        ranks[by_place] = numpy.arange(held.num_rows)
        ranked = held.append_column(_RANK, pyarrow.array(ranks))
        last = ranked.group_by(list(self.key)).aggregate([(_RANK, "max")])[f"{_RANK}_max"].to_numpy()
        stays, gone = numpy.zeros(held.num_rows, bool), held[GONE].to_numpy()
        stays[by_place[last]] = True
        keys = held.select(list(self.key))
        return Settled(live=pyarrow.array(stays & ~gone), gone=keys.filter(pyarrow.array(stays & gone)))

    def _check(self, keys: pyarrow.RecordBatch, marks: pyarrow.RecordBatch) -> None:
        lacking = [pc.index(pc.is_null(column), True).as_py() for column in keys.columns if column.null_count]
        if lacking:
            partition, offset = (marks.column(name)[min(lacking)].as_py() for name in PLACE)
            raise keyless(partition, offset, self.key, self.name)


def _mark_rows(
    schema: pyarrow.Schema, columns: Mapping[str, pyarrow.Array], rows: int, gone: bool
) -> pyarrow.RecordBatch:
    """Return rows as the schema has them, NULL in the columns that are not there."""
    filled = [
        columns[each.name].cast(each.type) if each.name in columns else pyarrow.nulls(rows, each.type)
        for each in schema
    ]
    return pyarrow.record_batch([*filled[:-1], pyarrow.repeat(pyarrow.scalar(gone), rows)], schema=schema)


def check_unique(keys: pyarrow.Table, key: Sequence[str], name: str) -> None:
    """Raise ``SinkRefused`` where two rows of a range share their key, or one has none: which of them is to stay?

    ``keys``: the key's columns of all rows.
    """
    if any(column.null_count for column in keys.columns):
        raise SinkRefused(f"Rows for {name} have NULL in their key ({', '.join(key)}).")
    counted = keys.group_by(list(key)).aggregate([([], "count_all")])
    if counted.num_rows != keys.num_rows:
        double = counted.filter(pc.greater(counted["count_all"], 1)).select(list(key)).slice(0, 1).to_pylist()[0]
        raise SinkRefused(f"Several rows for {name} in one range have the key {double}.")


def within(batch: pyarrow.RecordBatch, window: Window | None) -> pyarrow.RecordBatch:
    """Return the rows above ``after``, up to and with ``upto``, or those of the log's offsets; all without a window."""
    if window is None:
        return batch
    log = LogWindow.from_window(window)
    if log is not None:
        return batch.filter(_build_filter(log))
    column = batch.column(window.column)
    kept = pc.less_equal(column, _scalar(window.upto, column.type))
    if window.after is not None:
        return batch.filter(pc.and_(kept, pc.greater(column, _scalar(window.after, column.type))))
    return batch.filter(pc.or_kleene(kept, pc.is_null(column)))


def of_window(window: Window) -> tuple[str, ...]:
    """Return the columns by which rows of a window are found."""
    return PLACE if LogWindow.from_window(window) is not None else (window.column,)


def _build_filter(log: LogWindow) -> pc.Expression:
    partition, offset = map(pc.field, PLACE)
    pieces = ((partition == each) & (offset >= start) & (offset < end) for each, start, end in log.pieces())
    return reduce(operator.or_, pieces, pc.scalar(False))


def _scalar(text: str, type_: pyarrow.DataType) -> pyarrow.Scalar:
    """Return a bound, which is text as PostgreSQL prints it in UTC, as a value of the column."""
    if pyarrow.types.is_timestamp(type_) and type_.tz:
        naive = text[:-3] if text.endswith("+00") else text
        return pyarrow.scalar(naive).cast(pyarrow.timestamp(type_.unit)).cast(pyarrow.int64()).cast(type_)
    return pyarrow.scalar(text).cast(type_)
