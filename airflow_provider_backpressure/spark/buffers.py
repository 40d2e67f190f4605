"""Between Arrow and numpy by way of their buffers, and scalars that are cut out of arrays.

Where PyArrow takes or gives Python's or numpy's objects it imports pandas: a third of a second in each new worker.
"""

import numpy
import pyarrow
import pyarrow.compute as pc


def _first(type_: pyarrow.DataType, *buffers: bytes) -> pyarrow.Scalar:
    return pyarrow.Array.from_buffers(type_, 1, [None, *map(pyarrow.py_buffer, buffers)])[0]


NOTHING = _first(pyarrow.large_binary(), bytes(16), b"")
"""No bytes, which is not NULL."""
FALSE, TRUE = (_first(pyarrow.bool_(), value) for value in (b"\0", b"\1"))


def numbers(column: pyarrow.Array) -> numpy.ndarray:
    """Return the values of a column of numbers or booleans, zero for NULL."""
    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.uint8())
    if not len(column):
        return numpy.empty(0, column.type.to_pandas_dtype())
    whole = numpy.frombuffer(column.buffers()[1], column.type.to_pandas_dtype())
    values = whole[column.offset : column.offset + len(column)]
    return numpy.where(present(column), values, values.dtype.type(0)) if column.null_count else values


def present(column: pyarrow.Array) -> numpy.ndarray:
    """Return where a column is not NULL."""
    return numbers(pc.is_valid(column)).view(bool)


def lengths(column: pyarrow.Array) -> numpy.ndarray:
    """Return the bytes of each text, zero for NULL."""
    return numbers(pc.binary_length(column))
