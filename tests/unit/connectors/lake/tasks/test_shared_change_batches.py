"""Changes of several tables in one frame."""

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from airflow_provider_backpressure.connectors.lake.tasks.change_batches import KEPT as KEPT_COLUMN
from airflow_provider_backpressure.connectors.lake.tasks.change_batches import OP, SEQ, unpack_xids
from airflow_provider_backpressure.connectors.lake.tasks.materialised_rows import END, ROWS, RUN
from airflow_provider_backpressure.connectors.lake.tasks.shared_change_batches import (
    TABLE,
    SharedColumns,
    name_shared,
    read_batches,
)
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, StreamTable
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.spark.change_rows import DELETE, KEPT, UPSERT, change
from tests.support.lake_plans import make_followed_plan

ORDERS = (
    Column(name="id", type="bigint"),
    Column(name="note", type="text"),
    Column(name="parent", type="bigint"),
)
PRICES = (Column(name="price", type="numeric(6,2)"), Column(name="id", type="bigint"), Column(name="of", type="text"))
RARE = (Column(name="id", type="bigint"),)


def make_table(name: str, columns: tuple[Column, ...]) -> StreamTable:
    write = replace(make_followed_plan("p", ranges=1).write, columns=columns, key=("id",), fence=name)
    read = ReadSpec(kind="postgres_log", conn_id="source", columns=columns)
    return StreamTable(plan_id=name, epoch=1, query="", read=read, write=write)


TABLES = [make_table("orders", ORDERS), make_table("prices", PRICES), make_table("rare", RARE)]


class Log:
    """A window that was read."""

    def __init__(self, *changes: tuple[int, list[bytes]]) -> None:
        self.changes, self.seen = changes, list[int]()
        self.tables: Any = [SimpleNamespace(xids=[number + 7]) for number in range(len(TABLES))]

    def __iter__(self) -> Iterator[tuple[int, list[bytes]]]:
        return iter(self.changes)

    def await_visible(self, numbers: Collection[int]) -> None:
        self.seen = [*numbers]


@pytest.mark.statement("W2", "K2")
def test_columns_of_one_type_have_one_place() -> None:
    """W2, K2: the frame is as wide as the widest tables, and each row's values are in its own columns."""
    shared = SharedColumns.create([table.read.columns for table in TABLES])
    assert shared.list_fields() == [("s0", "bigint"), ("s1", "string"), ("s2", "bigint"), ("s3", "decimal(6,2)")]
    assert shared.places == ((0, 1, 2), (3, 0, 1), (0,))
    log = Log(
        (0, [change(1, UPSERT, [b"1", b"a", b"9"], [None])]),
        (1, [change(1, UPSERT, [b"1.50", b"5", b"x"], [None])]),
        (0, [change(2, UPSERT, [b"2", KEPT, None], [None]), change(3, DELETE, [b"1", None, None], [None])]),
    )
    *batches, last = read_batches(log, TABLES, shared)
    lists = pyarrow.Table.from_batches(batches).to_pylist()
    assert len({each[RUN] for each in lists}) == 1
    rows = [row for each in lists for row in each[ROWS]]
    found = [tuple(row[name] for name in (TABLE, SEQ, OP, KEPT_COLUMN, *map(name_shared, range(3)))) for row in rows]
    assert found == [
        (0, 1, UPSERT, None, 1, "a", 9),
        (0, 2, UPSERT, [1], 2, None, None),
        (0, 3, DELETE, None, 1, None, None),
        (1, 1, UPSERT, None, 5, "x", None),
    ]
    assert str(rows[3]["s3"]) == "1.50"
    said = json.loads(last.to_pylist()[0][END])
    assert {number: each["rows"] for number, each in said.items()} == {"0": 3, "1": 1}
    assert (said["0"]["kept"], said["0"]["once"], said["1"]["once"]) == ([1], False, True)
    assert unpack_xids(said["0"]["xids"]) == [7]
    assert log.seen == [0, 1], "readers of the source see the changes before any of them is committed"


@pytest.mark.statement("W6")
def test_a_value_that_a_column_cannot_hold_names_the_table() -> None:
    """W6: so that the others continue without it."""
    shared = SharedColumns.create([table.read.columns for table in TABLES])
    log = Log((1, [change(1, UPSERT, [b"no number", b"5", b"x"], [None])]))
    with pytest.raises(SourceRefused, match="The log cannot be replayed into prices: "):
        list(read_batches(log, TABLES, shared))
