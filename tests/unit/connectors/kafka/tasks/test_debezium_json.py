"""Change events of Debezium: the row that each record writes or deletes, exactly, or refused by its place."""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow
import pytest

from airflow_provider_backpressure.connectors.kafka.source.config import columns_of
from airflow_provider_backpressure.connectors.kafka.tasks.record_batches import to_batch, to_batch_with_bad, to_events
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import TOMBSTONE
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import Debezium, KafkaSource
from airflow_provider_backpressure.spark.stream_end import BAD
from tests.unit.connectors.kafka.tasks.test_record_batches import Sent

pytestmark = pytest.mark.statement("R3")

FIELDS = {"id": "bigint", "name": "text"}
CONNECT, TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
INT, BIG, TEXT = {"type": "int32"}, {"type": "int64"}, {"type": "string"}
MISSING = "__debezium_unavailable_value"


def struct(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a row, as Connect's JSON converter writes it."""
    return {"type": "struct", "fields": [{"optional": True, **each, "field": name} for name, each in fields.items()]}


def envelope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an envelope around rows."""
    return struct({"before": struct(fields), "after": struct(fields), "op": TEXT, "source": struct({"lsn": BIG})})


def event(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    """Return an envelope."""
    return {"before": before, "after": after, "source": {"lsn": 1}, "op": op, "ts_ms": 1}


def text(value: Any, schema: Any = None) -> bytes:
    """Return JSON, with its schema as the converter writes it: first, without blanks."""
    whole = value if schema is None else {"schema": schema, "payload": value}
    return json.dumps(whole, separators=(",", ":")).encode()


def read(
    *records: Sent,
    fields: Mapping[str, str] = FIELDS,
    keep_bad: bool = False,
    row_key: tuple[str, ...] = (),
    **settings: Any,
) -> pyarrow.Table:
    """Return the rows of records as a batch, with their marks."""
    declared = KafkaSource(conn_id="c", topic="orders", fields=fields, envelope=Debezium(**settings))
    assert declared.envelope is not None
    make = to_batch_with_bad if keep_bad else to_batch
    columns, decoding = columns_of(declared), {"envelope": declared.envelope.to_json()}
    spec = ReadSpec(kind="kafka", conn_id="c", columns=columns, decoding=decoding, row_key=row_key)
    return make(list(records), columns, "orders", events=to_events(spec), marks=True)


def rows(batch: pyarrow.Table) -> list[tuple[Any, ...]]:
    """Return id, name and mark of each record."""
    return list(zip(*(batch.column(name).to_pylist() for name in ("id", "name", TOMBSTONE)), strict=True))


@pytest.mark.parametrize("has_schema", [False, True])
def test_an_envelope_writes_and_deletes_one_row(has_schema: bool) -> None:
    """R3: created, read by a snapshot, updated, deleted, and the tombstone behind it."""
    row = {"id": INT, "name": TEXT}
    schema, key_schema = (envelope(row), struct({"id": INT})) if has_schema else (None, None)
    key = text({"id": 7}, key_schema)
    old, new = {"id": 7, "name": "ada"}, {"id": 7, "name": "bob"}
    events = [event("r", None, old), event("c", None, old), event("u", old, new), event("d", new, None)]
    found = read(*(Sent(text(each, schema), key) for each in events), Sent(None, key))
    assert rows(found) == [
        (7, "ada", False),
        (7, "ada", False),
        (7, "bob", False),
        (7, "bob", True),
        (7, None, True),
    ]
    assert found.column("key").to_pylist() == [key] * 5


@pytest.mark.parametrize("before", [None, {"id": None, "name": None}, {}])
@pytest.mark.parametrize("key", [{"id": 7}, {"schema": struct({"id": INT}), "payload": {"id": 7}}])
def test_a_delete_without_its_row_goes_by_the_key(before: Any, key: Any) -> None:
    """As a replica identity leaves it."""
    assert rows(read(Sent(text(event("d", before)), text(key)))) == [(7, None, True)]


@pytest.mark.parametrize("key", [None, b"7", b"\xff", b"[1]", b'{"other": 1}'])
def test_a_key_without_fields_is_still_the_key_of_its_record(key: bytes | None) -> None:
    """A target that goes by the column ``key`` needs no fields."""
    found = read(Sent(None, key), Sent(text(event("d", {"id": 1})), key))
    assert rows(found) == [(None, None, True), (1, None, True)]
    assert found.column("key").to_pylist() == [key, key]


def test_a_payload_that_is_null_is_a_tombstone() -> None:
    """The converter may write it with its schema."""
    assert rows(read(Sent(b'{"schema": null, "payload": null}', b'{"id": 3}'))) == [(3, None, True)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (event("t"), "its op is t: the source truncated the table"),
        (event("m"), "its op is m: it is a message"),
        (event("x"), "its op is none of c, r, u, d"),
        ({"id": 1, "name": "ada"}, r"its value has no op, .*flattened=True"),
        (event("c"), "its op is c and its after is no object"),
        (event("u", None, '{"_id": 1}'), "its op is u and its after is no object"),
        ([1], "its value is no JSON object"),
        (event("c", None, {"id": "x"}), "its field id is a text without a schema"),
        ({"schema": [1], "payload": event("c", None, {"id": 1})}, "its schema is none that Kafka Connect writes"),
        ({"schema": {"type": "struct"}, "payload": event("c", None, {"id": 1})}, "its schema is none"),
    ],
)
def test_what_is_no_change_of_a_row_is_named_or_put_aside(value: Any, words: str) -> None:
    """R3: by partition and offset; with a quarantine the records around it stay."""
    good, wrong = Sent(text(event("c", None, {"id": 1})), at=6), Sent(text(value), at=7)
    with pytest.raises(SourceRefused, match=rf"offset 7 of partition 3 of topic orders cannot be taken: {words}"):
        read(good, wrong)
    found = read(good, wrong, good, keep_bad=True)
    assert [mark is None for mark in found.column(BAD).to_pylist()] == [True, False, True]
    assert found.column(TOMBSTONE).to_pylist() == [False] * 3
    assert found.schema.names[-2:] == [TOMBSTONE, BAD]


def base(number: int) -> str:
    """Return a number in two's complement, as Connect writes it."""
    size = (number if number >= 0 else -number - 1).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def named(name: str, kind: str = "int64", **parameters: str) -> dict[str, Any]:
    """Return the schema of a value with a meaning."""
    return {"type": kind, "name": name, "version": 1, "parameters": parameters}


DECIMAL = named(f"{CONNECT}Decimal", "bytes", scale="2")
ANY = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []}
MOMENT = 1_706_702_400_123_456


