"""How a table is stored: which differences mean that rows have changed past the log."""

import json
from dataclasses import asdict, replace

import pytest

from airflow_provider_backpressure.core.json_codec import from_dict
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec
from airflow_provider_backpressure.core.snapshot.table_alterations import (
    StoredColumn,
    TableStorage,
    check_added,
    check_kept,
)
from airflow_provider_backpressure.exceptions import SourceRefused

ID, AMOUNT, NOTE = (
    StoredColumn(name=name, number=number, version="700", filled=False)
    for number, name in enumerate(("id", "amount", "note"), 1)
)
BEFORE = TableStorage(table="public.t", lock="LOCK", relations=((16500, 16500),), columns=(ID, AMOUNT), highest=2)
REWRITTEN = ((16500, 16777),)
NAMES = ("id", "amount")


def altered(column: StoredColumn) -> StoredColumn:
    return replace(column, version="800")


@pytest.mark.parametrize(
    "now",
    [
        BEFORE,
        replace(BEFORE, relations=REWRITTEN),
        BEFORE.with_columns([altered(AMOUNT)]),
        replace(BEFORE, relations=REWRITTEN).with_columns([NOTE]),
    ],
    ids=["nothing", "TRUNCATE or VACUUM FULL", "SET NOT NULL", "a column that is not read"],
)
def test_what_changes_no_value_goes_on(now: TableStorage):
    check_kept(BEFORE, now, NAMES, plan_id="p")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (replace(BEFORE, relations=REWRITTEN).with_columns([altered(AMOUNT)]), "amount was altered and the table was"),
        (BEFORE.with_columns([replace(AMOUNT, number=3)]), "column amount is another one"),
        (replace(BEFORE, columns=(ID,)), "column amount is gone"),
        (replace(BEFORE, relations=((16600, 16500),)), "it is another table"),
        (replace(BEFORE, relations=(*BEFORE.relations, (16600, 16600))), "others inherit from it now"),
    ],
)
def test_what_the_log_does_not_show_is_refused(now: TableStorage, said: str):
    with pytest.raises(SourceRefused, match=rf"public\.t has changed since plan p: .*{said}.*restart"):
        check_kept(BEFORE, now, NAMES, plan_id="p")


def test_an_added_column_goes_on_only_where_it_is_empty_in_the_rows_of_before():
    added = BEFORE.with_columns([NOTE])
    check_added(BEFORE, added, ["note"], plan_id="p")
    check_added(None, added, ["note"], plan_id="p")
    check_added(replace(BEFORE, highest=None), BEFORE.with_columns([replace(NOTE, number=4)]), ["note"], plan_id="p")
    for now, said in (
        (BEFORE.with_columns([replace(NOTE, filled=True)]), "column note was added with a default"),
        (replace(added, relations=REWRITTEN), "column note was added and the table was rewritten"),
        (BEFORE, "column note is gone again"),
        (
            BEFORE.with_columns([replace(NOTE, number=4)]),
            "column note was added, and another one was added and dropped",
        ),
    ):
        with pytest.raises(SourceRefused, match=said):
            check_added(BEFORE, now, ["note"], plan_id="p")


def test_a_column_whose_changes_windows_have_left_out_cannot_be_added():
    """Also where columns have no numbers: by the name alone."""
    columns = tuple(replace(column, number=0) for column in (ID, AMOUNT, NOTE))
    before = TableStorage(table="shop.t", lock="", relations=(), columns=columns)
    with pytest.raises(SourceRefused, match="column note was there already, and changes of it were left out"):
        check_added(before, before, ["note"], plan_id="p")
    check_added(replace(before, columns=columns[:2]), before, ["note"], plan_id="p")


def test_it_travels_with_the_plan_and_a_plan_of_before_has_none():
    read = ReadSpec(kind="postgres", conn_id="c", columns=(Column(name="id", type="int"),), storage=BEFORE)
    value = json.loads(json.dumps(asdict(read)))
    assert from_dict(ReadSpec, value) == read
    del value["storage"]
    assert from_dict(ReadSpec, value).storage is None


def test_a_column_that_is_taken_over_is_the_highest_one_from_then_on() -> None:
    """Otherwise the next one would look like one that was added after another was dropped."""
    assert BEFORE.with_columns([NOTE]).highest == NOTE.number
    assert replace(BEFORE, highest=None).with_columns([NOTE]).highest is None


TOTAL = StoredColumn(name="total", number=4, version="700", filled=False, generated=True)
LATER = TableStorage(
    table="public.t",
    lock="LOCK",
    relations=(),
    columns=(ID, TOTAL, replace(NOTE, number=5), replace(AMOUNT, number=7)),
    dropped=(2, 3, 6),
)


@pytest.mark.parametrize(
    ("logged", "names", "misplaced"),
    [
        ("id total note amount", "id note amount", []),
        ("id note amount", "id note amount", []),
        ("id gone note amount", "id note amount", []),
        ("id gone total note amount", "id note amount", []),
        ("id total note", "id note amount", []),
        ("id title amount", "id amount", []),
        ("id note amount more", "id note amount", ["amount"]),
        ("id gone note", "id note", []),
        ("id note", "id", []),
        ("id x note", "id", []),
        ("id x amount note", "id note", ["note"]),
        ("id amount note", "id note amount", ["amount"]),
        ("note id amount", "id note amount", ["id", "note"]),
        ("id gone gone note amount", "id note amount", ["note"]),
        ("id note gone amount", "id note amount", ["amount"]),
        ("id x note amount", "id amount", []),
        ("id x y note amount", "id amount", ["amount"]),
        ("id amount x", "id amount", ["amount"]),
    ],
)
def test_a_column_of_the_log_is_known_by_its_place(logged: str, names: str, misplaced: list[str]):
    """Of the dropped columns only 3 was there since the moment before; a generated one may be left out."""
    now = LATER.mark_changed_since(replace(LATER, dropped=(2, 6)))
    assert now.dropped_lately == (3,)
    assert now.find_misplaced(logged.split(), names.split()) == misplaced


def test_a_name_that_was_lent_is_noticed_where_a_column_in_front_was_dropped_since():
    """The last column of the log bears the name; a column that was there at the moment before is missing behind it."""
    columns = (ID, replace(AMOUNT, number=3), replace(NOTE, number=4))
    before = replace(LATER, columns=columns, dropped=(), highest=4)
    now = replace(LATER, columns=columns, dropped=(2,), highest=4).mark_changed_since(before)
    assert now.find_misplaced(["id", "note", "amount"], ["id", "amount"]) == ["amount"]
    assert now.find_misplaced(["id", "amount", "note"], ["id", "amount"]) == []
    assert now.find_misplaced(["id", "gone", "amount", "note"], ["id", "amount"]) == []
    added = replace(now, columns=(*columns, replace(NOTE, name="more", number=5)), highest=5)
    assert added.find_misplaced(["id", "amount", "note", "more"], ["id", "amount"]) == []
    assert added.find_misplaced(["id", "amount", "note"], ["id", "amount"]) == []


def test_what_was_not_recorded_says_nothing_of_places():
    """In plans of earlier releases."""
    assert replace(LATER, dropped=None).find_misplaced(["amount", "id"], ["id", "amount"]) == []
    assert LATER.mark_changed_since(None).dropped_lately == (2, 3, 6)
    assert LATER.mark_changed_since(BEFORE).dropped_lately == (2, 3, 6)
