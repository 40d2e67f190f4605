"""Protobuf records as columns, compared with what Protobuf's own library reads of the same bytes."""

import base64
import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow
import pytest
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from airflow_provider_backpressure.connectors.kafka import protobuf_schema
from airflow_provider_backpressure.connectors.kafka.tasks.wire_format import Decoder
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark.column_types import carrier
from tests.support.protobuf import framed, message_class

EVERY = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum State { NEW = 0; SENT = 1; LOST = -2; }
message Every {
  int32 a_int32 = 1; int64 a_int64 = 2; uint32 a_uint32 = 3; uint64 a_uint64 = 4; sint32 a_sint32 = 5;
  sint64 a_sint64 = 6; fixed32 a_fixed32 = 7; fixed64 a_fixed64 = 8; sfixed32 a_sfixed32 = 9;
  sfixed64 a_sfixed64 = 10; bool a_bool = 11; string a_string = 12; bytes a_bytes = 13; float a_float = 14;
  double a_double = 15; State a_state = 16;
  optional int32 o_int32 = 17; optional string o_string = 18; optional State o_state = 19;
  optional uint64 o_uint64 = 20; optional bool o_bool = 2000;
  oneof choice { int64 c_number = 22; string c_text = 23; Inner c_inner = 24; bool c_flag = 25; }
  Inner inner = 26;
  repeated int32 numbers = 27; repeated sint64 loose = 28 [packed = false]; repeated string texts = 29;
  repeated Inner inners = 30; repeated double doubles = 31; repeated State states = 32;
  map<string, int64> counts = 33; map<int32, Inner> by_number = 34; map<bool, State> flags = 35;
  google.protobuf.Timestamp at = 36; google.protobuf.Duration took = 37;
  google.protobuf.UInt64Value w_uint64 = 38; google.protobuf.StringValue w_string = 39;
  google.protobuf.BoolValue w_bool = 40; google.protobuf.DoubleValue w_double = 41;
  google.protobuf.BytesValue w_bytes = 42; google.protobuf.FloatValue w_float = 43;
  google.protobuf.Int32Value w_int32 = 44; google.protobuf.UInt32Value w_uint32 = 45;
  google.protobuf.Int64Value w_int64 = 46;
  google.protobuf.Struct structure = 47; google.protobuf.Value value = 48;
  repeated google.protobuf.Timestamp times = 49;
  int32 last = 536870911;
}
message Inner {
  int64 a = 1; optional bytes b = 2; Inner next = 3; float f = 4; uint64 u = 5;
  oneof one { string s = 6; fixed32 x = 7; }
  google.protobuf.Timestamp at = 8; google.protobuf.Duration took = 9; google.protobuf.Int64Value w = 10;
}
"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
KINDS = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "uint64", 7: "uint32", 8: "bool"} | {
    9: "string",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "int32",
    16: "int64",
    17: "int32",
    18: "int64",
}
"""Kind of value by the number that Protobuf's descriptors give a type."""


def decoder(
    *schemas: str,
    message: str = "",
    part: str = "value",
    columns: Mapping[str, str] | None = None,
    raw: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    references: Sequence[tuple[str, str]] = (),
) -> Decoder:
    """Return what reads records of these schemas, numbered from 1, by the last one."""
    named = [list(each) for each in references]
    pinned = {str(number): {"schema": text, "references": named} for number, text in enumerate(schemas, 1)}
    found = protobuf_schema.load(schemas[-1], references).find(message)
    assert found is not None
    types = columns or protobuf_schema.column_types(found, raw)
    decoding = {
        "format": "protobuf",
        "subject": "orders-value",
        "latest": len(schemas),
        "schemas": pinned,
        "message": found.name,
        "raw": list(raw),
        "names": dict(names or {}),
    }
    return Decoder(
        decoding=decoding, columns=[Column(name=name, type=type_) for name, type_ in types.items()], part=part
    )


