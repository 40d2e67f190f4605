"""Topics whose schemas are in a real registry: types, evolution, errors, and what becomes of them."""

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_backpressure.cli.doctor import CHECKS, check_subjects, find_subjects
from airflow_provider_backpressure.cli.doctor import Subject as ReadSubject
from airflow_provider_backpressure.core.config import NewColumn
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import RangeFailed, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.hooks.recorded_declaration import to_json
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import Avro, JsonSchema, KafkaSource, Protobuf
from dev.services import Server
from tests import types_avro as typed
from tests.integration.test_kafka_source import Run, Stage, stage  # noqa: F401 - the fixture
from tests.support import registry as on_registry
from tests.support import type_page
from tests.support.kafka import Topic, endpoint_of
from tests.support.registry import CONN_ID, Subject, avro_record, framed

pytestmark = pytest.mark.integration

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "state", "type": "string"}],
}


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A topic with schemas in a registry."""

    stage: Stage
    server: Server
    topic: Topic

    def subject(self, part: str = "value") -> Subject:
        """Return where the registry keeps its schemas."""
        return Subject(server=self.server, name=f"{self.topic.name}-{part}")

    def hydration(self, value: Avro | JsonSchema | None = None, server: Server | None = None, **changes: Any) -> Run:
        """Return its hydration into PostgreSQL."""
        place = on_registry.endpoint_of(server or self.server)
        reading = {"value": value or Avro(registry_conn_id=CONN_ID), **changes.pop("reading", {})}
        endpoint = endpoint_of(self.stage.kafka, related={CONN_ID: place})
        return self.stage.hydration(self.topic, reading=reading, endpoint=endpoint, **changes)


@pytest.fixture
def orders(stage: Stage, registry: Server) -> Registered:  # noqa: F811
    """Give a topic of its own."""
    return Registered(stage=stage, server=registry, topic=stage.topic())


def planned(orders: Registered, run: Run, **changes: Any) -> Any:
    """Plan the next run with other settings."""
    with run.composed.open(orders.stage.runner) as ports:
        return replace(ports.planner(), **changes).plan()


@pytest.mark.statement("R1")
def test_every_type_of_avro_arrives_as_it_was_written(orders: Registered) -> None:
    """A part of R1: Avro values and keys into PostgreSQL, with NULL and extremes; the page of types says so."""
    value = orders.subject().register(typed.schema())
    key = orders.subject("key").register("long")
    for number, record in enumerate(typed.records()):
        orders.topic.send(0, avro_record(typed.schema(), record, value), key=avro_record("long", number, key))
    orders.topic.send(0, None, key=avro_record("long", 99, key))
    run = orders.hydration(reading={"key": Avro(registry_conn_id=CONN_ID)})
    run.go()
    types = run.sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass AND attnum > 6"
        " ORDER BY attnum"
    )
    found = {}
    for (name, (type_, shown)), (made,) in zip(typed.expected().items(), types, strict=True):
        there = [each for (_, each) in run.rows(f'"offset", {name}::text')]
        assert there == [*shown, None, None], name
        assert made == type_, name
        found[typed.shown(name)] = (type_, True)
    assert run.rows('"offset", key') == [(0, 0), (1, 1), (2, 2), (3, 99)]
    assert run.verify(Verify.FULL).equal
    text = type_page.avro_page(found)
    assert type_page.keep(text, type_page.AVRO) == text, f"the page is another one: set {type_page.WRITE}=1"


@pytest.mark.statement("R2")
def test_a_new_schema_evolves_the_target_and_one_that_does_not_fit_stops(orders: Registered) -> None:
    """R2: by the declared policy; both ids are named, what is committed stays, and nothing is mixed."""
    first = orders.subject().register(FIRST)
    orders.topic.send(0, avro_record(FIRST, {"id": 1, "state": "new"}, first))
    run = orders.hydration()
    run.go()
    wider = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    second = orders.subject().register(wider)
    orders.topic.send(0, avro_record(wider, {"id": 2, "state": "sent", "note": "x"}, second))
    orders.topic.send(0, avro_record(FIRST, {"id": 3, "state": "new"}, first))
    with pytest.raises(SourceRefused, match="column note was added"):
        run.plan()
    assert planned(orders, run, on_new_column=NewColumn.ADD).verdict is Verdict.PLANNED
    run.drain()
    rows = [(0, 1, "new", None), (1, 2, "sent", "x"), (2, 3, "new", None)]
    assert run.rows('"offset", id, state, note') == rows
    # A field may go: its column stays.
    shorter = {**wider, "fields": [wider["fields"][0], wider["fields"][2]]}
    third = orders.subject().register(shorter)
    orders.topic.send(0, avro_record(shorter, {"id": 4, "note": "y"}, third))
    run.go()
    assert run.rows('"offset", id, state, note') == [*rows, (3, 4, None, "y")]
    other = {**FIRST, "fields": [{"name": "id", "type": "string"}]}
    fourth = orders.subject().register(other)
    orders.topic.send(0, avro_record(other, {"id": "5"}, fourth))
    words = rf"Schema {fourth} \(version 4 .*\) does not fit schema {third}, by .*: column id was bigint and is text"
    with pytest.raises(SourceRefused, match=words):
        run.plan()
    assert run.sql("SELECT count(*) FROM {}") == [(len(rows) + 1,)]


@pytest.mark.statement("R2")
def test_records_of_a_schema_that_does_not_fit_are_named_with_both_ids(orders: Registered) -> None:
    """A part of R2: a topic that already holds both, read for the first time."""
    other = {**FIRST, "fields": [{"name": "id", "type": "string"}]}
    first = orders.subject().register(other)
    second = orders.subject().register(FIRST)
    orders.topic.send(0, avro_record(FIRST, {"id": 1, "state": "new"}, second), avro_record(other, {"id": "2"}, first))
    words = f"offset 1 of partition 0 .* schema {first} does not fit schema {second}: field id is text and not bigint"
    run = orders.hydration()
    run.plan()
    with pytest.raises((SourceRefused, RangeFailed), match=words):
        run.drain()


@pytest.mark.statement("R4")
def test_what_cannot_be_decoded_is_named_or_put_aside(orders: Registered) -> None:
    """R4: an unknown id and undecodable bytes, by partition and offset; what is good arrives, nothing is lost."""
    schema = orders.subject().register(FIRST)
    good = [avro_record(FIRST, {"id": number, "state": "new"}, schema) for number in range(3)]
    strange = Subject(server=orders.server, name=f"{orders.topic.name}-other").register({**FIRST, "name": "Other"})
    bad = [framed(good[0][5:], strange), good[0][:-1], b"{}", framed(b"\2\2a", 10**6)]
    orders.topic.send(0, good[0], bad[0], good[1], *bad[1:], good[2])
    run = orders.hydration()
    run.plan()
    with pytest.raises(SourceRefused, match=rf"offset 1 of partition 0 .* has schema {strange}, which subject"):
        run.drain()
    kept = replace(run, composed=replace(run.composed, quarantine=9, target=f"raw.{orders.topic.name}q"))
    kept.go()
    assert kept.rows('"offset", id') == [(0, 0), (2, 1), (6, 2)]
    query = "SELECT key::json->>'offset', reason FROM raw.backpressure_quarantine WHERE target = '{}' ORDER BY 1"
    reasons = kept.sql(query)
    assert [offset for offset, _ in reasons] == ["1", "3", "4", "5"]
    assert "ends too early" in reasons[1][1]
    assert "does not begin with a schema's id" in reasons[2][1]


@pytest.mark.statement("R4")
def test_a_registry_that_is_down_stops_no_range_that_was_planned(orders: Registered) -> None:
    """R4: tasks go on by what was pinned; the next plan says that the registry does not answer, and can be repeated."""
    schema = orders.subject().register(FIRST)
    orders.topic.send(0, avro_record(FIRST, {"id": 1, "state": "new"}, schema))
    run = orders.hydration()
    run.plan()
    down = replace(orders.server, url="http://127.0.0.1:9/apis/ccompat/v7")
    gone = orders.hydration(server=down)
    gone.drain()
    assert gone.rows('"offset", id') == [(0, 1)]
    orders.topic.send(0, avro_record(FIRST, {"id": 2, "state": "new"}, schema))
    with pytest.raises(SourceUnavailable, match=r"schema registry at .* does not answer"):
        gone.plan()
    run.go()
    assert run.rows('"offset", id') == [(0, 1), (1, 2)]


@pytest.mark.statement("R1")
def test_references_and_named_subjects_are_found(orders: Registered) -> None:
    """R1: subjects by the record's name, schemas that name others, and versions that were deleted softly."""
    state = {"type": "enum", "name": "State", "namespace": "shop", "symbols": ["NEW", "SENT"]}
    shared = Subject(server=orders.server, name=f"shop.State-{orders.topic.name}")
    shared.register(state)
    first = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "state", "type": "State"}]}
    subject = Subject(server=orders.server, name=f"shop.Order-{orders.topic.name}")
    reference = {"name": "shop.State", "subject": shared.name, "version": 1}
    old = subject.register(first, [reference])
    second = {**first, "fields": [*first["fields"], {"name": "id", "type": "long", "default": 7}]}
    new = subject.register(second, [reference])
    whole = {**second, "fields": [{"name": "state", "type": state}, second["fields"][1]]}
    orders.topic.send(0, framed(b"\2", old), avro_record(whole, {"state": "NEW", "id": 8}, new))
    subject.delete(1)
    run = orders.hydration(Avro(registry_conn_id=CONN_ID, subject=subject.name))
    run.go()
    assert run.rows('"offset", state, id') == [(0, "SENT", 7), (1, "NEW", 8)]


