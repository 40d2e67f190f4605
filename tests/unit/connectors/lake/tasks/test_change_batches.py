"""Changes of a log as typed batches."""

from decimal import Decimal
from random import Random

import pytest

from airflow_provider_backpressure.connectors.lake.tasks.change_batches import (
    ChangeBatches,
    pack_xids,
    unpack_xids,
)
from airflow_provider_backpressure.connectors.postgres.tasks.read import way_out
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import RangeFailed, SourceRefused
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


def test_any_changes_come_back_as_they_were_written() -> None:
    """Keys of several columns, old keys, NULL, texts that look like CSV, and any columns left out, in odd batches."""
    random, columns = Random(7), [Column(name=name, type="text") for name in "abcd"]
    texts = ["", "x", ',"', '"\n"', "ä" * 50]
    rows, wanted = [], []
    for seq in range(1, 3001):
        op = random.choice((UPSERT, DELETE, MOVE))
        key, rest = random.choices(texts, k=2), random.choices([*texts, None], k=2)
        kept = [number for number in (2, 3) if op != DELETE and random.random() < 0.3]
        values = [
            KEPT if place in kept else None if each is None else each.encode()
            for place, each in enumerate([*key, *rest])
        ]
        rows.append(change(seq, op, values, random.choices([b"old", None], k=2) if op == MOVE else [None, None]))
        shown = [None if place in kept else each for place, each in enumerate([*key, *rest])]
        wanted.append((seq, op, kept or None, key if kept else None, *shown))
    made = ChangeBatches(columns=columns, key=("a", "b"), way_out=way_out)
    batches = made.read([rows[:1], rows[1:1800], rows[1800:]])
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == wanted
    assert (made.kept, made.moved, made.total.rows) == ({2, 3}, True, 3000)


def test_a_change_with_another_number_of_values_is_refused() -> None:
    """Where columns end is not written down: values of one would be taken for those of another."""
    rows = [change(1, UPSERT, [b"1"] * 5, [None]), change(2, UPSERT, [b"1"] * 4, [None])]
    with pytest.raises(RangeFailed, match="do not have as many values"):
        list(make().read([rows]))
    with pytest.raises(RangeFailed, match="do not have as many values"):
        list(make().read([rows[::-1]]))


@pytest.mark.parametrize(
    ("column", "value"), [("price", b"NaN"), ("id", b"9223372036854775808"), ("id", b"1.0"), ("doc", b"\xff")]
)
def test_a_value_that_its_type_cannot_hold_names_its_column(column: str, value: bytes) -> None:
    """As where it is read by a range."""
    values = {"id": b"1", column: value}
    row = change(1, UPSERT, [values.get(each.name) for each in COLUMNS], [None])
    with pytest.raises(SourceRefused, match=f"Column {column}"):
        list(make().read([[row]]))


@pytest.mark.parametrize(
    ("key", "once", "again"),
    [
        (("id",), [b"1", b"2", b"-1"], b"2"),
        (("doc",), [b"a", b"b", b""], b""),
        (("id", "doc"), [b"1", b"2"], b"1"),
        (("price",), [b"1.5", b"0.15"], b"1.50"),
    ],
)
def test_whether_every_key_comes_once_is_known(key: tuple[str, ...], once: list[bytes], again: bytes) -> None:
    """In whatever batches; a key that comes again may do so as another text."""
    place = [column.name for column in COLUMNS].index(key[0])

    def rows(*values: bytes) -> list[bytes]:
        changes = enumerate(values, start=1)
        return [
            change(seq, UPSERT, [value if n == place else None for n in range(5)], [None] * len(key))
            for seq, value in changes
        ]

    for values, wanted in ((once, True), ([*once, again], False), ([], True)):
        made = ChangeBatches(columns=COLUMNS, key=key, way_out=way_out)
        for row in rows(*values):
            list(made.read([[row]]))
        assert made.once is wanted


def test_the_least_and_the_greatest_integer_of_a_key_are_known() -> None:
    """Over all batches; of a TRUNCATE there is none, and of texts none is asked for."""
    made = ChangeBatches(columns=COLUMNS, key=("doc", "id"), way_out=way_out)
    place = [column.name for column in COLUMNS].index("id")
    for seq, value in enumerate([b"3", b"-2", None, b"9"], start=1):
        values = [value if column.name in made.key else None for column in COLUMNS]
        operation = UPSERT if value is not None else TRUNCATE
        list(made.read([[change(seq, operation, values, [None, None])]]))
    assert made.describe((), "")["spans"] == [[place, -2, 9]]


def test_whether_keys_of_floating_point_come_again_is_not_known() -> None:
    """0 and -0 are one key, and different bytes."""
    columns = [Column(name="id", type="double precision")]
    made = ChangeBatches(columns=columns, key=("id",), way_out=way_out)
    list(made.read([[change(1, UPSERT, [b"0"], [None]), change(2, UPSERT, [b"-0"], [None])]]))
    assert not made.once
    emptied = make()
    list(emptied.read([ROWS]))
    assert not emptied.once, "a key may come before and behind"


def test_transactions_come_back() -> None:
    """As numbers, each once."""
    assert unpack_xids(pack_xids([7, 3, 7, 2**32 - 1])) == [3, 7, 2**32 - 1]
    assert unpack_xids(pack_xids(())) == []
