"""Rows of one window of a rising column or of a log, found by their values."""

import operator
from functools import reduce

import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.core.snapshot.messages import Window
from airflow_provider_backpressure.core.snapshot.offsets import PLACE, LogWindow


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