@pytest.mark.parametrize(
    ("schema", "value", "type_", "expected"),
    [
        (DECIMAL, base(1234), "numeric(10,2)", Decimal("12.34")),
        (DECIMAL, base(-1), "numeric", "-0.01"),
        (DECIMAL, base(10**45), "numeric", f"1{'0' * 43}.00"),
        (DECIMAL, base(1200), "text", "12.00"),
        (DECIMAL, 12.5, "numeric(10,2)", Decimal("12.50")),
        (named(f"{CONNECT}Decimal", "bytes", scale="0"), base(2**62), "bigint", 2**62),
        # Three bytes of which base64 makes digits: without the schema that would be another number.
        (DECIMAL, "1234", "numeric(10,2)", Decimal(int.from_bytes(base64.b64decode("1234"), "big", signed=True)) / 100),
        (ANY, {"scale": 3, "value": base(1234)}, "numeric", "1.234"),
        (TEXT, "1234", "numeric", "1234"),
        (TEXT, "1234", "bigint", 1234),
        (named(f"{TIME}Date", "int32"), 19_753, "date", date(2024, 1, 31)),
        (named(f"{CONNECT}Date", "int32"), -1, "date", date(1969, 12, 31)),
        (named(f"{TIME}Date", "int32"), 19_753, "text", "2024-01-31"),
        (named(f"{TIME}Date", "int32"), 19_753, "int", 19_753),
        (named(f"{TIME}Timestamp"), MOMENT // 1000, "timestamp", datetime(2024, 1, 31, 12, 0, 0, 123_000)),
        (named(f"{TIME}MicroTimestamp"), MOMENT, "timestamp", datetime(2024, 1, 31, 12, 0, 0, 123_456)),
        (named(f"{TIME}NanoTimestamp"), MOMENT * 1000, "timestamp", datetime(2024, 1, 31, 12, 0, 0, 123_456)),
        (named(f"{TIME}MicroTimestamp"), -1, "timestamp", datetime(1969, 12, 31, 23, 59, 59, 999_999)),
        (named(f"{TIME}MicroTimestamp"), MOMENT, "bigint", MOMENT),
        (named(f"{CONNECT}Timestamp"), 0, "timestamptz", datetime(1970, 1, 1, tzinfo=UTC)),
        (named(f"{CONNECT}Timestamp"), 1, "timestamp", datetime(1970, 1, 1, 0, 0, 0, 1000)),
        (named(f"{TIME}ZonedTimestamp", "string"), "2024-01-31T12:00:00.1234560Z", "timestamptz", None),
        (named(f"{TIME}IsoTimestamp", "string"), "2024-01-31T12:00:00Z", "timestamp", datetime(2024, 1, 31, 12)),
        (named(f"{TIME}IsoDate", "string"), "2024-01-31Z", "date", date(2024, 1, 31)),
        (named(f"{TIME}IsoTime", "string"), "12:00:00.5Z", "time", "12:00:00.5"),
        (named(f"{TIME}Time", "int32"), 45_000_500, "time", "12:30:00.5"),
        (named(f"{TIME}MicroTime"), 1, "time", "00:00:00.000001"),
        (named(f"{TIME}MicroTime"), 86_400_000_000, "time", "24:00:00"),
        (named(f"{TIME}NanoTime"), 1000, "time", "00:00:00.000001"),
        (named(f"{TIME}MicroTime"), -3_020_399_000_000, "interval", "-838:59:59"),
        (named(f"{TIME}Interval", "string"), "P1Y2M3DT4H5M6.78S", "interval", "P1Y2M3DT4H5M6.78S"),
        (named(f"{TIME}Year", "int32"), 2024, "int", 2024),
        (named("io.debezium.data.Json", "string"), '{"a": 1.50}', "jsonb", '{"a": 1.50}'),
        (named("io.debezium.data.Json", "string"), '{"a": 1.50}', "text", '{"a": 1.50}'),
        (named("io.debezium.data.Uuid", "string"), "6f1f0c4e-6a52-4a8b-8f0e-0f6c3c1b2a3d", "uuid", None),
        (named("io.debezium.data.Bits", "bytes", length="12"), base64.b64encode(b"\x05\x0a").decode(), "bit(12)", None),
        (named("io.debezium.data.Bits", "bytes", length="2"), "", "bit(2)", "00"),
        ({"type": "bytes"}, "AQI=", "text", "AQI="),
        ({"type": "array", "items": INT}, [1, None, 3], "int[]", '{"1",NULL,"3"}'),
        ({"type": "array", "items": TEXT}, ['a"b', "{c}", "\\"], "text[]", '{"a\\"b","{c}","\\\\"}'),
        ({"type": "array", "items": DECIMAL}, [base(150)], "numeric[]", '{"1.50"}'),
        ({"type": "array", "items": TEXT}, ["a"], "json", '["a"]'),
        ({"type": "array", "items": BIG}, [1, 2], "jsonb", "[1, 2]"),
        ({"type": "struct", "fields": []}, {"x": 1.0}, "json", '{"x": 1.0}'),
        ({"type": "double"}, 1.50, "json", "1.5"),
        (named(f"{TIME}Year", "int32"), 2024, "json", "2024"),
        (ANY, {"scale": 1, "value": base(15)}, "json", f'{{"scale": 1, "value": "{base(15)}"}}'),
        ({"type": "double"}, "NaN", "double precision", None),
        ({"type": "boolean"}, True, "boolean", True),
    ],
)
def test_a_value_with_a_schema_is_decoded_exactly(schema: Any, value: Any, type_: str, expected: Any) -> None:
    """R3: as its schema says, into the type that is asked for; a row without the field has NULL."""
    events = [event("c", None, {"f": value}), event("u", {"f": value}, {"f": None}), event("d", {"f": value})]
    found = read(*(Sent(text(each, envelope({"f": schema}))) for each in events), fields={"f": type_})
    first, second, third = found.column("f").to_pylist()
    known = {
        "timestamptz": datetime(2024, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC),
        "uuid": value,
        "bit(12)": "101000000101",
    }
    if type_ == "double precision":
        assert first != first
    else:
        assert first == (known[type_] if expected is None else expected)
        assert third == first
    assert second is None


@pytest.mark.parametrize(
    ("schema", "value", "type_", "words"),
    [
        (DECIMAL, "!", "numeric", "no base64"),
        (DECIMAL, "", "numeric", "no base64"),
        (DECIMAL, base(12345), "numeric(4,2)", "too large"),
        (DECIMAL, base(1234), "bigint", "is no bigint"),
        (ANY, "x", "numeric", "no object of scale and value"),
        (named(f"{TIME}Date", "int32"), 2**31 - 1, "date", "outside of the years 1 to 9999"),
        (named(f"{TIME}Date", "int32"), 1, "timestamptz", "is a Date, which is no timestamp with time zone"),
        (named(f"{TIME}Date", "int32"), 1, "interval", "is a Date, which is no interval"),
        (named(f"{TIME}Date", "int32"), "2024-01-31", "date", "no whole number"),
        (named(f"{TIME}MicroTimestamp"), 2**63 - 1, "timestamp", "outside of the years 1 to 9999"),
        (named(f"{TIME}MicroTimestamp"), 1, "timestamptz", "is a MicroTimestamp without a zone"),
        (named(f"{TIME}MicroTimestamp"), 1, "date", "is a MicroTimestamp without a zone, which is no date"),
        (named(f"{TIME}NanoTimestamp"), 1, "timestamp", "too many decimals"),
        (named(f"{TIME}MicroTimestamp"), 1, "timestamp(3)", "too many decimals"),
        (named(f"{TIME}ZonedTimestamp", "string"), "2024-01-31T12:00:00Z", "timestamp", "is no timestamp"),
        (named(f"{TIME}MicroTime"), -1, "time", "not within a day"),
        (named(f"{TIME}MicroTime"), 1, "timetz", "is a MicroTime, which is no timetz"),
        (named(f"{TIME}NanoTime"), 1, "time", "too many decimals"),
        (named(f"{TIME}MicroDuration"), 1, "interval", "interval.handling.mode=string"),
        (named(f"{TIME}Year", "int32"), 2024, "date", "its schema does not say of which date"),
        (BIG, 123456, "time", "its schema does not say of which time"),
        (BIG, 5, "interval", "its schema does not say of which interval"),
        (named("io.debezium.data.Json", "string"), "{", "json", "no JSON: take it as text"),
        (named("io.debezium.data.Bits", "bytes", length="2"), "/w==", "bit(2)", "more than 2 bits"),
        (named("io.debezium.data.Bits", "bytes", length="2"), "AQ==", "varbit(2)", "holds bytes, which are no varbit"),
        ({"type": "bytes"}, "1234", "numeric", "holds bytes, which are no numeric"),
        ({"type": "array", "items": struct({})}, [{}], "text[]", "an element that is an object"),
        (DECIMAL, base(1234), "json", "holds a Decimal, whose JSON does not say so, and is no json"),
        (DECIMAL, base(1234), "jsonb", "is no jsonb: docs/reference/types-debezium.md lists"),
        (named(f"{TIME}Date", "int32"), 1, "json", "holds a Date"),
        (named(f"{CONNECT}Timestamp"), 1, "json", "holds a Timestamp"),
        (named(f"{TIME}MicroTimestamp"), MOMENT, "json", "holds a MicroTimestamp"),
        (named(f"{TIME}MicroTime"), 1, "jsonb", "holds a MicroTime"),
        (named(f"{TIME}MicroDuration"), 1, "json", "holds a MicroDuration"),
        (named("io.debezium.data.Bits", "bytes", length="12"), "BQo=", "json", "holds a Bits"),
        ({"type": "bytes"}, "AQI=", "json", "holds bytes"),
        ({"type": "array", "items": DECIMAL}, [base(1234)], "json", "holds a Decimal"),
        ({"type": "array", "items": DECIMAL}, [base(1234)], "text", "holds a Decimal"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "bytes"}}}, [["AQI="]], "json", "holds bytes"),
    ],
)
def test_a_value_with_a_schema_that_does_not_fit_is_named(schema: Any, value: Any, type_: str, words: str) -> None:
    """R3: rather than taken for another one."""
    with pytest.raises(SourceRefused, match=rf"offset 7 .* its field f .*{words}"):
        read(Sent(text(event("c", None, {"f": value}), envelope({"f": schema})), at=7), fields={"f": type_})


