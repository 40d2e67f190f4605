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


def first_of_bytes(value: bytes, type_: pyarrow.DataType) -> pyarrow.Scalar:
    """Return bytes as a scalar of a type with 64-bit ends."""
    return _first(type_, numpy.array([0, len(value)], "i8").tobytes(), value)


def text(value: str) -> pyarrow.Scalar:
    """Return a text."""
    return of_bytes([value.encode()], pyarrow.string())[0]


def of_numbers(values: numpy.ndarray, type_: pyarrow.DataType, null: numpy.ndarray | None = None) -> pyarrow.Array:
    """Return a column of numbers as wide as its type has them; ``null``: where there are none."""
    return pyarrow.Array.from_buffers(type_, len(values), [_validity(null), pyarrow.py_buffer(values)])


def of_lists(counts: numpy.ndarray, values: pyarrow.Array, null: numpy.ndarray) -> pyarrow.Array:
    """Return a column of lists. ``counts``: how many values each has; ``null``: where there is no list."""
    ends = numpy.zeros(len(counts) + 1, "i4")
    numpy.cumsum(counts, out=ends[1:])
    layout = [_validity(null), pyarrow.py_buffer(ends)]
    return pyarrow.Array.from_buffers(pyarrow.list_(values.type), len(counts), layout, children=[values])


def view_numbers(data: bytes, type_: str) -> numpy.ndarray:
    """Return the numbers of a type that begin at each byte."""
    return numpy.ndarray((len(data) - numpy.dtype(type_).itemsize + 1,), type_, data, strides=(1,))


def cut(data: pyarrow.Buffer, at: numpy.ndarray, lengths: numpy.ndarray) -> pyarrow.Array:
    """Return a column of the bytes at rising places, as ``large_binary``; NULL where the length is negative.

    Every second text of an array is a value, and those between are what lies between two values.
    """
    bounds = numpy.empty(2 * len(at), "i8")
    bounds[0::2] = at
    bounds[1::2] = at + numpy.maximum(lengths, 0)
    layout = [None, pyarrow.py_buffer(bounds), data]
    between = pyarrow.Array.from_buffers(pyarrow.large_binary(), len(bounds) - 1, layout)
    return between.take(of_numbers(numpy.arange(0, len(bounds), 2), pyarrow.int64(), lengths < 0))


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


BASE, GROUP = 10_000, 4
"""A digit stands for so many decimal ones."""
POSITIVE, NEGATIVE = 0, 0x4000
"""Signs."""
MOST_DIGITS = 18
"""Decimal digits that surely fit into 64 bits."""
CELL, _HEAD = numpy.dtype(">i2"), 4
"""A value is four numbers (digits, weight of the first, sign, decimal places), then its digits, all of 16 bits."""


def to_words(column: pyarrow.Array) -> numpy.ndarray:
    """Return the two 64-bit words of each decimal128, the lower first; those of NULL are zero."""
    words = numpy.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)[column.offset : column.offset + len(column)]
    if not column.null_count:
        return words
    return numpy.where(present(column)[:, None], words, 0)


def encode(column: pyarrow.Array) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the values of a decimal column in 16-bit cells, and which cells of each row are a value's.

    They are what ``numeric_send`` gives for a column of this precision and scale: no zeros at either end.
    """
    precision, scale = column.type.precision, column.type.scale
    padding = -scale % GROUP
    after = (scale + padding) // GROUP
    before = -(-(precision - scale) // GROUP)
    numbers = _integers(column, padding)
    cells = numpy.empty((len(column), _HEAD + before + after), CELL)
    kept = numpy.ones(cells.shape, bool)
    rest, trailing = abs(numbers), numpy.ones(len(column), bool)
    count = numpy.zeros(len(column), CELL.newbyteorder("="))
    leading = count.copy()
    for place in range(_HEAD + before + after - 1, _HEAD - 1, -1):
        higher = rest // BASE
        digit = (rest - higher * BASE).astype(count.dtype)
        trailing &= digit == 0
        none_here = rest == 0
        there = ~(trailing | none_here)
        cells[:, place], kept[:, place] = digit, there
        count += there
        leading += none_here
        rest = higher
    cells[:, 0] = count
    cells[:, 1] = numpy.where(count == 0, 0, before - 1 - leading)
    cells[:, 2] = numpy.where(numbers < 0, NEGATIVE, POSITIVE)
    cells[:, 3] = scale
    return cells, kept


def _integers(column: pyarrow.Array, padding: int) -> numpy.ndarray:
    """Return the numbers without their point, with so many zeros behind them: of 64 bits where all of them fit."""
    words = to_words(column)
    low, high = words[:, 0], words[:, 1]
    least, most = -(2**63 // 10**padding) + 1, 2**63 // 10**padding - 1
    small = column.type.precision + padding <= MOST_DIGITS or bool(
        ((high == low >> 63) & (low >= least) & (low <= most)).all()
    )
    numbers = low if small else high.astype(object) * 2**64 + low.view("<u8").astype(object)
    moved: numpy.ndarray = numbers * 10**padding
    return moved
