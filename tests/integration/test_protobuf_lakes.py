"""Topics in Protobuf with a real registry into every table of files, read by each format's own library."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused, SourceRefused
from tests import types_protobuf as typed
from tests.integration.test_kafka_source import stage  # noqa: F401 - the fixture
from tests.integration.test_protobuf_topics import FIRST, KEY, VALUE, record, register
from tests.integration.test_registry import Registered, orders  # noqa: F401 - the fixture
from tests.integration.test_registry_lakes import READ, evolve, hydration, is_same, put_aside, read
from tests.support import lakes
from tests.support.marks import mark_long
from tests.support.protobuf import framed, message_class

pytestmark = pytest.mark.integration

SHOWN: dict[str, Callable[[str], Any]] = {**READ, "numeric(20,0)": Decimal}
"""What files hold by its own type, from the text that PostgreSQL prints."""
QUICK = "parquet"
KINDS = mark_long(lakes.KINDS, quick=[QUICK])


@pytest.mark.statement("R1")
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_protobuf_is_in_the_files_as_it_was_written(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R1: by Spark, Protobuf values and keys, with NULL and extremes, nested ones as JSON, and no value."""
    value, key = register(orders.subject(), typed.schema()), register(orders.subject("key"), KEY)
    every = message_class(typed.schema(), "shop.Every", {"google/type/date.proto": typed.DATE})
    keys = [record(KEY, key, "shop.Key", id=number, region="eu") for number in range(4)]
    for given, each in zip(typed.values(), keys, strict=False):
        orders.topic.send(0, framed(every(**given).SerializeToString(), value), key=each)
    orders.topic.send(0, None, key=keys[3])
    run = hydration(orders, kind, tmp_path, VALUE)
    run = replace(run, stage=replace(run.stage, runner=run.stage.spark()))
    run.go()
    rows = read(run)
    assert [json.loads(row["key"]) for row in rows] == [{"id": number, "region": "eu"} for number in range(4)]
    wrong = {}
    for name, (type_, texts) in typed.expected().items():
        expected = [None if text is None else SHOWN.get(type_, str)(text) for text in (*texts, None)]
        found = [row[name] for row in rows]
        if not all(map(is_same, found, expected)):
            wrong[typed.shown(name)] = (found, expected)
    assert wrong == {}
    assert run.verify(Verify.FULL).equal