@pytest.mark.parametrize(
    ("value", "type_", "words"),
    [
        ("1234", "numeric", "may be the bytes of a decimal"),
        ("1234", "bigint", "may be the bytes of a decimal"),
        ("1234", "double precision", "may be the bytes of a decimal"),
        (123456, "time", "is a number without a schema"),
        (19_753, "date", "is a number without a schema"),
        (19_753, "timestamptz", "time.precision.mode=isostring"),
        (5, "interval", "is a number without a schema"),
        ("x101", "varbit", "holds bytes without a schema"),
        ("{", "jsonb", "is a text that is no JSON"),
        (["1234"], "int[]", "may be the bytes of a decimal"),
        (["1234"], "numeric[]", "may be the bytes of a decimal"),
    ],
)
def test_a_value_without_a_schema_that_may_mean_two_things_is_named(value: Any, type_: str, words: str) -> None:
    """R3: with the setting that tells them apart."""
    with pytest.raises(SourceRefused, match=rf"offset 7 .* its field f .*{words}"):
        read(Sent(text(event("c", None, {"f": value})), at=7), fields={"f": type_})


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (12.50, "numeric(6,2)", Decimal("12.50")),
        (2**60, "bigint", 2**60),
        ({"scale": 1, "value": base(15)}, "numeric", "1.5"),
        ("2024-01-31Z", "date", date(2024, 1, 31)),
        ("2024-01-31T12:00:00.000000100Z", "timestamp", None),
        ("2024-01-31T12:00:00Z", "timestamp", datetime(2024, 1, 31, 12)),
        ("2024-01-31T12:00:00Z", "timestamptz", datetime(2024, 1, 31, 12, tzinfo=UTC)),
        ("12:30:00Z", "time", "12:30:00"),
        ("12:30:00Z", "timetz", "12:30:00Z"),
        ("[1.0]", "json", "[1.0]"),
        ({"a": 1.0}, "json", '{"a": 1.0}'),
        ("-Infinity", "real", float("-inf")),
        (1706702400000, "text", "1706702400000"),
    ],
)
def test_a_value_without_a_schema_is_taken_where_it_means_one_thing(value: Any, type_: str, expected: Any) -> None:
    """What is finer than the type is refused as ever."""
    sent = Sent(text(event("c", None, {"f": value})))
    if expected is None:
        with pytest.raises(SourceRefused, match="too many decimals"):
            read(sent, fields={"f": type_})
    else:
        assert read(sent, fields={"f": type_}).column("f").to_pylist() == [expected]


