"""Inserts and updates of ``pgoutput`` that have every value, and deletes, as rows of changes, many at once.

No object is made for a value: numpy finds where each one ends, and Arrow puts the rows together.
"""

from collections.abc import Collection, Sequence

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.spark import arrow_buffers as buffers
from airflow_provider_backpressure.spark.change_rows import DELETE, NULL, head

FEW = 16
"""Messages up to which each is decoded by itself."""
_FIELDS, _VALUES = 6, 8
"""Where a message has the number of its values, and where they begin."""
_TEXT, _NULL, _DELETED = b"tnD"
_LENGTH = 4
_HEAD = len(head(0, 0, 0))
_SEQ, _OP = slice(6, 14), 19
"""Where a row's head has its number, and the byte that says what was done."""
_NULL_FIELD = buffers.first_of_bytes(NULL, pyarrow.large_binary())


def encode_plain(
    messages: Sequence[bytes],
    places: Sequence[int | None],
    *,
    first: int,
    head: bytes,
    nothing: bytes,
    key: Collection[int],
) -> list[bytes] | None:
    """Return the rows of messages of one table; ``None`` where one of them leaves out a value, or is malformed.

    ``places``: of the planned columns in a message; ``None``: NULL. ``first``: the number of the first row; ``head``:
    of any of them; ``nothing``: what is kept and the old key, where there is neither. ``key``: numbers of the planned
    columns that a deleted row is known by.
    """
    data, sizes = b"".join(messages), numpy.fromiter(map(len, messages), "i8", len(messages))
    ends = numpy.cumsum(sizes)
    starts, whole, kinds = ends - sizes, pyarrow.py_buffer(data), numpy.frombuffer(data, "u1")
    deleted, kept_places = kinds[starts] == _DELETED, {places[number] for number in key}
    numbers = buffers.view_numbers(data, ">i2")[starts + _FIELDS]
    # Behind the last value nothing may be read.
    lengths, at, fields = buffers.view_numbers(data + bytes(_LENGTH), ">i4"), starts + _VALUES, []
    if (numbers != numbers[0]).any():
        return None
    for place in range(numbers[0]):
        if (at >= ends).any():
            return None
        kind = kinds[at]
        there = kind == _TEXT
        if not (there | (kind == _NULL)).all():
            return None
        length = numpy.where(there, _LENGTH + lengths[at + 1], -1)
        shown = length if place in kept_places else numpy.where(deleted, -1, length)
        fields.append(pc.fill_null(buffers.cut(whole, at + 1, shown), _NULL_FIELD))
        at = at + 1 + numpy.maximum(length, 0)
    if not numpy.array_equal(at, ends):
        return None
    rows = pc.binary_join_element_wise(
        _make_heads(first, deleted, head + nothing),
        *(_NULL_FIELD if place is None else fields[place] for place in places),
        buffers.NOTHING,
    )
    found: list[bytes] = rows.to_pylist()
    return found


def _make_heads(first: int, deleted: numpy.ndarray, head: bytes) -> pyarrow.Array:
    """Return the beginnings of rows, with their numbers and what was done."""
    count = len(deleted)
    heads = numpy.tile(numpy.frombuffer(head, "u1"), (count, 1))
    heads[:, _SEQ] = numpy.arange(first, first + count, dtype=">i8").view("u1").reshape(count, -1)
    heads[deleted, _OP] = DELETE
    fixed = pyarrow.Array.from_buffers(pyarrow.binary(len(head)), count, [None, pyarrow.py_buffer(heads)])
    return fixed.cast(pyarrow.large_binary())
