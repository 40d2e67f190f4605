"""Inserts and updates of ``pgoutput`` that have every value, and deletes, as changes, many at once.

No object is made for a value: numpy finds where each one ends, and Arrow cuts columns out or puts rows together.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.connectors.postgres.tasks.pgoutput_messages import Messages
from airflow_provider_backpressure.spark import arrow_buffers as buffers
from airflow_provider_backpressure.spark.change_columns import OWN_FIELDS, ChangeColumns, ColumnarChanges
from airflow_provider_backpressure.spark.change_rows import DELETE, NULL, UPSERT, head

_FIELDS, _VALUES = 6, 8
"""Where a message has the number of its values, and where they begin."""
_TEXT, _NULL, _DELETED = b"tnD"
_LENGTH = 4
_SEQ, _OP = slice(6, 14), 19
"""Where a row's head has its number, and the byte that says what was done."""
_BYTES = pyarrow.large_binary()
_NULL_FIELD = buffers.first_of_bytes(NULL, _BYTES)


@dataclass(frozen=True, kw_only=True)
class Values:
    """Where the values of one column are."""

    at: numpy.ndarray
    """Where the length of each begins; 64 bits."""
    lengths: numpy.ndarray
    """Bytes of each behind that; -1: NULL."""


@dataclass(frozen=True, kw_only=True)
class PlainChanges(ColumnarChanges):
    """Upserts that have every value, and deletes."""

    data: pyarrow.Buffer
    values: Sequence[Values | None]
    """Of each planned column; ``None``: NULL."""
    deleted: numpy.ndarray
    """Which changes are deletes; booleans."""
    first: int
    """The number of the first one."""
    key: int
    """Columns of the key."""

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.deleted)

    def encode(self) -> list[bytes]:
        """See :meth:`.ColumnarChanges.encode`."""
        rows = pc.binary_join_element_wise(self._make_heads(), *map(self._make_fields, self.values), buffers.NOTHING)
        found: list[bytes] = rows.to_pylist()
        return found

    def columns(self) -> ChangeColumns:
        """See :meth:`.ColumnarChanges.columns`."""
        nothing = pyarrow.nulls(len(self), _BYTES)
        return ChangeColumns(
            numbers=numpy.arange(self.first, self.first + len(self)),
            operations=numpy.where(self.deleted, DELETE, UPSERT).astype("i2"),
            lacking=numpy.zeros(len(self), bool),
            kept=pyarrow.nulls(len(self), pyarrow.list_(pyarrow.int16())),
            values=[
                *[nothing] * self.key,
                *(
                    nothing if each is None else buffers.cut(self.data, each.at + _LENGTH, each.lengths)
                    for each in self.values
                ),
            ],
        )

    def _make_fields(self, values: Values | None) -> pyarrow.Array | pyarrow.Scalar:
        """Return the values of a column with their lengths before them."""
        if values is None:
            return _NULL_FIELD
        sizes = numpy.where(values.lengths < 0, -1, values.lengths + _LENGTH)
        return pc.fill_null(buffers.cut(self.data, values.at, sizes), _NULL_FIELD)

    def _make_heads(self) -> pyarrow.Array:
        """Return the beginnings of rows, up to the old key."""
        one = head(0, UPSERT, OWN_FIELDS + self.key + len(self.values)) + NULL * (1 + self.key)
        heads = numpy.tile(numpy.frombuffer(one, "u1"), (len(self), 1))
        heads[:, _SEQ] = numpy.arange(self.first, self.first + len(self), dtype=">i8").view("u1").reshape(-1, 8)
        heads[self.deleted, _OP] = DELETE
        fixed = pyarrow.Array.from_buffers(pyarrow.binary(len(one)), len(self), [None, pyarrow.py_buffer(heads)])
        return fixed.cast(_BYTES)


def read_plain(
    messages: Messages, places: Sequence[int | None], *, first: int, key: Collection[int]
) -> PlainChanges | None:
    """Return changes of one table's rows; ``None`` where one of them leaves out a value, or is malformed.

    ``places``: of the planned columns in a message; ``None``: NULL. ``first``: the number of the first change.
    ``key``: numbers of the planned columns that a deleted row is known by.
    """
    data, ends, kinds = messages.data, messages.ends, numpy.frombuffer(messages.data, "u1")
    deleted, kept_places = kinds[messages.starts] == _DELETED, {places[number] for number in key}
    numbers = buffers.view_numbers(data, ">i2")[messages.starts + _FIELDS]
    lengths, at, found = buffers.view_numbers(data, ">i4"), messages.starts + _VALUES, list[Values]()
    if (numbers != numbers[0]).any():
        return None
    for place in range(numbers[0]):
        if (at >= ends).any():
            return None
        kind = kinds[at]
        there = kind == _TEXT
        if not (there | (kind == _NULL)).all():
            return None
        length = numpy.where(there, lengths[at + 1], -1).astype("i8")
        shown = length if place in kept_places else numpy.where(deleted, -1, length)
        found.append(Values(at=at + 1, lengths=shown))
        at = at + 1 + numpy.where(there, _LENGTH + length, 0)
    if not numpy.array_equal(at, ends):
        return None
    values = [None if place is None else found[place] for place in places]
    return PlainChanges(data=pyarrow.py_buffer(data), values=values, deleted=deleted, first=first, key=len(key))