def test_decimals_that_are_declared_as_texts_are_numbers() -> None:
    """The DAG says what the connector's setting is."""
    sent = Sent(text(event("c", None, {"f": "1234"})))
    assert read(sent, fields={"f": "numeric"}, decimal_handling_mode="string").column("f").to_pylist() == ["1234"]


BYTES = list(MISSING.encode())
FAR = {"x": -99999999.0, "y": -99999999.0, "wkb": "AQ==", "srid": None}
UNLOGGED = {
    "text": MISSING,
    "bytea": base64.b64encode(MISSING.encode()).decode(),
    "hstore as JSON": f'{{"{MISSING}":"{MISSING}"}}',
    "hstore as a map": {MISSING: MISSING},
    "text[]": [MISSING],
    "bytea[]": [base64.b64encode(MISSING.encode()).decode()],
    "uuid[]": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
    "int[]": BYTES,
    "float8[]": [float(each) for each in BYTES],
    "boolean[]": [True for each in BYTES],
    "numeric(9,2)[]": [base(each) for each in BYTES],
    "numeric(9,2)[] as numbers": [each / 100 for each in BYTES],
    "numeric[]": [{"scale": 0, "value": base(each)} for each in BYTES],
    "point": FAR,
    "geometry": {"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "srid": 4326},
    "geography": {"wkb": "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA==", "srid": 4326},
}
"""What Debezium writes for a value that was not logged, by its type in the source."""
LOGGED = {
    "another text": f"{MISSING}s",
    "another map": '{"a":"b"}',
    "another UUID": ["b68a35a7-17ad-35b3-af2a-ae46edb4545b"],
    "fewer numbers": BYTES[1:],
    "other numbers": [*BYTES[1:], 96],
    "zeros": [0 for each in BYTES],
    "texts": ["sNaN" for each in BYTES],
    "large numbers": ["1e999999999" for each in BYTES],
    "not all true": [*[True for each in BYTES[1:]], False],
    "another point": {**FAR, "y": 1.0},
    "no number": {**FAR, "x": None, "y": None},
    "empty": [],
}


@pytest.mark.parametrize("value", UNLOGGED.values(), ids=UNLOGGED)
def test_a_value_that_the_source_did_not_log_is_never_written(value: Any) -> None:
    """R3: an update would put the placeholder in its place; a delete needs no value."""
    with pytest.raises(SourceRefused, match=r"its field name is not in the event: .* REPLICA IDENTITY FULL"):
        read(Sent(text(event("u", None, {"id": 1, "name": value}))))
    assert rows(read(Sent(text(event("d", {"id": 1, "name": value}))))) == [(1, None, True)]


@pytest.mark.parametrize("value", LOGGED.values(), ids=LOGGED)
def test_a_value_that_is_like_a_placeholder_is_written(value: Any) -> None:
    """R3: only the placeholder itself is refused."""
    ((_, name, _),) = rows(read(Sent(text(event("u", None, {"id": 1, "name": value})))))
    assert name == value if isinstance(value, str) else json.loads(name) == value


def test_bytes_of_a_placeholder_have_a_sign() -> None:
    """As Java's bytes have, which a list of numbers holds."""
    sent = Sent(text(event("u", None, {"id": 1, "name": [-61, -68]})))
    with pytest.raises(SourceRefused, match="not in the event"):
        read(sent, unavailable_value_placeholder="ü")


def test_another_placeholder_can_be_named() -> None:
    """And then the usual one is a text."""
    settings = {"unavailable_value_placeholder": "gone"}
    with pytest.raises(SourceRefused, match="not in the event"):
        read(Sent(text(event("u", None, {"id": 1, "name": "gone"}))), **settings)
    assert rows(read(Sent(text(event("u", None, {"id": 1, "name": MISSING}))), **settings)) == [(1, MISSING, False)]


@pytest.mark.parametrize("has_schema", [False, True])
@pytest.mark.parametrize(
    ("more", "deletes"),
    [
        ({}, False),
        ({"__deleted": "false"}, False),
        ({"__deleted": "true"}, True),
        ({"__deleted": True}, True),
        ({"__op": "r"}, False),
        ({"__op": "d"}, True),
        ({"__op": "d", "__deleted": "true"}, True),
    ],
)
def test_a_flattened_event_is_its_row(more: dict[str, str], deletes: bool, has_schema: bool) -> None:
    """R3: deletes by what the transform adds."""
    schema = struct({"id": INT, "name": TEXT, "__op": TEXT, "__deleted": TEXT}) if has_schema else None
    key = text({"id": 1})
    records = [Sent(text({"id": 1, "name": "ada", **more}, schema), key), Sent(None, key)]
    assert rows(read(*records, flattened=True)) == [(1, "ada", deletes), (1, None, True)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (event("c", None, {"id": 1}), "its value has after, before, op, source, and so is no flattened event"),
        ({"id": 1, "__op": "t"}, "its __op is t: the source truncated"),
        ({"id": 1, "__op": "x"}, "its __op is none of"),
    ],
)
def test_what_is_no_flattened_event_is_named(value: Any, words: str) -> None:
    """All of its fields would be NULL."""
    with pytest.raises(SourceRefused, match=rf"offset 7 .*: {words}"):
        read(Sent(text(value), at=7), flattened=True)


