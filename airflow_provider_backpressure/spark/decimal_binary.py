"""Exact numbers of Arrow: their words, and PostgreSQL's binary form of them, a whole column at a time."""

import numpy
import pyarrow

from airflow_provider_backpressure.spark.arrow_buffers import present

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