@pytest.mark.in_process
@pytest.mark.statement("R2")
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_schema_evolves_the_files_and_one_that_does_not_fit_stops(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R2: by the declared policy, with both ids in the error; nested messages evolve within their JSON."""
    text = (
        'syntax = "proto3"; package shop; message Order { int64 id = 1; Line line = 2; %s} '
        "message Line { string sku = 1; %s}"
    )
    one, two = text % ("", ""), text % ("optional string note = 3; repeated Line lines = 4; ", "int32 count = 2; ")
    first = register(orders.subject(), one)
    orders.topic.send(0, record(one, first, id=1, line={"sku": "a"}))
    run = orders.hydration(VALUE, into=lakes.place(kind, tmp_path))
    run.go()
    second = register(orders.subject(), two)
    wider = {"id": 2, "line": {"sku": "b", "count": 3}, "note": "x", "lines": [{"sku": "c", "count": 4}, {}]}
    orders.topic.send(0, record(two, second, **wider), record(one, first, id=3))
    again = evolve(orders, run, VALUE, "note, lines", kind, tmp_path)
    # A row that was committed before has NULL, and a record of the first schema that is read now the field's default.
    rows = [
        (1, '{"sku": "a"}', None, "[]" if kind == "parquet" else None),
        (2, '{"sku": "b", "count": 3}', "x", '[{"sku": "c", "count": 4}, {"sku": "", "count": 0}]'),
        (3, None, None, "[]"),
    ]
    assert [(row["id"], row["line"], row["note"], row["lines"]) for row in read(again)] == rows
    other = two.replace("int64 id", "string id")
    third = register(orders.subject(), other)
    orders.topic.send(0, record(other, third, id="5"))
    words = rf"Schema {third} \(version 3 .*\) does not fit schema {second}, by .*: column id was bigint and is text"
    with pytest.raises(SourceRefused, match=words):
        again.plan()
    assert len(read(again)) == len(rows)


@pytest.mark.in_process
@pytest.mark.statement("R4")
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_decoded_is_named_or_put_aside(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R4: an unknown id, another message and undecodable bytes, by partition and offset; what is good arrives."""
    text = FIRST + " message Refund { int64 id = 1; }"
    schema = register(orders.subject(), text)
    good = [record(text, schema, id=number, state="new") for number in range(2)]
    bad = [framed(b"\x08\7", schema, (1,)), good[1][:-1], framed(good[1][6:], 10**6), framed(b"\x12\1\xff", schema)]
    orders.topic.send(0, good[0], *bad, good[1])
    run = orders.hydration(VALUE, into=lakes.place(kind, tmp_path))
    run.plan()
    with pytest.raises((SourceRefused, RangeFailed), match=r"offset 1 of partition 0 .* it is the message shop.Refund"):
        run.drain()
    assert len(lakes.table(**run.composed.into)) == 0
    kept, aside = put_aside(run, kind, tmp_path)
    assert [(row["offset"], row["id"]) for row in read(kept)] == [(0, 0), (5, 1)]
    words = ["message shop.Refund", "ends too early", "has schema 1000000", "no UTF-8"]
    assert sorted(aside) == ["1", "2", "3", "4"]
    for offset, word in zip(sorted(aside), words, strict=True):
        assert word in aside[offset]


OUTSIDE = {
    "time-year": ("google.protobuf.Timestamp f = 1;", {"seconds": 253_402_300_800}, "outside of the years 1 to 9999"),
    "time-nanos": ("google.protobuf.Timestamp f = 1;", {"nanos": 1}, "digits below the microsecond"),
    "duration-nanos": ("google.protobuf.Duration f = 1;", {"nanos": 1}, "digits below the microsecond"),
    "date": ("google.type.Date f = 1;", {"year": 2024, "month": 2, "day": 30}, "no whole day"),
    "enum": ("State f = 1;", 7, "enum shop.State has no number 7"),
    "nested-enum": ("repeated State f = 1;", [7], "enum shop.State has no number 7"),
    "text": ("string f = 1;", "a\0b", "NUL"),
}
"""A field, a value that no column of files can hold, and the reason, by what they are called."""


@pytest.mark.in_process
@pytest.mark.statement("R1")
@pytest.mark.parametrize("kind", lakes.KINDS)
@pytest.mark.parametrize("case", mark_long(OUTSIDE, quick=["time-year"]))
def test_a_value_that_files_cannot_hold_is_named_and_nothing_of_its_range_arrives(
    orders: Registered,  # noqa: F811
    kind: str,
    case: str,
    tmp_path: Path,
) -> None:
    """R1: by partition and offset, with the reason."""
    field, value, reason = OUTSIDE[case]
    imports = "".join(
        f'import "google/{name}.proto"; ' for name in ("protobuf/timestamp", "protobuf/duration", "type/date")
    )
    schema = f'syntax = "proto3"; package shop; {imports} enum State {{ NEW = 0; }} message One {{ {field} }}'
    made = message_class(schema, "shop.One", {"google/type/date.proto": typed.DATE})
    number = register(orders.subject(), schema)
    good, bad = (framed(made(**given).SerializeToString(), number) for given in ({}, {"f": value}))
    orders.topic.send(0, good, bad)
    run = orders.hydration(VALUE, into=lakes.place(kind, tmp_path))
    run.plan()
    with pytest.raises((SourceRefused, RangeFailed), match=rf"offset 1 of partition 0 .*{reason}") as refused:
        run.drain()
    assert "\n" not in str(refused.value)
    assert len(lakes.table(**run.composed.into)) == 0


@pytest.mark.in_process
@pytest.mark.statement("R1")
def test_fields_that_files_cannot_have_are_refused_by_name_when_a_run_plans(
    orders: Registered,  # noqa: F811
    tmp_path: Path,
) -> None:
    """R1: before a table is made; by another name the field is taken."""
    text = FIRST.replace("}", "string State = 3; }")
    number = register(orders.subject(), text)
    orders.topic.send(0, record(text, number, id=1, state="a", State="b"))
    run = orders.hydration(VALUE, into=lakes.place("delta", tmp_path))
    with pytest.raises(SinkRefused, match=r"state.*State|State.*state"):
        run.plan()
    assert not (tmp_path / "lake").exists()
    run = orders.hydration(replace(VALUE, names={"State": "state_2"}), into=lakes.place("delta", tmp_path))
    run.go()
    assert [(row["state"], row["state_2"]) for row in read(run)] == [("a", "b")]


@pytest.mark.in_process
@pytest.mark.statement("R1")
@pytest.mark.parametrize("kind", mark_long(["delta", "iceberg"], quick=["delta"]))
def test_the_last_record_of_each_key_stays(orders: Registered, kind: str, tmp_path: Path) -> None:  # noqa: F811
    """R1: rows are upserted by a key in Protobuf, and a record without a value deletes."""
    value, key = register(orders.subject(), FIRST), register(orders.subject("key"), KEY)
    keys = [record(KEY, key, "shop.Key", id=number) for number in range(2)]
    for number, state in ((0, "new"), (1, "new"), (0, "sent")):
        orders.topic.send(0, record(FIRST, value, id=number, state=state), key=keys[number])
    orders.topic.send(0, None, key=keys[1])
    run = orders.hydration(VALUE, mode="upsert", reading={"key": VALUE}, into=lakes.place(kind, tmp_path))
    run.go()
    assert [(row["id"], row["state"]) for row in read(run)] == [(0, "sent")]