def test_each_record_goes_by_its_own_schema() -> None:
    """Also where they change from record to record, are spaced otherwise, or behind the payload."""
    one, two = envelope({"id": INT, "name": TEXT}), envelope({"id": BIG, "name": DECIMAL})
    first, second = event("c", None, {"id": 1, "name": "1234"}), event("c", None, {"id": 2, "name": base(150)})
    behind = json.dumps({"payload": second, "schema": two}).encode()
    more = text(first, one)[:-1] + b',"payload":' + text(event("c", None, {"id": 3, "name": "x"})) + b"}"
    sent = [text(first, one), text(second, two), text(first, one), behind, text(first), text(second, two) + b" ", more]
    assert [row[:2] for row in rows(read(*map(Sent, sent)))] == [
        (1, "1234"),
        (2, "1.50"),
        (1, "1234"),
        (2, "1.50"),
        (1, "1234"),
        (2, "1.50"),
        (3, "x"),
    ]


@pytest.mark.parametrize("cut", [1, 30, 400])
def test_a_record_that_is_cut_off_is_no_json(cut: int) -> None:
    """Also behind a schema that is known."""
    whole = text(event("c", None, {"id": 1, "name": "a"}), envelope({"id": INT, "name": TEXT}))
    with pytest.raises(SourceRefused, match=r"offset 7 .* its value is no JSON"):
        read(Sent(whole), Sent(whole[:-cut], at=7))