@pytest.mark.statement("R1")
def test_the_last_record_of_each_key_stays(orders: Registered) -> None:
    """R1: upserts and tombstones by a key of a registry."""
    value, key = orders.subject().register(FIRST), orders.subject("key").register({**FIRST, "name": "Key"})
    keys = [avro_record({**FIRST, "name": "Key"}, {"id": number, "state": "eu"}, key) for number in range(2)]
    orders.topic.send(0, avro_record(FIRST, {"id": 0, "state": "new"}, value), key=keys[0])
    orders.topic.send(0, avro_record(FIRST, {"id": 1, "state": "new"}, value), key=keys[1])
    orders.topic.send(0, avro_record(FIRST, {"id": 0, "state": "sent"}, value), key=keys[0])
    orders.topic.send(0, None, key=keys[1])
    run = orders.hydration(mode="upsert", reading={"key": Avro(registry_conn_id=CONN_ID)})
    run.go()
    assert [(json.loads(found), state) for found, state in run.rows("key, state")] == [
        ({"id": 0, "state": "eu"}, "sent")
    ]


@pytest.mark.statement("R1")
def test_json_with_a_schema_arrives_in_columns(orders: Registered) -> None:
    """A part of R1: JSON Schema values and keys into PostgreSQL, numbers with all of their digits."""
    properties: dict[str, Any] = {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array"},
    }
    schema = {"type": "object", "properties": properties}
    first = orders.subject().register(schema, type_="JSON")
    key = orders.subject("key").register({"type": "object", "properties": {"id": {"type": "integer"}}}, type_="JSON")
    text = b'{"id": 7, "price": 0.10000000000000000001, "at": "2026-01-31T12:00:00Z", "lines": [1.50]}'
    orders.topic.send(0, framed(text, first), framed(b"{}", first), None, key=framed(b'{"id": 7}', key))
    format_ = JsonSchema(registry_conn_id=CONN_ID)
    run = orders.hydration(format_, reading={"key": format_})
    run.go()
    assert run.rows('"offset", key, id, price::text, at::text, lines::text') == [
        (0, '{"id": 7}', 7, "0.10000000000000000001", "2026-01-31 12:00:00+00", "[1.50]"),
        (1, '{"id": 7}', None, None, None, None),
        (2, '{"id": 7}', None, None, None, None),
    ]
    later = {**schema, "properties": {**properties, "id": {"type": "string"}}}
    second = orders.subject().register(later, type_="JSON")
    orders.topic.send(0, framed(b'{"id": "x"}', second))
    with pytest.raises(
        SourceRefused, match=rf"Schema {second} .* does not fit schema {first}, .*: column id was bigint"
    ):
        run.plan()


