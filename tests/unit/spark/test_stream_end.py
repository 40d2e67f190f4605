"""Checksums of values: the same for the same rows, whoever cut and ordered them."""

import datetime
from decimal import Decimal

import pyarrow
import pytest

from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.core.snapshot.topic_offsets import (
    HIDDEN_PLACE,
    PLACE,
    TOMBSTONE,
    find_place,
    list_marks,
)
from airflow_provider_backpressure.exceptions import RangeFailed, RunnerRefused
from airflow_provider_backpressure.spark.stream_end import BAD, apart, append_end, complete, name_place, split_marks
from airflow_provider_backpressure.spark.value_hash import BatchSum

ROWS = pyarrow.table(
    {
        "id": pyarrow.array([1, 2, 3], pyarrow.int64()),
        "text": ["a", None, ""],
        "bytes": pyarrow.array([b"\xff", b"", None], pyarrow.binary()),
        "amount": pyarrow.array([Decimal("1.50"), None, Decimal("-0.01")], pyarrow.decimal128(10, 2)),
        "at": pyarrow.array([datetime.datetime(2026, 1, 1), None, None], pyarrow.timestamp("us", "UTC")),
        "day": [datetime.date(1969, 12, 31), None, None],
        "flag": [True, None, False],
        "ratio": [float("nan"), 0.1, None],
    }
)


def total(table: pyarrow.Table, size: int = 10) -> BatchSum:
    found = BatchSum()
    for batch in table.to_batches(max_chunksize=size):
        found.update(batch)
    return found


def test_neither_order_nor_batches_matter_and_doubles_do():
    once, back = total(ROWS), total(ROWS.take([2, 0, 1]), 1)
    assert (once.rows, str(once)) == (3, str(back))
    assert once.bytes == back.bytes > 0
    twice = total(pyarrow.concat_tables([ROWS, ROWS.slice(0, 1)]))
    assert str(twice) != str(once)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": ["1"], "b": ["2:3"]}, {"a": ["1:2"], "b": ["3"]}),
        ({"a": [None]}, {"a": ["~"]}),
        ({"a": [""]}, {"a": pyarrow.array([None], pyarrow.string())}),
        ({"a": ["x"], "b": ["y"]}, {"a": ["y"], "b": ["x"]}),
        ({"a": [1.0]}, {"a": [1.0000000000000002]}),
        ({"a": [0]}, {"a": pyarrow.array([None], pyarrow.int64())}),
        ({str(n): [0 if n < 65 else None] for n in range(70)}, {str(n): [0 if n < 64 else None] for n in range(70)}),
    ],
)
def test_rows_that_differ_have_another_sum(one, other):
    assert str(total(pyarrow.table(one))) != str(total(pyarrow.table(other)))


def test_a_value_counts_and_not_the_width_of_its_type():
    numbers = {"a": pyarrow.array([7, -1], pyarrow.int32())}
    assert str(total(pyarrow.table(numbers))) == str(
        total(pyarrow.table({"a": pyarrow.array([7, -1], pyarrow.int64())}))
    )


def test_nothing_has_a_sum_too():
    assert (total(ROWS.slice(0, 0)).rows, str(BatchSum())) == (0, "values-xxh3:" + "0" * 16)


def test_what_is_ended_is_complete_and_what_broke_off_is_not():
    """A reader's batches pass, also none at all; without the row behind them they are half a range."""
    columns = (Column(name="id", type="bigint"), Column(name="text", type="text"))
    some = ROWS.select(["id", "text"])
    for table in (some, some.slice(0, 0)):
        batches = list(append_end(table.to_batches(max_chunksize=2), columns))
        assert pyarrow.Table.from_batches(complete(iter(batches))).equals(table)
        with pytest.raises(RangeFailed, match="broke off"):
            list(complete(iter(batches[:-1])))


def test_what_could_not_be_read_is_known_by_its_place_and_not_by_its_name():
    batch = pyarrow.record_batch({"id": [1, 2], BAD: ["mine", '{"reason": "r"}']})
    assert apart(batch, keep_bad=False) == (batch, [])
    twice = pyarrow.record_batch([*batch.columns, pyarrow.array([None, '{"reason": "r"}'])], names=["id", BAD, BAD])
    rows, bad = apart(twice, keep_bad=True)
    assert rows.column(1).to_pylist() == ["mine"]
    assert [reason for _, reason in bad] == ["r"]


@pytest.mark.statement("X6")
def test_a_mark_that_is_null_says_nothing_of_a_tombstone() -> None:
    """X6: as a join of a transform makes it; the row of a deleted key would be written, with NULL in its columns."""
    marks = pyarrow.array([True, False], pyarrow.bool_())
    names = [*PLACE, "id", TOMBSTONE]
    rows, found = split_marks(pyarrow.record_batch([[0, 0], [7, 8], [1, 2], marks], names=names), PLACE)
    assert rows.to_pydict() == {"partition": [0, 0], "offset": [7, 8], "id": [1, 2]}
    assert found.column(TOMBSTONE) == marks
    unknown = pyarrow.record_batch([[0, 0], [7, 8], [1, 2], pyarrow.array([True, None])], names=names)
    with pytest.raises(RunnerRefused, match=r"whose backpressure_tombstone is NULL, .* keep the mark of each record"):
        split_marks(unknown, PLACE)


@pytest.mark.parametrize("chosen", [("partition", "offset", "id"), ("id",), ("offset", "id"), ("id", "partition")])
def test_the_position_of_a_row_comes_hidden_where_it_is_not_chosen(chosen: tuple[str, ...]) -> None:
    """It is taken out of what goes into the target, and a row that is put aside has it by its common name."""
    columns = tuple(Column(name=name, type="bigint") for name in chosen)
    marks, place = list_marks(columns), find_place(columns)
    values = {"partition": 3, "offset": 7, "id": 1, TOMBSTONE: False}
    common = {hidden.name: name for name, hidden in HIDDEN_PLACE.items()}
    row = {each.name: values[common.get(each.name, each.name)] for each in (*columns, *marks)}
    rows, found = split_marks(pyarrow.RecordBatch.from_pylist([row]), place)
    assert rows.schema.names == [*chosen]
    assert found.to_pylist() == [{"partition": 3, "offset": 7, TOMBSTONE: False}]
    assert name_place(row) == {"partition": 3, "offset": 7, "id": 1}
    with pytest.raises(RunnerRefused, match=f"The rows come without {place[0]}"):
        split_marks(pyarrow.RecordBatch.from_pylist([row]).drop_columns([place[0]]), place)
