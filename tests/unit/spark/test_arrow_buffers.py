"""Columns by way of their buffers are those that PyArrow makes itself."""

from typing import Any

import numpy
import pyarrow
import pytest

from airflow_provider_backpressure.spark import arrow_buffers as buffers


@pytest.mark.parametrize("values", [[], [b""], [b"a", None, b"", b"long" * 9], [None], ["ä".encode()] * 9])
@pytest.mark.parametrize("type_", [pyarrow.binary(), pyarrow.string()])
def test_bytes_and_texts(values: list[bytes | None], type_: pyarrow.DataType) -> None:
    """Nothing is apart from NULL."""
    made, own = buffers.of_bytes(values, type_), pyarrow.array(values, pyarrow.binary()).cast(type_)
    made.validate(full=True)
    assert made.equals(own)
    assert made.null_count == own.null_count
    assert buffers.lengths(made).tolist() == [len(value or b"") for value in values]


def test_more_than_a_column_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ends would begin again at the least number."""
    monkeypatch.setattr(buffers, "_MOST", 5)
    assert len(buffers.of_bytes([b"abc", b"de"], pyarrow.binary())) == 2
    with pytest.raises(pyarrow.ArrowCapacityError, match="6 bytes"):
        buffers.of_bytes([b"abc", b"def"], pyarrow.binary())


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, None, -3, 4], pyarrow.int32()),
        ([1.5, None, float("inf"), 0.0], pyarrow.float64()),
        ([True, False, None, True] * 5, pyarrow.bool_()),
        ([1, 2, 3, 4], pyarrow.int64()),
    ],
)
@pytest.mark.parametrize("begin", [0, 1, 3])
def test_numbers_of_a_part_of_a_column(values: list[Any], type_: pyarrow.DataType, begin: int) -> None:
    """Zero stands for NULL."""
    column = pyarrow.array(values, type_).slice(begin)
    assert buffers.numbers(column).tolist() == [value or 0 for value in values[begin:]]
    assert buffers.present(column).tolist() == [value is not None for value in values[begin:]]
    assert buffers.numbers(column.slice(0, 0)).tolist() == []


def test_numbers_become_a_column() -> None:
    """Where there is none, whatever stands there is NULL."""
    null = numpy.array([False, True, False])
    assert buffers.of_numbers(numpy.arange(3, dtype="i4"), pyarrow.int32(), null).to_pylist() == [0, None, 2]
    assert buffers.of_numbers(numpy.arange(3), pyarrow.int64(), ~null & null).null_count == 0


def test_scalars() -> None:
    """They are what they are called."""
    assert (buffers.NOTHING.as_py(), buffers.TRUE.as_py(), buffers.FALSE.as_py()) == (b"", True, False)
    assert buffers.text("Größe").as_py() == "Größe"
