"""Rows of one window of a rising column, told by their values."""

import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.core.messages import Window


def within(batch: pyarrow.RecordBatch, window: Window | None) -> pyarrow.RecordBatch:
    """Return the rows above ``after``, up to and with ``upto``; all without a window."""
    if window is None:
        return batch
    column = batch.column(window.column)
    kept = pc.less_equal(column, _scalar(window.upto, column.type))
    if window.after is not None:
        return batch.filter(pc.and_(kept, pc.greater(column, _scalar(window.after, column.type))))
    return batch.filter(pc.or_kleene(kept, pc.is_null(column)))


def _scalar(text: str, type_: pyarrow.DataType) -> pyarrow.Scalar:
    """Return a bound, which is text as PostgreSQL prints it in UTC, as a value of the column."""
    if pyarrow.types.is_timestamp(type_) and type_.tz:
        naive = text[:-3] if text.endswith("+00") else text
        return pyarrow.scalar(naive).cast(pyarrow.timestamp(type_.unit)).cast(pyarrow.int64()).cast(type_)
    return pyarrow.scalar(text).cast(type_)
