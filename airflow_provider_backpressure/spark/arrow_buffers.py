"""Between Arrow and numpy by way of their buffers, and scalars that are cut out of arrays.

Where PyArrow takes or gives Python's or numpy's objects it imports pandas, which takes each new worker
about a quarter of a second.
"""

from collections.abc import Sequence
from typing import cast

import numpy
import pyarrow
import pyarrow.compute as pc


def _first(type_: pyarrow.DataType, *buffers: bytes) -> pyarrow.Scalar:
    return pyarrow.Array.from_buffers(type_, 1, [None, *map(pyarrow.py_buffer, buffers)])[0]


_MOST = 2**31 - 1
"""Bytes that 32-bit ends can count."""
NOTHING = _first(pyarrow.large_binary(), bytes(16), b"")
"""No bytes, which is not NULL."""
FALSE, TRUE = (_first(pyarrow.bool_(), value) for value in (b"\0", b"\1"))


def text(value: str) -> pyarrow.Scalar:
    """Return a text."""
    return of_bytes([value.encode()], pyarrow.string())[0]


def of_numbers(values: numpy.ndarray, type_: pyarrow.DataType, null: numpy.ndarray | None = None) -> pyarrow.Array:
    """Return a column of numbers as wide as its type has them; ``null``: where there are none."""
    return pyarrow.Array.from_buffers(type_, len(values), [_validity(null), pyarrow.py_buffer(values)])


def of_bytes(values: Sequence[bytes | None], type_: pyarrow.DataType) -> pyarrow.Array:
    """Return a column of bytes, or of texts in UTF-8 that nobody looks at; ``ArrowCapacityError`` for over 2 GiB."""
    null = None
    if None in values:
        null = numpy.fromiter((value is None for value in values), bool, len(values))
        texts: Sequence[bytes] = [value or b"" for value in values]
    else:
        texts = cast("Sequence[bytes]", values)
    ends = numpy.zeros(len(values) + 1, "i8")
    numpy.cumsum(numpy.fromiter(map(len, texts), "i8", len(texts)), out=ends[1:])
    if ends[-1] > _MOST:
        raise pyarrow.ArrowCapacityError(f"{ends[-1]} bytes are more than a column holds.")
    buffers = [_validity(null), pyarrow.py_buffer(ends.astype("i4")), pyarrow.py_buffer(b"".join(texts))]
    return pyarrow.Array.from_buffers(type_, len(values), buffers)


def _validity(null: numpy.ndarray | None) -> pyarrow.Buffer | None:
    if null is None or not null.any():
        return None
    return pyarrow.py_buffer(numpy.packbits(~null, bitorder="little"))


def numbers(column: pyarrow.Array) -> numpy.ndarray:
    """Return the values of a column of numbers or booleans, zero for NULL."""
    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.uint8())
    kind = column.type.to_pandas_dtype()
    if not len(column):
        return numpy.empty(0, kind)
    whole = numpy.frombuffer(column.buffers()[1], kind)
    values = whole[column.offset : column.offset + len(column)]
    return numpy.where(present(column), values, values.dtype.type(0)) if column.null_count else values


def present(column: pyarrow.Array) -> numpy.ndarray:
    """Return where a column is not NULL."""
    return numbers(pc.is_valid(column)).view(bool)


def lengths(column: pyarrow.Array) -> numpy.ndarray:
    """Return the bytes of each text, zero for NULL."""
    return numbers(pc.binary_length(column))
