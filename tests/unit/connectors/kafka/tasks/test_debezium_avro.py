"""Change events of Debezium in Avro: the same rows and deletes as in JSON, by the schemas that a plan has pinned."""

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow
import pytest

from airflow_provider_backpressure.connectors.kafka.source.config import columns_of
from airflow_provider_backpressure.connectors.kafka.source.formats import AvroEvents
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import Version
from airflow_provider_backpressure.connectors.kafka.source.schema_versions import Pinned, merge, to_columns, to_key
from airflow_provider_backpressure.connectors.kafka.tasks.record_batches import (
    to_batch,
    to_batch_with_bad,
    to_decoders,
    to_events,
)
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import TOMBSTONE
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused
from airflow_provider_backpressure.sources import Avro, Debezium, KafkaSource
from airflow_provider_backpressure.spark.stream_end import BAD
from tests.unit.connectors.kafka.tasks.test_avro import record, written
from tests.unit.connectors.kafka.tasks.test_record_batches import Sent

pytestmark = pytest.mark.statement("R3")

AVRO = Avro(registry_conn_id="registry")
MISSING = "__debezium_unavailable_value"
KEY = record(id="long")


def named(kind: str, name: str) -> dict[str, Any]:
    """Return a type as Connect writes one with a meaning."""
    return {"type": kind, "connect.version": 1, "connect.name": f"io.debezium.time.{name}"}


def row(**fields: Any) -> dict[str, Any]:
    """Return the schema of a row, of which every field may be null."""
    optional = {name: ["null", type_] for name, type_ in fields.items()}
    return {**record(**optional), "name": "Value"}


