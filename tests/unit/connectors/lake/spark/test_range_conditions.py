"""Bounds of ranges as conditions of Spark's."""

import pytest

from airflow_provider_backpressure.connectors.lake.spark.range_conditions import list_conditions
from airflow_provider_backpressure.core.snapshot.bounds import FileBounds, KeyBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused

pytestmark = pytest.mark.statement("L2")


@pytest.mark.parametrize(
    ("type_", "text", "literal"),
    [
        ("bigint", "-7", "CAST('-7' AS bigint)"),
        ("numeric(12,2)", "1.50", "CAST('1.50' AS decimal(12,2))"),
        ("text", "it's", "CAST(X'69742773' AS STRING)"),
        ("uuid", "00ff", "CAST(X'30306666' AS STRING)"),
        ("bytea", "\\x00FF", "X'00FF'"),
        ("date", "2024-02-29", "DATE '2024-02-29'"),
        ("timestamp without time zone", "2024-02-29 01:02:03.5", "TIMESTAMP_NTZ '2024-02-29 01:02:03.500000'"),
        ("timestamp(3) with time zone", "2024-02-29 01:02:03+00", "TIMESTAMP_LTZ '2024-02-29 01:02:03+00:00'"),
        ("timestamp with time zone", "2024-02-29 01:02:03", "TIMESTAMP_LTZ '2024-02-29 01:02:03+00:00'"),
    ],
)
def test_a_boundary_is_a_constant_of_the_columns_type(type_: str, text: str, literal: str) -> None:
    """L2: whatever is in the text, it is a value and no SQL."""
    found = list_conditions(KeyBounds.of_column(column="k", start=text, end=None), [Column(name="k", type=type_)])
    assert found == [f"`k` >= {literal}"]


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("bigint", "1) OR (1=1"),
        ("date", "infinity"),
        ("timestamp with time zone", "0044-03-15 00:00:00+00 BC"),
        ("numeric(9,2)", "NaN"),
        ("bytea", "'"),
    ],
)
def test_what_spark_cannot_have_is_refused(type_: str, text: str) -> None:
    with pytest.raises(SinkRefused, match="its boundary is no value that Spark has"):
        list_conditions(KeyBounds.of_column(column="k", start=None, end=text), [Column(name="k", type=type_)])


def test_rows_without_a_key_are_in_the_first_range_alone() -> None:
    """L2: the source has none of them, so that one range has to delete them."""
    columns = [Column(name="a", type="integer"), Column(name="b", type="integer")]
    first = KeyBounds(columns=("a", "b"), start=None, end=("1", "2"))
    last = KeyBounds(columns=("a", "b"), start=("1", "2"), end=None)
    one, two = "CAST('1' AS int)", "CAST('2' AS int)"
    assert list_conditions(first, columns, "t") == [
        f"((t.`a` <= {one} AND (t.`a` < {one} OR t.`b` < {two})) OR t.`a` IS NULL OR t.`b` IS NULL)"
    ]
    assert list_conditions(last, columns) == [f"(`a` >= {one} AND (`a` > {one} OR `b` >= {two}))"]
    assert list_conditions(KeyBounds(columns=("a", "b"), start=None, end=None), columns) == []
    with pytest.raises(SinkRefused, match="it is not cut by a key"):
        list_conditions(FileBounds(files=("f",), rows=1, checksum="c"), columns)
