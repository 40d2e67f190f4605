"""What is decided of a file before its first rows are written."""

import pyarrow
import pytest

from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import find_repetitive_columns


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (list(range(1000)), False),
        ([n // 4 for n in range(1000)], False),
        ([n % 100 for n in range(1000)], True),
        ([None] * 1000, True),
        ([None, *range(999)], False),
        ([], True),
    ],
)
def test_a_dictionary_is_made_of_values_that_come_again(values: list[int | None], found: bool) -> None:
    """NULL counts as a value."""
    table = pyarrow.table({"a.b": pyarrow.array(values, pyarrow.int64())})
    assert (find_repetitive_columns(table) == ["a.b"]) is found