ROUTED = {"id": 1, "__dbz__physicalTableIdentifier": "shard0"}


@pytest.mark.parametrize("flattened", [False, True])
@pytest.mark.parametrize(
    ("key", "has"),
    [
        ({"tenant": 7}, "the fields tenant"),
        (ROUTED, "the fields __dbz__physicalTableIdentifier, id"),
        (None, "no fields"),
        (5, "no fields"),
    ],
)
@pytest.mark.parametrize("has_schema", [False, True])
def test_another_key_than_that_of_the_rows_is_refused(flattened: bool, key: Any, has: str, has_schema: bool) -> None:
    """R3: Debezium deletes a row whose own key changes; under another key old rows stay and others merge."""
    row = {"id": 1, "name": "a"}
    value = text(row if flattened else event("c", after=row))
    fine = Sent(value, text({"id": 1}, struct({"id": BIG}) if has_schema else None))
    other = Sent(value, None if key is None else text(key, BIG if has_schema else None), at=2)
    with pytest.raises(SourceRefused, match=rf"offset 2.* its key has {has}, and rows go by id: name the fields"):
        read(fine, other, row_key=("id",), flattened=flattened)
    assert len(rows(read(fine, other, row_key=("key",), flattened=flattened))) == 2, "rows go by the whole key"


def test_a_blank_before_the_payload_changes_nothing() -> None:
    """R3: behind a schema that is known by its text."""
    schema = struct({"id": BIG, "name": TEXT})
    first, second = text({"id": 1, "name": "a"}, schema), text({"id": 2, "name": "b"}, schema)
    second = second.replace(b'"payload":', b'"payload": ')
    assert rows(read(Sent(first), Sent(second), flattened=True)) == [(1, "a", False), (2, "b", False)]