@pytest.mark.statement("R4")
def test_json_that_cannot_be_read_is_named_or_put_aside(orders: Registered) -> None:
    """R4: no JSON, another type, an unknown id and no id, of values and of keys; what is good arrives."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    value = orders.subject().register(schema, type_="JSON")
    key = orders.subject("key").register({"type": "object", "properties": {"k": {"type": "integer"}}}, type_="JSON")
    good = framed(b'{"k": 1}', key)
    bad = [framed(b"{'id': 1}", value), framed(b'{"id": "x"}', value), framed(b'{"id": 1}', 10**6), b'{"id": 1}']
    orders.topic.send(0, framed(b'{"id": 0}', value), *bad, framed(b'{"id": 5}', value), key=good)
    orders.topic.send(0, framed(b'{"id": 6}', value), key=framed(b'{"k": 1}', 10**6))
    orders.topic.send(0, framed(b'{"id": 7}', value), key=good)
    format_ = JsonSchema(registry_conn_id=CONN_ID)
    run = orders.hydration(format_, reading={"key": format_})
    run.plan()
    with pytest.raises(SourceRefused, match=r"offset \d of partition 0 .* cannot be taken"):
        run.drain()
    kept = replace(run, composed=replace(run.composed, quarantine=5, target=f"raw.{orders.topic.name}q"))
    kept.go()
    assert kept.rows('"offset", id') == [(0, 0), (5, 5), (7, 7)]
    query = "SELECT key::json->>'offset', reason FROM raw.backpressure_quarantine WHERE target = '{}' ORDER BY 1"
    reasons = dict(kept.sql(query))
    words = {
        "1": "no JSON",
        "2": "id",
        "3": "its value has schema",
        "4": "begin with a schema",
        "6": "its key has schema",
    }
    assert reasons.keys() == words.keys()
    assert all(word in reasons[offset] for offset, word in words.items())


def test_a_subject_that_is_not_there_is_named(orders: Registered) -> None:
    """With the address of the registry."""
    with pytest.raises(SourceRefused, match=f"has no subject {orders.topic.name}-value"):
        orders.hydration().plan()


@pytest.mark.statement("R2", "R4")
def test_doctor_asks_for_the_subjects_that_topics_are_read_by(
    orders: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of R2 and R4: by what the ledger keeps of a hydration, as a run that plans reads it, or why it cannot."""
    other = {**FIRST, "fields": [{"name": "id", "type": "string"}]}
    old, number = orders.subject().register(other), orders.subject().register(FIRST)
    orders.topic.send(0, avro_record(FIRST, {"id": 1, "state": "new"}, number))
    run = orders.hydration()
    run.plan()
    with run.open() as ports:
        known = ports.ledger.hydration(ports.hydration.id)
    assert known is not None
    format_ = Avro(registry_conn_id=CONN_ID)
    source = KafkaSource(conn_id="source", topic=orders.topic.name, value=format_, key=format_)
    declared = Declaration(
        source=source, sink=PostgresSink(conn_id="sink", table="raw.t"), spark_conn_id="spark", owner="data"
    )
    known = replace(known, declaration=to_json(declared))
    key, value = (
        ReadSubject(name=f"{orders.topic.name}-{part}", part=part, format=format_) for part in ("key", "value")
    )
    assert find_subjects([known, known]) == {CONN_ID: [key, value]}
    assert find_subjects([known], ["source"]) == find_subjects([known], [CONN_ID]) == {CONN_ID: [key, value]}
    assert find_subjects([known], ["other"]) == {}

    connect_registry(monkeypatch, orders.server.url)
    missing, first, second = check_subjects(CONN_ID, [key, value])
    assert [each.ok for each in (missing, first, second)] == [False, True, True]
    assert f"has no subject {key.name}" in missing.finding
    assert first.what == f"subject {value.name} of {CONN_ID}"
    answers = f"The schema registry answers without a login at {orders.server.url}: "
    columns = f"the subject has 2 versions, the latest is schema {number} (AVRO). Columns: id bigint, state text."
    assert first.finding == answers + columns
    assert f"schema {old} does not fit schema {number}: field id is text and not bigint" in second.finding
    strange = replace(value, format=Protobuf(registry_conn_id=CONN_ID))
    (refused,) = check_subjects(CONN_ID, [strange])
    assert not refused.ok
    assert "is of type AVRO, and Protobuf needs schemas of type PROTOBUF" in refused.finding
    (types,) = CHECKS["http"](on_registry.endpoint_of(orders.server))
    assert types == f"{answers}it holds schemas of the types AVRO, JSON, PROTOBUF."

    connect_registry(monkeypatch, "http://127.0.0.1:9")
    (down,) = check_subjects(CONN_ID, [value])
    assert not down.ok
    assert "does not answer" in down.finding


def connect_registry(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let Airflow's connection of the registry lead there."""
    fields = {"conn_type": "http", "host": url}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(fields))
