"""Changes of a log, column by column: cut out of rows, or known before there are rows."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy
import pyarrow

from airflow_provider_backpressure.exceptions import RangeFailed
from airflow_provider_backpressure.spark import arrow_buffers as buffers

_SEQ, _OP, _KEPT = 6, 18, 20
"""Where a row has its number, what was done, and the length of what it keeps; see :mod:`.change_rows`."""
OWN_FIELDS = 3
"""Fields of a change before the old key: its number, what was done, what it keeps."""
_ARRAY_HEAD = 20
"""Bytes of an array before its numbers, each of which is two bytes behind its length."""
_LENGTH, _NUMBER = 4, 6


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


class ColumnarChanges(Sequence[bytes]):
    """Changes whose columns are known. Their rows are encoded when one of them is first asked for."""

    @abstractmethod
    def encode(self) -> list[bytes]:
        """Return the rows, as :func:`.change_rows.change` does."""
        ...

    @abstractmethod
    def columns(self) -> ChangeColumns:
        """Return what the rows say."""
        ...

    @cached_property
    def _rows(self) -> list[bytes]:
        return self.encode()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the rows."""
        return iter(self._rows)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        """Return one row, or some."""
        return self._rows[place]


def split_changes(rows: Sequence[bytes]) -> ChangeColumns:
    """Return what rows say, of which there is at least one; ``RangeFailed`` where they have not as many values."""
    if isinstance(rows, ColumnarChanges):
        return rows.columns()
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
    for _ in range(fields[0] - OWN_FIELDS):
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


def _read_numbers(data: bytes, at: numpy.ndarray, count: numpy.ndarray, lacking: numpy.ndarray) -> pyarrow.Array:
    """Return arrays of small numbers. ``at``: where each begins, behind its length; ``count``: numbers in each."""
    ends = numpy.cumsum(count)
    first = at + _ARRAY_HEAD + _LENGTH
    places = numpy.repeat(first - _NUMBER * (ends - count), count) + _NUMBER * numpy.arange(int(ends[-1]))
    values = buffers.of_numbers(buffers.view_numbers(data, ">i2")[places].astype("i2"), pyarrow.int16())
    return buffers.of_lists(count, values, ~lacking)