def read(found: Decoder, payloads: Sequence[bytes | None]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return the rows, and why some records cannot be taken."""
    arrays, problems = found.decode(payloads)
    for column, array in zip(found.columns, arrays, strict=True):
        array.validate(full=True)
        assert array.type == carrier(column.type)[0], column
    return pyarrow.table(arrays, names=[column.name for column in found.columns]).to_pylist(), problems


def rows_of(found: Decoder, payloads: Sequence[bytes | None]) -> list[dict[str, Any]]:
    """Return the rows of records that can all be taken."""
    rows, problems = read(found, payloads)
    assert problems == {}
    return rows


def random_value(rng: random.Random, each: Any) -> Any:
    """Return a value of a field's type that is no message, often an extreme one."""
    kind = KINDS[each.type]
    if kind in NUMBERS:
        low, high = NUMBERS[kind]
        return rng.choice((low, high, 0, 1, rng.randint(low, high), rng.randint(low >> 40, high >> 40)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "enum":
        return rng.choice(each.enum_type.values).number
    if kind == "string":
        return "".join(rng.choice('aЖ€𝄞 "\\\n') for _ in range(rng.choice((0, 1, 5, 70, 200))))
    if kind == "bytes":
        return rng.randbytes(rng.choice((0, 1, 16, 300)))
    odd = rng.choice((float("inf"), float("-inf"), float("nan"), 0.0, -0.0, rng.uniform(-1e30, 1e30)))
    return struct.unpack("<f", struct.pack("<f", odd))[0] if kind == "float" else odd


def fill(rng: random.Random, message: Any, share: float, depth: int = 0) -> Any:
    """Set about this share of a message's fields to random values."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        message.seconds = rng.choice((0, -62_135_596_800, 253_402_300_799, rng.randrange(2**31)))
        message.nanos = rng.choice((0, 1000, 999_999_000, rng.randrange(10**6) * 1000))
        return message
    if name == "google.protobuf.Duration":
        sign = rng.choice((1, -1))
        message.seconds = sign * rng.choice((0, 59, 3600, 315_576_000_000, rng.randrange(10**6)))
        message.nanos = sign * rng.choice((0, 1000, 500_000_000, rng.randrange(10**6) * 1000))
        return message
    for each in message.DESCRIPTOR.fields:
        if rng.random() > share or depth > 3:
            continue
        if each.is_repeated:
            fill_list(rng, message, each, depth)
        elif each.message_type is not None:
            fill(rng, getattr(message, each.name), 0.4, depth + 1)
            getattr(message, each.name).SetInParent()
        else:
            setattr(message, each.name, random_value(rng, each))
    return message


def fill_list(rng: random.Random, message: Any, each: Any, depth: int) -> None:
    """Put some elements into a list or a map."""
    target, count = getattr(message, each.name), rng.choice((0, 1, 3, 9))
    is_map = each.message_type is not None and each.message_type.GetOptions().map_entry
    for _ in range(count):
        if is_map:
            key, value = each.message_type.fields
            chosen = random_value(rng, key)
            if value.message_type is None:
                target[chosen] = random_value(rng, value)
            else:
                fill(rng, target[chosen], 0.4, depth + 1)
        elif each.message_type is not None:
            fill(rng, target.add(), 0.4, depth + 1)
        else:
            target.append(random_value(rng, each))


def as_json(value: Any) -> Any:
    """Return what JSON is to hold of a single value."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def expected_json(message: Any) -> Any:
    """Return what JSON is to hold of a message that Protobuf's library has read."""
    name = message.DESCRIPTOR.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return message.ToJsonString()
    if name.startswith("google.protobuf.") and name.endswith("Value") and len(message.DESCRIPTOR.fields) == 1:
        if name == "google.protobuf.ListValue":
            return [expected_json(each) for each in message.values]
        return as_json(message.value)
    if name == "google.protobuf.Struct":
        return {key: expected_json(value) for key, value in message.fields.items()}
    if name == "google.protobuf.Value":
        chosen = message.WhichOneof("kind")
        value = getattr(message, chosen) if chosen not in (None, "null_value") else None
        return expected_json(value) if chosen in ("struct_value", "list_value") else as_json(value)
    return {
        each.name: expected_field(message, each)
        for each in message.DESCRIPTOR.fields
        if not each.has_presence or message.HasField(each.name)
    }


def expected_field(message: Any, each: Any) -> Any:
    """Return what JSON is to hold of a field."""

    def of(kind: Any, value: Any) -> Any:
        if kind.message_type is not None:
            return expected_json(value)
        return kind.enum_type.values_by_number[value].name if kind.enum_type is not None else as_json(value)

    value = getattr(message, each.name)
    if not each.is_repeated:
        return of(each, value)
    if each.message_type is None or not each.message_type.GetOptions().map_entry:
        return [of(each, item) for item in value]
    key, kind = each.message_type.fields
    words = {True: "true", False: "false"}
    return {
        words[name] if KINDS[key.type] == "bool" else str(name): of(kind, item) for name, item in sorted(value.items())
    }


def print_interval(micros: int) -> str:
    """Return a duration as PostgreSQL prints it."""
    rest = abs(micros)
    minutes, seconds = divmod(rest, 60_000_000)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds // 10**6:02d}"
    fraction = f".{seconds % 10**6:06d}".rstrip("0").rstrip(".")
    return f"{'-' if micros < 0 else ''}{text}{fraction}"


def expected_column(message: Any, each: Any) -> Any:
    """Return what the column of a field is to hold; JSON as the value that it stands for."""
    if each.has_presence and not message.HasField(each.name):
        return None
    value, inner = getattr(message, each.name), each.message_type
    if each.is_repeated:
        return expected_field(message, each)
    name = inner.full_name if inner is not None else ""
    if name == "google.protobuf.Timestamp":
        return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if name == "google.protobuf.Duration":
        return print_interval(value.seconds * 10**6 + int(value.nanos / 1000))
    if name.startswith("google.protobuf.") and name.endswith("Value") and name != "google.protobuf.Value":
        each, value = inner.fields[0], value.value
    elif inner is not None:
        return expected_json(value)
    if each.enum_type is not None:
        return each.enum_type.values_by_number[value].name
    return Decimal(value) if KINDS[each.type] == "uint64" else value


def check(message: Any, row: Mapping[str, Any], types: Mapping[str, str]) -> None:
    """Compare a row with a message."""
    for each in message.DESCRIPTOR.fields:
        found, expected = row[each.name], expected_column(message, each)
        if types[each.name] == "json" and found is not None:
            found, expected = (json.dumps(one, sort_keys=True) for one in (json.loads(found), expected))
        if isinstance(found, datetime):
            found = found.astimezone(UTC)
        assert repr(found) == repr(expected), each.name


@pytest.fixture(scope="module")
def every() -> Any:
    """Give the class of the message with every type."""
    return message_class(EVERY, "shop.Every")


def types_of(text: str, message: str = "") -> Mapping[str, str]:
    """Return the types of the columns of a message."""
    found = protobuf_schema.load(text).find(message)
    assert found is not None
    return protobuf_schema.column_types(found, ())


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_every_type_arrives_as_protobuf_s_own_library_reads_it(every: Any, share: float) -> None:
    """R1: many records at once, with extremes, of few and of all fields."""
    rng = random.Random(int(share * 100))
    messages = [fill(rng, every(), share) for _ in range(80)]
    payloads = [framed(each.SerializeToString()) for each in messages]
    types = types_of(EVERY)
    for message, row in zip(messages, rows_of(decoder(EVERY), payloads), strict=True):
        check(message, row, types)


def test_fields_in_any_order_and_values_written_again_are_read_as_protobuf_does(every: Any) -> None:
    """Messages behind one another are one: the last value counts, messages are merged, lists and maps grow."""
    rng = random.Random(3)
    bodies = []
    for number in range(60):
        parts = [fill(rng, every(), 0.3).SerializeToString() for _ in range(rng.choice((2, 2, 3)))]
        bodies.append(b"".join(parts) if number % 7 else parts[0])
    types = types_of(EVERY)
    rows, problems = read(decoder(EVERY), [framed(each) for each in bodies])
    # The seconds of one duration and the nanoseconds of another one may have two signs.
    assert {reason.rpartition(": ")[2] for reason in problems.values()} <= {"a duration is outside of its bounds"}
    assert len(problems) < 6
    for number, (body, row) in enumerate(zip(bodies, rows, strict=True)):
        if number not in problems:
            check(every.FromString(body), row, types)


def test_damaged_records_are_refused_or_read_as_protobuf_does(every: Any) -> None:
    """R4: what Protobuf's library refuses is refused, and what is read beside such records is what it reads."""
    rng = random.Random(5)
    bodies = []
    for _ in range(900):
        body = bytearray(fill(rng, every(), 0.15).SerializeToString())
        for _ in range(rng.choice((1, 1, 2))):
            if body:
                place = rng.randrange(len(body))
                match rng.randrange(4):
                    case 0:
                        body[place] ^= 1 << rng.randrange(8)
                    case 1:
                        del body[place:]
                    case 2:
                        body.insert(place, rng.randrange(256))
                    case _:
                        del body[place]
        bodies.append(bytes(body))
    rows, problems = read(decoder(EVERY), [framed(each) for each in bodies])
    types = types_of(EVERY)
    taken = 0
    for number, (body, row) in enumerate(zip(bodies, rows, strict=True)):
        if number in problems:
            continue
        taken += 1
        message = every.FromString(body)
        assert not len(UnknownFieldSet(message))
        check(message, row, types)
    assert 60 < taken < 840
    refused = sum(_is_refused(every, body) for body in bodies)
    assert refused > 180


def _is_refused(every: Any, body: bytes) -> bool:
    try:
        every.FromString(body)
    except DecodeError:
        return True
    return False


def one(type_: str, before: str = "", syntax: str = "proto3") -> str:
    """Return the schema of a message with one field ``a``."""
    imports = "".join(
        f'import "google/{name}.proto"; '
        for name in ("protobuf/timestamp", "protobuf/duration", "type/date")
        if f".{name.rpartition('/')[2].capitalize()}" in type_
    )
    return f'syntax = "{syntax}"; {imports}{before} message M {{ {type_} a = 1; }}'


BAD = {
    "an unknown field": (one("int32"), b"\x10\1", "message M has no field of number 2"),
    "field 0": (one("int32"), b"\0\0", "message M has no field of number 0"),
    "another type": (one("int32"), b"\x0d\1\2\3\4", "field a of message M is written as another type"),
    "a group": (one("int32"), b"\x0b\x0c", "field a of message M is written as another type"),
    "an early end": (one("string"), b"\x0a\4ab", "it ends too early"),
    "an early end of a number": (one("int32"), b"\x08\x80", "it ends too early"),
    "no value": (one("double"), b"\x09", "it ends too early"),
    "a huge length": (one("bytes"), b"\x0a" + b"\xff" * 9 + b"\1", "it ends too early"),
    "an endless number": (one("int64"), b"\x08" + b"\xff" * 12, "a number does not end"),
    "a wide number": (one("int64"), b"\x08" + b"\xff" * 9 + b"\2", "more than 64 bits"),
    "a wide int": (one("int32"), b"\x08\x80\x80\x80\x80\x08", "more than 32 bits"),
    "a wide uint": (one("uint32"), b"\x08\x80\x80\x80\x80\x10", "more than 32 bits"),
    "a wide sint": (one("sint32"), b"\x08\x80\x80\x80\x80\x10", "more than 32 bits"),
    "a wide int in a list": (one("repeated int32"), b"\x08\x80\x80\x80\x80\x08", "more than 32 bits"),
    "a boolean": (one("bool"), b"\x08\2", "neither 0 nor 1"),
    "no UTF-8": (one("string"), b"\x0a\1\xff", "a text is no UTF-8"),
    "no UTF-8 in a list": (one("repeated string"), b"\x0a\1\xff", "a text is no UTF-8"),
    "NUL": (one("string"), b"\x0a\1\0", "a NUL character"),
    "an enum": (one("E", "enum E { X = 0; }"), b"\x08\7", "enum E has no number 7"),
    "an enum in a list": (one("repeated E", "enum E { X = 0; }"), b"\x0a\1\7", "enum E has no number 7"),
    "a cut list": (one("repeated fixed32"), b"\x0a\3\1\2\3", "it ends too early"),
    "a year": (one("google.protobuf.Timestamp"), b"\x0a\x06\x08\x80\xdd\xdb\xc3\x97", "it ends too early"),
    "a late year": (
        one("google.protobuf.Timestamp"),
        b"\x0a\x07\x08\x80\xdd\xdb\xff\xaf\x07",
        "a time is outside of the years 1 to 9999",
    ),
    "nanoseconds": (one("google.protobuf.Timestamp"), b"\x0a\2\x10\1", "name its field in raw= of the format"),
    "a duration": (
        one("google.protobuf.Duration"),
        b"\x0a\x0d\x08\1\x10" + b"\xff" * 9 + b"\1",
        "outside of its bounds",
    ),
    "the lowest duration": (
        one("google.protobuf.Duration"),
        b"\x0a\x0b\x08" + b"\x80" * 9 + b"\1",
        "outside of its bounds",
    ),
    "a day": (one("google.type.Date"), b"\x0a\7\x08\xe7\x0f\x10\2\x18\x1e", "a date is no whole day"),
    "a month": (one("google.type.Date"), b"\x0a\5\x08\xe7\x0f\x10\2", "a date is no whole day"),
    "a field within a timestamp": (
        one("google.protobuf.Timestamp"),
        b"\x0a\2\x18\1",
        "Timestamp has no field of number 3",
    ),
    "required": (one("required int32", syntax="proto2"), b"", "field a of message M is required and not there"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_found_among_good_ones(name: str) -> None:
    """R4: exactly the bad one is named, with the reason, and the others are read as they are."""
    schema, payload, reason = BAD[name]
    good = {"required": b"\x08\0", "a day": b"\x0a\7\x08\xe8\x0f\x10\2\x18\x1d"}.get(name, b"")
    found = decoder(schema)
    rows, problems = read(found, [framed(each) for each in (good, payload, good)])
    assert list(problems) == [1], problems
    assert reason in problems[1]
    assert rows[0] == rows[2] == rows_of(found, [framed(good)])[0]


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"\1\0\0\0\1\0", "does not begin with a schema's id"),
        (b"\0\0\0\0\x09\0", "has schema 9, which subject orders-value did not have"),
        (b"\0\0\0\0\1", "it ends too early"),
        (b"\0\0\0\0\1\2\2", "it is the message N, and message M is read"),
        (b"\0\0\0\0\1\2\x0a", r"its schema has no message at [5]"),
        (b"\0\0\0\0\1\1\1", "does not begin with the place of its message"),
    ],
)
def test_the_frame_is_checked(head: bytes, reason: str) -> None:
    """R4: the id, and which message of its schema a record is."""
    found = decoder(one("int32") + " message N { int32 b = 1; }")
    rows, problems = read(found, [framed(b"\x08\7"), head, framed(b"\x08\7")])
    assert list(problems) == [1]
    assert reason in problems[1]
    assert [rows[place]["a"] for place in (0, 2)] == [7, 7]


def test_other_and_nested_messages_can_be_read() -> None:
    """By their place; a place may be written in other ways, which mean the same."""
    schema = 'syntax = "proto3"; message A { message B { int32 x = 1; } message C { message D { int32 y = 1; } } }'
    assert rows_of(decoder(schema, message="A.B"), [framed(b"\x08\7", path=(0, 0))]) == [{"x": 7}]
    assert rows_of(decoder(schema, message="D"), [framed(b"\x08\7", path=(0, 1, 0))] * 2) == [{"y": 7}] * 2
    assert rows_of(decoder(one("int32")), [b"\0\0\0\0\1\2\0\x08\7", b"\0\0\0\0\1\x80\0\x08\7"]) == [{"a": 7}] * 2


def test_presence_decides_between_zero_and_null() -> None:
    """Implicit presence has the type's zero, explicit presence is NULL, in proto2, proto3 and the edition."""
    enum = "enum E { X = 0; Y = 1; }"
    assert rows_of(decoder(one("E", enum)), [framed(b"")]) == [{"a": "X"}]
    assert rows_of(decoder(one("E", enum), raw=["a"]), [framed(b""), framed(b"\x08\7")]) == [{"a": 0}, {"a": 7}]
    assert rows_of(decoder(one("optional E", enum)), [framed(b"")]) == [{"a": None}]
    assert rows_of(decoder(one("optional int32", syntax="proto2")), [framed(b""), framed(b"\x08\0")]) == [
        {"a": None},
        {"a": 0},
    ]
    edition = 'edition = "2023"; message M { int32 a = 1; int32 b = 2 [features.field_presence = IMPLICIT]; }'
    assert rows_of(decoder(edition), [framed(b"")]) == [{"a": None, "b": 0}]
    whole = 'edition = "2023"; option features = { field_presence: IMPLICIT }; message M { int32 a = 1; }'
    assert rows_of(decoder(whole), [framed(b"")]) == [{"a": 0}]


def test_times_can_be_taken_with_all_of_their_digits() -> None:
    """As text, and a date as its parts."""
    schema = one("google.protobuf.Timestamp")
    assert rows_of(decoder(schema, raw=["a"]), [framed(b"\x0a\4\x08\1\x10\1"), framed(b"")]) == [
        {"a": "1970-01-01T00:00:01.000000001Z"},
        {"a": None},
    ]
    assert rows_of(decoder(one("google.protobuf.Duration"), raw=["a"]), [framed(b"\x0a\4\x08\1\x10\1")]) == [
        {"a": "1.000000001s"}
    ]
    days = [framed(b"\x0a\7\x08\xe8\x0f\x10\2\x18\x1d"), framed(b"")]
    assert rows_of(decoder(one("google.type.Date")), days) == [{"a": date(2024, 2, 29)}, {"a": None}]
    assert rows_of(decoder(one("google.type.Date"), raw=["a"]), [framed(b"\x0a\3\x08\xe8\x0f")]) == [
        {"a": '{"year": 2024, "month": 0, "day": 0}'}
    ]


@pytest.mark.parametrize("share", [0, 1])
def test_raw_means_nothing_to_a_wrapper(share: int) -> None:
    """It stays a value that may be absent, not the JSON of it: beside records without it, and alone."""
    names = ("StringValue text", "BytesValue bytes", "Int64Value number")
    fields = " ".join(f"google.protobuf.{name} = {number};" for number, name in enumerate(names, 1))
    schema = f'syntax = "proto3"; import "google/protobuf/wrappers.proto"; message M {{ {fields} }}'
    body = b"\x0a\3\x0a\1x" + b"\x12\3\x0a\1y" + b"\x1a\2\x08\5"
    rows = rows_of(decoder(schema, raw=("text", "bytes", "number")), [framed(body)] + [framed(b"")] * share)
    absent = {"text": None, "bytes": None, "number": None}
    assert rows == [{"text": "x", "bytes": b"y", "number": 5}, *[absent] * share]


def test_tombstones_and_several_schemas_keep_their_places() -> None:
    """A field of the latest schema that a record lacks is what it is where it is not set; one that is gone stays."""
    first = 'syntax = "proto3"; message M { int32 id = 1; string old = 2; }'
    second = 'syntax = "proto3"; message M { int64 id = 1; string state = 3; optional string note = 4; }'
    found = decoder(first, second, columns={"id": "bigint", "old": "text", "state": "text", "note": "text"})
    payloads = [
        framed(b"\x08\1\x1a\4sent", 2),
        None,
        framed(b"\x08" + b"\xff" * 9 + b"\1\x12\1x", 1),
        framed(b"\x08\3\x22\1n", 2),
    ]
    assert rows_of(found, payloads) == [
        {"id": 1, "old": None, "state": "sent", "note": None},
        {"id": None, "old": None, "state": None, "note": None},
        {"id": -1, "old": "x", "state": "", "note": None},
        {"id": 3, "old": None, "state": "", "note": "n"},
    ]
    assert rows_of(found, []) == []


def test_numbers_of_an_older_schema_are_widened() -> None:
    """An int that became one of 64 bits without a sign."""
    columns = {"a": "numeric(20,0)"}
    found = decoder(one("int64"), one("uint64"), columns=columns)
    assert rows_of(found, [framed(b"\x08" + b"\xff" * 9 + b"\1", 1), framed(b"\x08" + b"\xff" * 9 + b"\1", 2)]) == [
        {"a": Decimal(-1)},
        {"a": Decimal(2**64 - 1)},
    ]


def test_keys_are_one_text() -> None:
    """By which rows can be upserted: equal keys are equal texts, in whatever order they are written."""
    schema = 'syntax = "proto3"; message K { int64 id = 1; string region = 2; optional int32 part = 3; }'
    found = decoder(schema, part="key", columns={"key": "text"})
    payloads = [framed(b"\x08\7\x12\2eu"), framed(b"\x12\2eu\x08\7"), None, framed(b"\x08\7\x12\2eu\x18\0")]
    assert [row["key"] for row in rows_of(found, payloads)] == [
        '{"id": 7, "region": "eu"}',
        '{"id": 7, "region": "eu"}',
        None,
        '{"id": 7, "region": "eu", "part": 0}',
    ]
    _, problems = read(found, [framed(b"\x08\7"), framed(b"\x08")])
    assert list(problems) == [1]


def test_fields_can_be_renamed() -> None:
    """``names`` where a column of that name is there already."""
    found = decoder(one("int32"), columns={"b": "integer"}, names={"a": "b"})
    assert rows_of(found, [framed(b"\x08\7"), framed(b"")]) == [{"b": 7}, {"b": 0}]


def test_what_is_nested_deep_is_refused() -> None:
    """As Protobuf's own readers do, and without an error of Python's."""
    schema = 'syntax = "proto3"; message M { M a = 1; }'
    body = b""
    for _ in range(150):
        size = len(body)
        head = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        body = b"\x0a" + head + body
    rows, problems = read(decoder(schema), [framed(b""), framed(body), framed(b"\x0a\0")])
    assert problems == {1: "its value cannot be taken apart: it is nested too deep"}
    assert rows[2] == {"a": "{}"}


def test_required_fields_within_messages_are_checked() -> None:
    """Of proto2, as Protobuf's library does when it writes."""
    schema = 'syntax = "proto2"; message M { optional N n = 1; } message N { required int32 b = 1; }'
    with pytest.raises(EncodeError):
        message_class(schema, "M")(n={}).SerializeToString()
    _, problems = read(decoder(schema), [framed(b"\x0a\0")])
    assert "field b of message N is required" in problems[0]
