"""Changes of a log as typed batches."""

from decimal import Decimal

import pytest

from airflow_provider_backpressure.connectors.lake.tasks.change_batches import (
    ChangeBatches,
    pack_xids,
    split_change,
    unpack_xids,
)
from airflow_provider_backpressure.connectors.postgres.tasks.read import way_out
from airflow_provider_backpressure.core.snapshot.messages import Column
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.spark.change_rows import DELETE, KEPT, MOVE, TRUNCATE, UPSERT, change

COLUMNS = (
    Column(name="id", type="bigint"),
    Column(name="doc", type="text"),
    Column(name="raw", type="bytea"),
    Column(name="price", type="numeric(6,2)"),
    Column(name="even", type="boolean"),
)
ROWS = [
    change(1, UPSERT, [b"1", b'a "quoted", \n text', b"\\x00ff", b"1.50", b"t"], [None]),
    change(2, DELETE, [b"2", None, None, None, None], [None]),
    change(3, MOVE, [b"3", KEPT, None, b"0.01", b"f"], [b"2"]),
    change(4, TRUNCATE, [None] * 5, [None]),
    change(5, UPSERT, [b"5", b"", KEPT, None, KEPT], [None]),
]


def make() -> ChangeBatches:
    """Return a maker of batches that has made none."""
    return ChangeBatches(columns=COLUMNS, key=("id",), way_out=way_out)


@pytest.mark.statement("K2")
def test_values_are_those_of_their_types_and_what_is_kept_is_named() -> None:
    """K2: an empty text is no NULL, and a row that lacks values has its key as text."""
    made = make()
    batches = list(made.read([ROWS[:2], ROWS[2:]]))
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert rows == [
        (1, UPSERT, None, None, 1, 'a "quoted", \n text', b"\x00\xff", Decimal("1.50"), True),
        (2, DELETE, None, None, 2, None, None, None, None),
        (3, MOVE, [1], ["3"], 3, None, None, Decimal("0.01"), False),
        (4, TRUNCATE, None, None, None, None, None, None, None),
        (5, UPSERT, [2, 4], ["5"], 5, "", None, None, None),
    ]
    assert (made.truncated, made.kept, made.total.rows) == (4, {1, 2, 4}, 5)


def test_the_checksum_is_that_of_all_changes_in_whatever_batches() -> None:
    """A window that is read again has the same one; another change has another one."""
    sums = []
    for rows in ([ROWS], [[row] for row in ROWS], [ROWS[:4]]):
        made = make()
        for some in rows:
            list(made.read([some]))
        sums.append(str(made.total))
    assert sums[0] == sums[1] != sums[2]


def test_a_value_that_its_type_cannot_hold_names_its_column() -> None:
    """As where it is read by a range."""
    row = change(1, UPSERT, [b"1", None, None, b"NaN", None], [None])
    with pytest.raises(SourceRefused, match="Column price"):
        list(make().read([[row]]))


def test_a_change_is_split_into_its_parts() -> None:
    """Number, what was done, what is kept, the old key and the values."""
    assert split_change(ROWS[2]) == (3, MOVE, [1], [b"2", b"3", None, None, b"0.01", b"f"])


def test_transactions_come_back() -> None:
    """As numbers, each once."""
    assert unpack_xids(pack_xids([7, 3, 7, 2**32 - 1])) == [3, 7, 2**32 - 1]
    assert unpack_xids(pack_xids(())) == []
