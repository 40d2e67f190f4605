r"""Rows as lines of CSV, from any server: whole rows cut into pieces, and each piece typed at once.

Every text is in quotes and only NULL is nothing at all; bytes are ``\x`` and hexadecimal digits.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow
import pyarrow.compute
from pyarrow import csv

from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.spark.column_types import carrier

BLOCK = 512 * 1024
"""Bytes of text parsed at a time: enough that the parser's own start does not count."""
_PARSE = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
_FLOATS = (pyarrow.float32(), pyarrow.float64())
_COLUMN = re.compile(r"In CSV column #(\d+)")


def pieces(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield whole rows, which arrive in texts of any size, in pieces of about :data:`BLOCK` bytes."""
    waiting = bytearray()
    for text in texts:
        waiting += text
        if len(waiting) >= BLOCK:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def parse(
    text: bytes | pyarrow.Buffer, columns: Sequence[Column], way_out: Callable[[Column], str], *, bits: bool = False
) -> pyarrow.Table:
    """Return whole CSV rows as a table of these columns; ``SourceRefused`` where a value does not fit its type.

    ``way_out``: what might be the matter with a column, and what to do about it. ``bits``: floating-point numbers come
    as the hexadecimal digits of a double's 8 bytes, the lowest first.
    """
    types = [carrier(column.type)[0] for column in columns]
    coded = [
        _from_hex if type_ == pyarrow.binary() else _floats if bits and type_ in _FLOATS else None for type_ in types
    ]
    # Columns go by number: a database's names may differ in nothing but case, or hold anything at all.
    numbers = [str(number) for number in range(len(columns))]
    convert = csv.ConvertOptions(
        column_types={
            number: pyarrow.string() if decode else type_
            for number, type_, decode in zip(numbers, types, coded, strict=True)
        },
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    )
    read = csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=numbers)
    try:
        table = csv.read_csv(pyarrow.BufferReader(text), read, _PARSE, convert)
    except pyarrow.ArrowInvalid as error:
        raise SourceRefused(_misfit(str(error), columns, way_out)) from error
    arrays = [
        decode(column).cast(type_) if decode else column
        for column, type_, decode in zip(table.columns, types, coded, strict=True)
    ]
    return pyarrow.table(arrays, names=[column.name for column in columns])


def _from_hex(column: pyarrow.ChunkedArray) -> pyarrow.Array:
    r"""Return bytes for ``\x…``."""
    values = (None if text is None else bytes.fromhex(text[2:]) for text in column.to_pylist())
    return pyarrow.array(values, pyarrow.binary())


def _floats(column: pyarrow.ChunkedArray) -> pyarrow.Array:
    """Return the numbers of their bits; a float's are those of the double that is the same number."""
    texts = pyarrow.compute.fill_null(column, "0" * 16)
    numbers = bytes.fromhex("".join(texts.to_pylist()))
    return pyarrow.Array.from_buffers(
        pyarrow.float64(), len(column), [_validity(column), pyarrow.py_buffer(numbers)], column.null_count
    )


def _validity(column: pyarrow.ChunkedArray) -> pyarrow.Buffer | None:
    if not column.null_count:
        return None
    valid: pyarrow.Buffer = column.is_valid().combine_chunks().buffers()[1]
    return valid


def _misfit(text: str, columns: Sequence[Column], way_out: Callable[[Column], str]) -> str:
    match = _COLUMN.match(text)
    if match is None:
        return "The source's rows could not be understood as CSV."
    return describe_misfit(columns[int(match[1])], way_out)


def describe_misfit(column: Column, way_out: Callable[[Column], str]) -> str:
    """Return the sentence about a value that does not fit its column's type."""
    spark = carrier(column.type)[1].simpleString()
    return f"Column {column.name} ({column.type}) holds a value that Spark's {spark} cannot {way_out(column)}"
