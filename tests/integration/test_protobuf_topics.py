"""Topics in Protobuf whose schemas are in a real registry: types, evolution, errors, references and messages."""

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import NewColumn
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import RangeFailed, SourceRefused
from airflow_provider_backpressure.sources import Protobuf
from tests import types_protobuf as typed
from tests.integration.test_kafka_source import stage  # noqa: F401 - the fixture
from tests.integration.test_registry import Registered, orders, planned  # noqa: F401 - the fixture
from tests.support import type_page
from tests.support.protobuf import framed, message_class
from tests.support.registry import CONN_ID, Subject

pytestmark = pytest.mark.integration

VALUE = Protobuf(registry_conn_id=CONN_ID)
FIRST = 'syntax = "proto3"; package shop; message Order { int64 id = 1; string state = 2; }'
KEY = 'syntax = "proto3"; package shop; message Key { int64 id = 1; string region = 2; }'


def register(subject: Subject, text: str, *references: dict[str, Any]) -> int:
    """Add a version of a schema and return its id."""
    return subject.register(text, references, type_="PROTOBUF")


def record(text: str, schema_id: int, name: str = "shop.Order", **fields: Any) -> bytes:
    """Return a record as Confluent's serializers write it, by Protobuf's own library."""
    return framed(message_class(text, name)(**fields).SerializeToString(), schema_id)


def test_every_type_of_protobuf_arrives_as_it_was_written(orders: Registered) -> None:  # noqa: F811
    """A part of R1: Protobuf values and keys into PostgreSQL, with NULL and extremes; the page of types says so."""
    value, key = register(orders.subject(), typed.schema()), register(orders.subject("key"), KEY)
    every = message_class(typed.schema(), "shop.Every", {"google/type/date.proto": typed.DATE})
    keys = [record(KEY, key, "shop.Key", id=number, region="eu") for number in range(4)]
    for given, each in zip(typed.values(), keys, strict=False):
        orders.topic.send(0, framed(every(**given).SerializeToString(), value), key=each)
    orders.topic.send(0, None, key=keys[3])
    run = orders.hydration(VALUE, reading={"key": VALUE})
    run.go()
    types = run.sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass AND attnum > 6"
        " ORDER BY attnum"
    )
    found = {}
    for (name, (type_, texts)), (made,) in zip(typed.expected().items(), types, strict=True):
        there = [each for (_, each) in run.rows(f'"offset", {name}::text')]
        assert there == [*texts, None], name
        assert made == type_, name
        found[typed.shown(name)] = (type_, True)
    words = [json.loads(each) for (_, each) in run.rows('"offset", key')]
    assert words == [{"id": number, "region": "eu"} for number in range(4)]
    assert run.verify(Verify.FULL).equal
    text = type_page.protobuf_page(found)
    assert type_page.keep(text, type_page.PROTOBUF) == text, f"the page is another one: set {type_page.WRITE}=1"


def test_a_new_schema_evolves_the_target_and_one_that_does_not_fit_stops(orders: Registered) -> None:  # noqa: F811
    """R2: by the declared policy; both ids are named, what is committed stays, and nothing is mixed."""
    first = register(orders.subject(), FIRST)
    orders.topic.send(0, record(FIRST, first, id=1, state="new"))
    run = orders.hydration(VALUE)
    run.go()
    wider = FIRST.replace("}", "optional string note = 3; }")
    second = register(orders.subject(), wider)
    orders.topic.send(0, record(wider, second, id=2, state="sent", note="x"), record(FIRST, first, id=3))
    with pytest.raises(SourceRefused, match="column note was added"):
        run.plan()
    assert planned(orders, run, on_new_column=NewColumn.ADD).verdict is Verdict.PLANNED
    run.drain()
    rows = [(0, 1, "new", None), (1, 2, "sent", "x"), (2, 3, "", None)]
    assert run.rows('"offset", id, state, note') == rows
    other = FIRST.replace("int64", "string")
    third = register(orders.subject(), other)
    orders.topic.send(0, record(other, third, id="5"))
    words = rf"Schema {third} \(version 3 .*\) does not fit schema {second}, by .*: column id was bigint and is text"
    with pytest.raises(SourceRefused, match=words):
        run.plan()
    assert run.sql("SELECT count(*) FROM {}") == [(len(rows),)]