def envelope(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an envelope around it."""
    source = {**record(lsn="long"), "name": "Source"}
    parts = {"before": ["null", schema], "after": ["null", "Value"], "source": source, "op": "string"}
    return {**record(**parts, ts_ms=["null", "long"]), "name": "Envelope"}


def event(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    """Return an envelope."""
    return {"before": before, "after": after, "source": {"lsn": 1}, "op": op, "ts_ms": None}


ROW = row(id="long", name="string")
ENVELOPE = envelope(ROW)


def pinned(part: str, *schemas: Any, declared: Avro = AVRO, **settings: Any) -> Pinned:
    """Return what a plan pins of schemas, numbered from 1."""
    format_ = AvroEvents.wrap(declared, Debezium(**settings), part)
    versions = [Version(id=at, number=at, type="AVRO", schema=json.dumps(each)) for at, each in enumerate(schemas, 1)]
    return merge(format_, "orders", tuple((each, format_.shape(each, part)) for each in versions))


def read(
    *records: Sent,
    schemas: Sequence[Any] = (ENVELOPE,),
    keep_bad: bool = False,
    keyed: bool = True,
    row_key: tuple[str, ...] = (),
    format_: Avro = AVRO,
    chosen: tuple[str, ...] | None = None,
    **settings: Any,
) -> pyarrow.RecordBatch:
    """Return the rows of records with their marks, as a plan reads them."""
    envelope_ = Debezium(**settings)
    declared = KafkaSource(
        conn_id="c", topic="orders", value=format_, key=AVRO if keyed else "bytes", envelope=envelope_, columns=chosen
    )
    value, key = pinned("value", *schemas, declared=format_, **settings), pinned("key", KEY, **settings)
    columns = columns_of(declared, to_columns(value), to_key(key) if keyed else None)
    # A plan may lose the order of a mapping on its way.
    pinned_value = value.to_json() | {"schemas": dict(reversed(value.to_json()["schemas"].items()))}
    decoding = {"value": pinned_value, "envelope": envelope_.to_json()} | ({"key": key.to_json()} if keyed else {})
    spec = ReadSpec(
        kind="kafka", conn_id="c", columns=columns, decoding=json.loads(json.dumps(decoding)), row_key=row_key
    )
    make = to_batch_with_bad if keep_bad else to_batch
    more = {"decoders": to_decoders(spec), "events": to_events(spec), "marks": True}
    return make(list(records), columns, "orders", **more)


def rows(batch: pyarrow.RecordBatch, *names: str) -> list[tuple[Any, ...]]:
    """Return columns and mark of each record."""
    return list(zip(*(batch.column(name).to_pylist() for name in (*names, TOMBSTONE)), strict=True))


@pytest.mark.parametrize("chosen", [("name", "id"), ("offset", "id"), ("id",), ("timestamp",)])
def test_what_is_not_chosen_is_neither_read_nor_missed(chosen: tuple[str, ...]) -> None:
    """The key of a deleted row is, though its column does not arrive, and no value that the source did not log."""
    unlogged = written(ENVELOPE, event("u", after={"id": 1, "name": MISSING if "name" not in chosen else "x"}))
    sent = [Sent(unlogged, keyed=written(KEY, {"id": 1})), Sent(None, keyed=written(KEY, {"id": 2}), at=1)]
    found = read(*sent, chosen=chosen, row_key=("id",))
    expected = {
        "id": [1, 2],
        "name": ["x", None],
        "offset": [0, 1],
        "timestamp": [None, None],
        "backpressure_partition": [3, 3],
        "backpressure_offset": [0, 1],
        TOMBSTONE: [False, True],
    }
    hidden = [name for name in ("backpressure_partition", "backpressure_offset") if name[13:] not in chosen]
    assert found.to_pydict() == {name: expected[name] for name in (*chosen, *hidden, TOMBSTONE)}


def keyed(number: int) -> bytes:
    """Return a key."""
    return written(KEY, {"id": number})


def test_an_envelope_writes_and_deletes_one_row() -> None:
    """R3: in one batch with its tombstone, which goes by the key's fields."""
    old, new = {"id": 7, "name": "ada"}, {"id": 7, "name": None}
    events = [event("r", None, old), event("u", old, new), event("d", old), event("d")]
    found = read(*(Sent(written(ENVELOPE, each), keyed(7)) for each in events), Sent(None, keyed(8)))
    assert rows(found, "id", "name") == [
        (7, "ada", False),
        (7, None, False),
        (7, "ada", True),
        (7, None, True),
        (8, None, True),
    ]
    assert found.column("key").to_pylist() == ['{"id": 7}'] * 4 + ['{"id": 8}']


def test_without_a_schema_of_keys_a_delete_goes_by_its_row() -> None:
    """And a tombstone by the column ``key`` alone."""
    found = read(Sent(written(ENVELOPE, event("d", {"id": 1, "name": None})), b"k"), Sent(None, b"k"), keyed=False)
    assert rows(found, "id", "key") == [(1, b"k", True), (None, b"k", True)]


def test_a_key_s_field_is_found_where_its_column_has_another_name() -> None:
    """The key has the names of the source."""
    format_ = Avro(registry_conn_id="registry", names={"id": "number"})
    found = read(Sent(None, keyed(7)), Sent(written(ENVELOPE, event("d")), keyed(8)), format_=format_)
    assert rows(found, "number") == [(7, True), (8, True)]


def test_another_key_than_that_of_the_rows_is_refused() -> None:
    """A row goes by the fields of its record's key, by the names of the source; or by the whole key."""
    format_ = Avro(registry_conn_id="registry", names={"id": "number"})
    sent = Sent(written(ENVELOPE, event("c", None, {"id": 7, "name": "ada"})), keyed(7))
    assert rows(read(sent, format_=format_, row_key=("number",)), "number") == [(7, False)]
    assert rows(read(sent, row_key=("key",)), "id") == [(7, False)]
    with pytest.raises(SourceRefused, match="its key has the fields id, and rows go by name: name the fields"):
        read(sent, row_key=("name",))
    with pytest.raises(SourceRefused, match=r"its key has no fields, .* and key=Avro\(…\) on the source"):
        read(sent, row_key=("id",), keyed=False)


def test_times_and_decimals_have_their_types() -> None:
    """By the names that Connect writes where Avro has no logical type."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    fields = {
        "day": named("int", "Date"),
        "milli": named("long", "Timestamp"),
        "micro": named("long", "MicroTimestamp"),
        "nano": named("long", "NanoTimestamp"),
        "clock": named("long", "MicroTime"),
        "zoned": named("string", "ZonedTimestamp"),
        "lasted": named("long", "MicroDuration"),
        "price": decimal,
    }
    schema = envelope(row(**fields))
    value = pinned("value", schema)
    assert list(value.columns.values()) == [
        "date",
        *["timestamp without time zone"] * 3,
        "time without time zone",
        "text",
        "bigint",
        "numeric(10,2)",
    ]
    micros = 1_706_702_400_123_456
    sent = [19_753, micros // 1000, micros, micros * 1000, 45_000_500_000, "2024-01-31T12:00:00Z", 5, Decimal("12.34")]
    found = read(
        Sent(written(schema, event("c", None, dict(zip(fields, sent, strict=True)))), keyed(1)), schemas=[schema]
    )
    moment = datetime(2024, 1, 31, 12, 0, 0, 123_456)
    assert rows(found, *fields) == [
        (
            date(2024, 1, 31),
            moment.replace(microsecond=123_000),
            moment,
            moment,
            "12:30:00.5",
            "2024-01-31T12:00:00Z",
            5,
            Decimal("12.34"),
            False,
        )
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (event("t"), "its op is t: the source truncated the table"),
        (event("x"), "its op is none of c, r, u, d"),
        (event("c"), "its after is no row"),
        (event("u", None, {"id": 1, "name": MISSING}), "its field name is not in the event"),
    ],
)
def test_what_is_no_change_of_a_row_is_named_or_put_aside(value: Any, words: str) -> None:
    """R3: by partition and offset; with a quarantine the records around it stay."""
    good = Sent(written(ENVELOPE, event("c", None, {"id": 1, "name": "a"})), keyed(1))
    wrong = Sent(written(ENVELOPE, value), keyed(2), at=7)
    with pytest.raises(SourceRefused, match=rf"offset 7 .* cannot be taken apart: {words}"):
        read(good, wrong)
    found = read(good, wrong, good, keep_bad=True)
    assert [mark is None for mark in found.column(BAD).to_pylist()] == [True, False, True]
    assert found.column("id").to_pylist() == [1, None, 1]


def test_a_deleted_row_needs_no_value_that_the_source_did_not_log() -> None:
    """Its key is enough."""
    sent = Sent(written(ENVELOPE, event("d", {"id": 1, "name": MISSING})), keyed(1))
    assert rows(read(sent), "id", "name") == [(1, None, True)]


def array(items: Any) -> dict[str, Any]:
    """Return the type of a list."""
    return {"type": "array", "items": items}


BYTES = list(MISSING.encode())
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ANY = {**record(scale="int", value="bytes"), "name": "Any"}
SHAPE = {**record(wkb="bytes", srid=["null", "int"]), "name": "Shape"}
POINT = {**record(x="double", y="double", wkb=["null", "bytes"]), "name": "Point"}
NANOS, MILLIS = named("long", "NanoTimestamp"), named("int", "Time")
UNLOGGED = {
    "text": ("string", MISSING),
    "bytea": ("bytes", MISSING.encode()),
    "hstore as JSON": ("string", f'{{"{MISSING}":"{MISSING}"}}'),
    "hstore as a map": ({"type": "map", "values": "string"}, {MISSING: MISSING}),
    "text[]": (array("string"), [MISSING]),
    "bytea[]": (array("bytes"), [MISSING.encode()]),
    "uuid[]": (array("string"), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    "int[]": (array(["null", "int"]), BYTES),
    "bigint[]": (array("long"), BYTES),
    "float8[]": (array("double"), BYTES),
    "boolean[]": (array("boolean"), [True for each in BYTES]),
    "numeric(9,2)[]": (array(PRICE), [Decimal(each) / 100 for each in BYTES]),
    "numeric[]": (array(ANY), [{"scale": 0, "value": bytes([each])} for each in BYTES]),
    "date[]": (array(named("int", "Date")), BYTES),
    "time[]": (array(MILLIS), BYTES),
    "timestamp[]": (array(NANOS), BYTES),
    "point": (POINT, {"x": -99_999_999, "y": -99_999_999, "wkb": None}),
    "geometry": (SHAPE, {"wkb": bytes.fromhex("0101000020e6100000000000fc83d797c1000000fc83d797c1"), "srid": 4326}),
    "geography": (SHAPE, {"wkb": bytes.fromhex("0101000020e61000000c21e7fdff7f66401842cefbff7f5640"), "srid": 4326}),
}
"""Type in Avro and placeholder, by the type in the source."""


@pytest.mark.parametrize(("type_", "value"), UNLOGGED.values(), ids=UNLOGGED)
def test_a_value_that_the_source_did_not_log_is_never_written(type_: Any, value: Any) -> None:
    """R3: in the form of any type; a deleted row needs no such value, and another value is written."""
    schema = envelope(row(id="long", held=type_))
    found, other = {"id": 1, "held": value}, {"id": 2, "held": None}
    with pytest.raises(SourceRefused, match=r"offset 7 .* its field held is not in the event: .*REPLICA IDENTITY FULL"):
        read(
            Sent(written(schema, event("c", None, other)), keyed(2)),
            Sent(written(schema, event("u", other, found)), keyed(1), at=7),
            schemas=[schema],
        )
    assert rows(read(Sent(written(schema, event("d", found)), keyed(1)), schemas=[schema]), "id", "held") == [
        (1, None, True)
    ]
    if isinstance(value, list):
        sent = [Sent(written(schema, event("c", None, {"id": 1, "held": each})), keyed(1)) for each in (value * 2, [])]
        assert read(*sent, schemas=[schema]).column("held").null_count == 0


def test_events_of_several_schemas_are_read_by_the_latest_row() -> None:
    """A column that was added has in earlier rows the default that it was added with, whatever it has got since."""
    later, latest = row(id="long", name="string"), row(id="long", name="string")
    added = {"name": "kind", "type": "string", "default": "plain"}
    bare = {"name": "note", "type": ["null", "string"], "default": None}
    later["fields"] += [added, bare]
    latest["fields"] += [{**added, "default": "other"}, {**bare, "type": ["string", "null"], "default": "set"}]
    schemas = [ENVELOPE, envelope(later), envelope(latest)]
    first = event("c", None, {"id": 1, "name": "a"})
    second = event("c", None, {"id": 2, "name": "b", "kind": "new", "note": None})
    found = read(
        Sent(written(schemas[0], first, 1), keyed(1)),
        Sent(None, keyed(3)),
        Sent(written(schemas[1], second, 2), keyed(2)),
        schemas=schemas,
    )
    assert rows(found, "id", "name", "kind", "note") == [
        (1, "a", "plain", None, False),
        (3, None, None, None, True),
        (2, "b", "new", None, False),
    ]


def test_a_column_that_was_added_again_has_the_default_of_the_last_time() -> None:
    """R3: the source dropped what rows had before; a row that was logged with a value keeps it."""

    def with_default(default: int | None) -> dict[str, Any]:
        schema = row(id="long")
        schema["fields"] += [] if default is None else [{"name": "x", "type": "int", "default": default}]
        return envelope(schema)

    schemas = [with_default(each) for each in (None, 0, None, 7, 8, None)]
    sent = [
        Sent(written(schema, event("c", None, {"id": at, "x": 5}), at), keyed(at))
        for at, schema in enumerate(schemas, 1)
    ]
    assert [pinned("value", *schemas[:at]).defaults for at in range(1, 7)] == [(), *[("x",)] * 5]
    columns = [read(*sent[:at], schemas=schemas[:at]).column("x").to_pylist() for at in range(2, 7)]
    assert columns == [[0, 5], [0, 5, None], [7, 5, 7, 5], [7, 5, 7, 5, 5], [7, 5, 7, 5, 5, None]]


@pytest.mark.parametrize("optional", [False, True])
def test_a_flattened_event_is_its_row(optional: bool) -> None:
    """R3: deletes by what the transform adds, which is no column."""
    flat = row(id="long", name="string", __op="string", __deleted="string")
    schema = ["null", flat] if optional else flat
    flags = [{}, {"__op": "d"}, {"__deleted": "true"}, {"__op": "u", "__deleted": "false"}]
    values = [{"id": 1, "name": "ada", "__op": None, "__deleted": None, **each} for each in flags]
    records = [Sent(written(schema, value), keyed(1)) for value in values]
    records += [Sent(None, keyed(2)), *([Sent(written(schema, None), keyed(3))] if optional else [])]
    found = read(*records, schemas=[schema], flattened=True)
    assert [name for name in found.schema.names if name.startswith("__")] == []
    expected = [(1, "ada", False), (1, "ada", True), (1, "ada", True), (1, "ada", False), (2, None, True)]
    assert rows(found, "id", "name") == [*expected, *([(3, None, True)] if optional else [])]


@pytest.mark.parametrize(
    ("schema", "flattened", "words"),
    [
        (ROW, False, r"no change event of Debezium: .*flattened=True"),
        ("string", False, "no change event"),
        ("string", True, "no change event"),
        (ENVELOPE, True, "is an envelope of Debezium"),
    ],
)
def test_a_schema_that_is_no_event_is_refused_at_plan(schema: Any, flattened: bool, words: str) -> None:
    """Before any record is read."""
    with pytest.raises(InvalidDeclaration, match=words):
        pinned("value", schema, flattened=flattened)


def test_a_record_that_is_cut_off_is_named() -> None:
    """At any byte of it."""
    whole = written(ENVELOPE, event("u", {"id": 1, "name": "a"}, {"id": 1, "name": "b"}))
    for size in range(5, len(whole)):
        with pytest.raises(SourceRefused, match="offset 7 "):
            read(Sent(whole, keyed(1)), Sent(whole[:size], keyed(1), at=7))
