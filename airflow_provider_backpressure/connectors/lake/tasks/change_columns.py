"""Changes of a log, which arrive as rows of a binary COPY, taken apart into columns: no object is made for a value."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.exceptions import RangeFailed
from airflow_provider_backpressure.spark import arrow_buffers as buffers

_SEQ, _OP, _KEPT = 6, 18, 20
"""Where a row has its number, what was done, and the length of what it keeps; see :mod:`..spark.change_rows`."""
_OWN_FIELDS = 3
_ARRAY_HEAD = 20
"""Bytes of an array before its numbers, each of which is two bytes behind its length."""
_LENGTH, _NUMBER = 4, 6
_BYTES = pyarrow.large_binary()
_QUOTE, _COMMA, _LINE = (buffers.first_of_bytes(each, _BYTES) for each in (b'"', b",", b"\n"))


@dataclass(frozen=True, kw_only=True)
class ChangeColumns:
    """Changes of one table, column by column."""

    numbers: numpy.ndarray
    """Of the changes, rising; 64 bits."""
    operations: numpy.ndarray
    """What was done; 16 bits."""
    lacking: numpy.ndarray
    """Which changes leave values out; booleans."""
    kept: pyarrow.Array
    """Numbers of the columns that a change leaves out, as ``list<int16>``; NULL where it has them all."""
    values: Sequence[pyarrow.Array]
    """Texts of the old key's columns and of the table's, as ``large_binary``; NULL also for what is left out."""


def split_changes(rows: Sequence[bytes]) -> ChangeColumns:
    """Return what rows say, of which there is at least one; ``RangeFailed`` where they have not as many values."""
    data, sizes = b"".join(rows), numpy.fromiter(map(len, rows), "i8", len(rows))
    starts = numpy.cumsum(sizes) - sizes
    fields, lengths = buffers.view_numbers(data, ">i2")[starts], buffers.view_numbers(data, ">i4")
    if (fields != fields[0]).any():
        raise RangeFailed("Changes of the log do not have as many values as their table has columns.")
    found = lengths[starts + _KEPT].astype("i8")
    lacking, at = found >= 0, starts + _KEPT + _LENGTH
    kept = _read_numbers(data, at, numpy.where(lacking, (found - _ARRAY_HEAD) // _NUMBER, 0), lacking)
    at = at + numpy.maximum(found, 0)
    whole, values = pyarrow.py_buffer(data), []
    for _ in range(fields[0] - _OWN_FIELDS):
        found = lengths[at].astype("i8")
        at = at + _LENGTH
        values.append(buffers.cut(whole, at, found))
        at = at + numpy.maximum(found, 0)
    return ChangeColumns(
        numbers=buffers.view_numbers(data, ">i8")[starts + _SEQ].astype("i8"),
        operations=buffers.view_numbers(data, ">i2")[starts + _OP].astype("i2"),
        lacking=lacking,
        kept=kept,
        values=values,
    )


def join_keys(columns: Sequence[pyarrow.Array], wanted: numpy.ndarray) -> pyarrow.Array:
    """Return the texts of the wanted rows' keys as ``list<string>``, and NULL for other rows."""
    places, width = numpy.flatnonzero(wanted), len(columns)
    rows = buffers.of_numbers(places, pyarrow.int64())
    texts = pyarrow.concat_arrays([column.take(rows) for column in columns])
    order = numpy.arange(len(places) * width).reshape(width, -1).T.ravel()
    values = texts.take(buffers.of_numbers(order, pyarrow.int64())).cast(pyarrow.large_string()).cast(pyarrow.string())
    return buffers.of_lists(numpy.where(wanted, width, 0), values, ~wanted)


def write_csv(columns: Sequence[pyarrow.Array]) -> pyarrow.Buffer:
    """Return rows of texts as CSV, where every text is in quotes and NULL is nothing at all."""
    quoted = []
    for column in columns:
        text = pc.replace_substring(column, '"', '""')
        text = pc.binary_join_element_wise(_QUOTE, text, _QUOTE, buffers.NOTHING)
        quoted.append(pc.fill_null(text, buffers.NOTHING))
    lines = pc.binary_join_element_wise(*quoted, _COMMA)
    lines = pc.binary_join_element_wise(lines, buffers.NOTHING, _LINE)
    return lines.buffers()[2].slice(0, int(numpy.sum(buffers.lengths(lines))))


def _read_numbers(data: bytes, at: numpy.ndarray, count: numpy.ndarray, lacking: numpy.ndarray) -> pyarrow.Array:
    """Return arrays of small numbers. ``at``: where each begins, behind its length; ``count``: numbers in each."""
    ends = numpy.cumsum(count)
    first = at + _ARRAY_HEAD + _LENGTH
    places = numpy.repeat(first - _NUMBER * (ends - count), count) + _NUMBER * numpy.arange(int(ends[-1]))
    values = buffers.of_numbers(buffers.view_numbers(data, ">i2")[places].astype("i2"), pyarrow.int16())
    return buffers.of_lists(count, values, ~lacking)