def test_another_first_message_stops_the_next_run(orders: Registered) -> None:  # noqa: F811
    """R2: the rows of two messages are never mixed, though the columns of both would fit."""
    first = register(orders.subject(), FIRST)
    orders.topic.send(0, record(FIRST, first, id=1, state="new"))
    run = orders.hydration(VALUE)
    run.go()
    turned = FIRST.replace("message Order", "message Refund { int64 id = 1; string state = 2; } message Order")
    second = register(orders.subject(), turned)
    orders.topic.send(0, record(turned, second, "shop.Refund", id=2))
    words = rf"Schema {second} .* schema {first}, .*: its first message was shop.Order and is shop.Refund"
    with pytest.raises(SourceRefused, match=words):
        run.plan()


def test_what_cannot_be_decoded_is_named_or_put_aside(orders: Registered) -> None:  # noqa: F811
    """R4: an unknown id, another message and undecodable bytes, by partition and offset; what is good arrives."""
    text = FIRST + " message Refund { int64 id = 1; } enum State { NEW = 0; }"
    schema = register(orders.subject(), text)
    good = [record(text, schema, id=number, state="new") for number in range(3)]
    body = good[1][6:]
    bad = [
        framed(b"\x08\7", schema, (1,)),
        good[1][:-1],
        framed(body, 10**6),
        framed(body + b"\x18\1", schema),
        framed(b"\x12\1\xff", schema),
    ]
    orders.topic.send(0, good[0], bad[0], good[1], *bad[1:], good[2])
    run = orders.hydration(VALUE)
    run.plan()
    with pytest.raises((SourceRefused, RangeFailed), match=r"offset 1 of partition 0 .* it is the message shop.Refund"):
        run.drain()
    kept = replace(run, composed=replace(run.composed, quarantine=9, target=f"raw.{orders.topic.name}q"))
    kept.go()
    assert kept.rows('"offset", id') == [(0, 0), (2, 1), (7, 2)]
    reasons = kept.sql("SELECT key::json->>'offset', reason FROM raw.backpressure_quarantine ORDER BY 1")
    words = ["message shop.Refund", "ends too early", "has schema 1000000", "no field of number 3", "no UTF-8"]
    for (offset, reason), (place, word) in zip(reasons, zip((1, 3, 4, 5, 6), words, strict=True), strict=True):
        assert offset == str(place)
        assert word in reason


def test_references_nested_messages_and_tombstones(orders: Registered) -> None:  # noqa: F811
    """Files that others import, a message within another one, and the last record of each key."""
    shared = 'syntax = "proto3"; package shop; enum State { NEW = 0; SENT = 1; } message Place { string city = 1; }'
    subject = Subject(server=orders.server, name=f"place-{orders.topic.name}")
    register(subject, shared)
    text = (
        'syntax = "proto3"; package shop; import "shop/place.proto"; import "google/protobuf/timestamp.proto"; '
        "message Book { message Order { int64 id = 1; State state = 2; shop.Place place = 3; "
        "google.protobuf.Timestamp at = 4; } }"
    )
    reference = {"name": "shop/place.proto", "subject": subject.name, "version": 1}
    value, key = register(orders.subject(), text, reference), register(orders.subject("key"), KEY)
    made = message_class(text, "shop.Book.Order", {"shop/place.proto": shared})
    keys = [record(KEY, key, "shop.Key", id=number) for number in range(2)]
    for number, id_ in ((0, 1), (1, 2), (0, 3)):
        body = made(id=id_, state=1, place={"city": "Köln"}, at={"seconds": 1}).SerializeToString()
        orders.topic.send(0, framed(body, value, (0, 0)), key=keys[number])
    orders.topic.send(0, None, key=keys[1])
    format_ = replace(VALUE, message="Book.Order")
    run = orders.hydration(format_, mode="upsert", reading={"key": VALUE})
    run.go()
    assert run.rows("id, state, place::text, extract(epoch FROM at)::int") == [(3, "SENT", '{"city": "Köln"}', 1)]
