"""Rows in lists, as Spark keeps them."""

import pyarrow
import pytest

from airflow_provider_backpressure.connectors.lake.tasks.materialised_rows import (
    END,
    MOST_BYTES,
    MOST_ROWS,
    ROWS,
    RUN,
    declare,
    pack,
)

SCHEMA = pyarrow.schema([("n", pyarrow.int64()), ("text", pyarrow.string())])


def make_batch(count: int, text: str = "a") -> pyarrow.RecordBatch:
    return pyarrow.record_batch([pyarrow.array(range(count)), pyarrow.repeat(text, count)], schema=SCHEMA)


def test_the_schema_is_one_that_spark_reads() -> None:
    assert declare([("n", "bigint"), ("text", "string")]) == (
        "backpressure_rows array<struct<n: bigint, text: string>>, backpressure_run long, backpressure_end string"
    )


@pytest.mark.statement("K1", "K2")
def test_rows_come_in_their_order_and_behind_them_what_is_said() -> None:
    """K1, K2: all of one execution have its number, and nothing is said before the last row is there."""
    seen: list[str] = []
    packed = pack(iter([make_batch(2), make_batch(0), make_batch(MOST_ROWS + 1)]), SCHEMA, lambda: seen[0])
    batches = [next(packed), next(packed)]
    seen.append("all")
    batches += packed
    *lists, end = pyarrow.Table.from_batches(batches).to_pylist()
    assert [len(each[ROWS]) for each in lists] == [2, MOST_ROWS, 1]
    assert lists[0][ROWS] == [{"n": 0, "text": "a"}, {"n": 1, "text": "a"}]
    assert (end[ROWS], end[END]) == (None, "all")
    assert all(each[END] is None for each in lists)
    assert len({each[RUN] for each in (*lists, end)}) == 1


@pytest.mark.parametrize(("size", "expected"), [(MOST_BYTES // 4, [3, 3, 1]), (MOST_BYTES * 2, [1] * 7)])
def test_lists_of_wide_rows_are_short(size: int, expected: list[int]) -> None:
    lists = next(pack([make_batch(7, "x" * size)], SCHEMA, lambda: ""))
    assert [len(each) for each in lists.column(0).to_pylist()] == expected
