"""Avro records as columns, compared with what fastavro reads of the same bytes."""

import io
import json
import random
import struct
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import fastavro
import pyarrow
import pytest

from airflow_provider_backpressure.connectors.kafka import avro_schema
from airflow_provider_backpressure.connectors.kafka.tasks.avro_to_json import Malformed, read_long, write_long
from airflow_provider_backpressure.connectors.kafka.tasks.wire_format import Decoder
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.spark.column_types import carrier

EPOCH = datetime(1970, 1, 1)
OFTEN = 60


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """Return a primitive type with a logical one."""
    return {"type": kind, "logicalType": name, **more}


def fixed(size: int, name: str, **more: Any) -> dict[str, Any]:
    """Return a type of so many bytes, with a logical one."""
    return {"type": "fixed", "name": f"f{uuid.uuid4().hex[:8]}", "size": size, "logicalType": name, **more}


def decoder(
    *schemas: Any,
    part: str = "value",
    columns: Mapping[str, str] | None = None,
    raw: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> Decoder:
    """Return what reads records of these schemas, numbered from 1, by the last one."""
    texts = [json.dumps(schema) for schema in schemas]
    pinned = {str(number): {"schema": text, "references": []} for number, text in enumerate(texts, 1)}
    types = columns or avro_schema.column_types(avro_schema.parse(texts[-1]), part, raw)
    decoding = {
        "format": "avro",
        "subject": "orders-value",
        "latest": len(texts),
        "schemas": pinned,
        "raw": list(raw),
        "names": dict(names or {}),
    }
    return Decoder(
        decoding=decoding, columns=[Column(name=name, type=type_ or "text") for name, type_ in types.items()], part=part
    )


def written(schema: Any, value: Any, schema_id: int = 1) -> bytes:
    """Return a record as Confluent's serializers write it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


def record(**fields: Any) -> dict[str, Any]:
    """Return the schema of a record."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields.items()]}


def rows_of(found: Decoder, payloads: Sequence[bytes | None]) -> list[dict[str, Any]]:
    """Return the rows of records that can all be taken."""
    arrays, problems = found.decode(payloads)
    assert problems == {}
    for column, array in zip(found.columns, arrays, strict=True):
        array.validate(full=True)
        assert array.type == carrier(column.type)[0]
    return pyarrow.table(arrays, names=[column.name for column in found.columns]).to_pylist()


def micros(rng: random.Random) -> datetime:
    """Return a moment of the years 1 to 9999."""
    return datetime(1, 1, 1) + timedelta(seconds=rng.randrange(315_537_897_600), microseconds=rng.randrange(10**6))


def text(rng: random.Random) -> str:
    """Return a text of any length and of characters of one to four bytes."""
    return "".join(rng.choice('aЖ€𝄞 "\\\n') for _ in range(rng.choice((0, 1, 5, 70, 200))))


def number(rng: random.Random, bits: int) -> int:
    """Return a number of any size, with both signs."""
    most = 2 ** (bits - 1)
    return rng.choice((0, -1, 1, most - 1, -most, rng.randrange(-most, most), rng.randrange(-most, most) >> bits // 2))


def digits(rng: random.Random, precision: int, scale: int) -> Decimal:
    """Return a decimal of any length."""
    most = 10 ** rng.choice((1, precision // 2, precision))
    value = rng.choice((rng.randrange(-most + 1, most), most - 1, 1 - most, 0))
    return Decimal(value).scaleb(-scale, Context(prec=2000))


Made = tuple[Any, Any]
"""What is written, and what has to arrive."""


def typed(rng: random.Random) -> dict[str, tuple[Any, Made]]:
    """Return a schema of each kind with a value."""
    moment, day, whole = micros(rng), rng.randrange(-719_162, 2_932_897), number(rng, 64)
    millis = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    clock = rng.randrange(86_400_000_000)
    coarse = clock // 1000 * 1000
    ident, raw = uuid.UUID(int=rng.getrandbits(128)), rng.randbytes(rng.choice((0, 1, 16, 300)))
    small, wide, long = digits(rng, 9, 2), digits(rng, 38, 10), digits(rng, 60, 3)
    single = struct.unpack("<f", struct.pack("<f", rng.uniform(-1e30, 1e30)))[0]
    nanos = (moment.replace(year=1700 + moment.year % 500) - EPOCH) // timedelta(microseconds=1)
    maybe = rng.choice((None, whole))

    def same(value: Any) -> Made:
        return value, value

    def of_day(value: int) -> Made:
        return (datetime.min + timedelta(microseconds=value)).time(), time_text(value)

    return {
        "boolean": ("boolean", same(rng.random() < 0.5)),
        "int": ("int", same(number(rng, 32))),
        "long": ("long", same(whole)),
        "float": ("float", same(single)),
        "double": ("double", same(rng.choice((rng.uniform(-1e300, 1e300), float("inf"), -0.0)))),
        "bytes": ("bytes", same(raw)),
        "string": ("string", same(text(rng))),
        "fixed": ({"type": "fixed", "name": "F", "size": 3}, same(rng.randbytes(3))),
        "enum": ({"type": "enum", "name": "E", "symbols": ["NEW", "SENT"]}, same(rng.choice(("NEW", "SENT")))),
        "date": (logical("int", "date"), same(date.fromordinal(day + date(1970, 1, 1).toordinal()))),
        "time_millis": (logical("int", "time-millis"), of_day(coarse)),
        "time_micros": (logical("long", "time-micros"), of_day(clock)),
        "millis": (logical("long", "timestamp-millis"), same(millis.replace(tzinfo=UTC))),
        "micros": (logical("long", "timestamp-micros"), same(moment.replace(tzinfo=UTC))),
        "nanos": (
            logical("long", "timestamp-nanos"),
            (nanos * 1000, (EPOCH + timedelta(microseconds=nanos)).replace(tzinfo=UTC)),
        ),
        "local_millis": (logical("long", "local-timestamp-millis"), same(millis)),
        "local_micros": (logical("long", "local-timestamp-micros"), same(moment)),
        "uuid": (logical("string", "uuid"), (ident, str(ident))),
        "uuid_fixed": (fixed(16, "uuid"), (ident.bytes, str(ident))),
        "decimal": (logical("bytes", "decimal", precision=9, scale=2), same(small)),
        "decimal_wide": (logical("bytes", "decimal", precision=38, scale=10), same(wide)),
        "decimal_fixed": (fixed(16, "decimal", precision=38, scale=10), same(wide)),
        "decimal_long": (logical("bytes", "decimal", precision=60, scale=3), (long, f"{long:f}")),
        "maybe": (["null", "long"], same(maybe)),
        "maybe_last": (["string", "null"], same(rng.choice((None, text(rng))))),
        "array": ({"type": "array", "items": ["null", "int"]}, ([1, None, 2], "[1, null, 2]")),
        "map": ({"type": "map", "values": "string"}, ({"ä": "ö"}, '{"ä": "ö"}')),
        "several": (["null", "int", "string"], rng.choice(((None, None), (7, "7"), ("x", '"x"')))),
    }


def time_text(value: int) -> str:
    """Return a time of day as PostgreSQL prints it."""
    whole = (datetime.min + timedelta(microseconds=value)).time().isoformat("microseconds")
    return whole.rstrip("0").rstrip(".")


def test_every_type_arrives_as_it_was_written() -> None:
    """Many records at once, with extremes; fastavro writes them, and the values are those that it was given."""
    rng = random.Random(7)
    made = [typed(rng) for _ in range(OFTEN)]
    schema = record(**{name: type_ for name, (type_, _) in made[0].items()})
    payloads = [written(schema, {name: given for name, (_, (given, _)) in each.items()}) for each in made]
    for each, row in zip(made, rows_of(decoder(schema), payloads), strict=True):
        assert row == {name: arrives for name, (_, (_, arrives)) in each.items()}


def test_nested_values_are_json_with_all_of_their_digits() -> None:
    """Records, lists of them, bytes, times and what JSON has no number for."""
    inner = record(
        amount=logical("bytes", "decimal", precision=30, scale=2),
        raw="bytes",
        at=logical("long", "timestamp-millis"),
        day=logical("int", "date"),
        clock=logical("long", "time-micros"),
        odd="double",
        next=["null", "R"],
    )
    value = {
        "amount": Decimal("12345678901234567890.10"),
        "raw": b"\xff\x00",
        "at": datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC),
        "day": date(2024, 2, 29),
        "clock": time(12, 30),
        "odd": float("nan"),
    }
    whole = {"line": {**value, "next": {**value, "next": None}}}
    schema = {"type": "record", "name": "Outer", "fields": [{"name": "line", "type": inner}]}
    (row,) = rows_of(decoder(schema), [written(schema, whole)])
    found = json.loads(row["line"], parse_float=str)
    assert found["next"].pop("next") is None
    assert (
        found.pop("next")
        == found
        == {
            "amount": "12345678901234567890.10",
            "raw": "/wA=",
            "at": "2026-01-31T12:00:00.123000Z",
            "day": "2024-02-29",
            "clock": "12:30:00",
            "odd": "NaN",
        }
    )


def test_tombstones_and_several_schemas_keep_their_places() -> None:
    """A field of the latest schema that a record lacks is its default; one that is gone keeps its values."""
    first = record(id="long", old="string")
    second = record(id="long")
    second["fields"] += [{"name": "state", "type": "string", "default": "new"}]
    found = decoder(first, second, columns={"id": "bigint", "old": "text", "state": "text"})
    payloads = [
        written(second, {"id": 1, "state": "sent"}, 2),
        None,
        written(first, {"id": 2, "old": "x"}),
        written(second, {"id": 3, "state": "ä"}, 2),
    ]
    assert rows_of(found, payloads) == [
        {"id": 1, "old": None, "state": "sent"},
        {"id": None, "old": None, "state": None},
        {"id": 2, "old": "x", "state": "new"},
        {"id": 3, "old": None, "state": "ä"},
    ]
    assert rows_of(found, [None]) == [{"id": None, "old": None, "state": None}]
    assert rows_of(found, []) == []


def test_a_null_record_has_no_defaults() -> None:
    """It has no fields: all of its columns are NULL, also those of fields that came later."""
    later = record(id="long")
    later["fields"] += [{"name": "state", "type": "string", "default": "new"}]
    first, second = ["null", record(id="long")], ["null", later]
    found = decoder(first, second)
    assert rows_of(found, [written(first, None), written(first, {"id": 7}), written(second, None, 2)]) == [
        {"id": None, "state": None},
        {"id": 7, "state": "new"},
        {"id": None, "state": None},
    ]


@pytest.mark.parametrize("type_", ["null", ["null"]])
def test_a_field_that_is_always_null_takes_no_part_in_types(type_: Any) -> None:
    """Alone it is a text, beside another version it has the type there."""
    schema = record(a=type_, id="long")
    assert avro_schema.column_types(avro_schema.parse(json.dumps(schema)), "value", ()) == {"a": None, "id": "bigint"}
    assert rows_of(decoder(schema), [written(schema, {"a": None, "id": 7})]) == [{"a": None, "id": 7}]
    found = decoder(schema, record(a="int", id="long"))
    assert rows_of(found, [written(schema, {"a": None, "id": 7})]) == [{"a": None, "id": 7}]


@pytest.mark.parametrize(
    ("types", "default", "expected"),
    [
        (["int", "string"], "x", '"x"'),
        (["string", "int"], 7, "7"),
        (["boolean", "long"], 1, "1"),
        (["long", "boolean"], True, "true"),
        ([{"type": "enum", "name": "E", "symbols": ["A"]}, "string"], "x", '"x"'),
        (["int", {"type": "array", "items": "int"}], [1], "[1]"),
    ],
)
def test_a_default_is_of_the_type_that_takes_it(types: list[Any], default: Any, expected: str) -> None:
    """Of any type of its union."""
    before, now = record(id="long"), record(id="long")
    now["fields"] += [{"name": "a", "type": types, "default": default}]
    assert rows_of(decoder(before, now), [written(before, {"id": 7})]) == [{"id": 7, "a": expected}]


def test_a_text_without_its_logical_type_stays_as_it_is() -> None:
    """Not as PostgreSQL prints a UUID."""
    ident = "8F0C2A1B-0000-4000-8000-0123456789AB"
    schema = record(a=logical("string", "uuid"))
    payload = b"\0\0\0\0\1" + write_long(len(ident)) + ident.encode()
    assert rows_of(decoder(schema, raw=["a"]), [payload]) == [{"a": ident}]
    assert rows_of(decoder(schema), [payload]) == [{"a": ident.lower()}]


def test_numbers_of_an_older_schema_are_widened() -> None:
    """An int that became a long, and a decimal that has more digits now."""
    before = record(id="int", amount=logical("bytes", "decimal", precision=9, scale=2))
    now = record(id="long", amount=logical("bytes", "decimal", precision=20, scale=4))
    rows = rows_of(decoder(before, now), [written(before, {"id": -5, "amount": Decimal("1.25")})])
    assert rows == [{"id": -5, "amount": Decimal("1.2500")}]


def test_decimals_of_an_older_schema_are_texts_as_postgresql_prints_them() -> None:
    """R4: above 38 digits they go as text. Arrow writes exponents, which differ from what is read back."""
    now = record(a=logical("bytes", "decimal", precision=60, scale=20))
    for digits, scale in ((12, 10), (45, 12)):
        before = record(a=logical("bytes", "decimal", precision=digits, scale=scale))
        payloads = [written(before, {"a": Decimal(text)}) for text in ("1E-10", "0", "-25.5")]
        rows = rows_of(decoder(before, now), [*payloads, written(now, {"a": Decimal("1E-20")}, 2)])
        assert [row["a"] for row in rows] == [
            "0.00000000010000000000",
            "0.00000000000000000000",
            "-25.50000000000000000000",
            "0.00000000000000000001",
        ]


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_text_that_was_a_uuid_by_an_older_schema_keeps_its_letters(part: str) -> None:
    """R4: records of both schemas have one key, and so are one row of an upserted target."""
    before, now = logical("string", "uuid"), "string"
    if part == "value":
        before, now = record(id=["null", before]), record(id=now)
    ident = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
    value = {"id": ident} if part == "value" else ident
    rows = rows_of(decoder(before, now, part=part), [written(before, value), written(now, value, 2)])
    assert [*rows[0].values()] == [*rows[1].values()] == [ident]


def test_a_decimal_of_too_many_digits_is_named_though_its_column_is_wider() -> None:
    """R4: the record, and not an error of the library that widens the others."""
    before, now = (record(a=logical("bytes", "decimal", precision=digits, scale=2)) for digits in (4, 6))
    good = written(before, {"a": Decimal("1.25")})
    for body in (b"\x08" + b"\x7f" * 4, b"\x18" + b"\x7f" * 12):
        arrays, problems = decoder(before, now).decode([good, b"\0\0\0\0\1" + body, good])
        assert {row: reason.partition(": ")[2] for row, reason in problems.items()} == {
            1: "field a: a decimal has more than 4 digits"
        }
        assert [arrays[0][row].as_py() for row in (0, 2)] == [Decimal("1.25")] * 2


def test_keys_are_one_value() -> None:
    """A primitive key has its type; a record is one text, by which rows can be upserted."""
    assert rows_of(decoder("long", part="key"), [written("long", 7)]) == [{"key": 7}]
    schema = record(id="long", region="string")
    found = decoder(schema, part="key", columns={"key": "text"})
    assert rows_of(found, [written(schema, {"id": 7, "region": "eu"}), None]) == [
        {"key": '{"id": 7, "region": "eu"}'},
        {"key": None},
    ]


def test_records_may_be_null() -> None:
    """A union of null and a record: such a value has NULL in every column."""
    schema = ["null", record(id="long")]
    assert rows_of(decoder(schema), [written(schema, None), written(schema, {"id": 7})]) == [{"id": None}, {"id": 7}]


def test_a_uuid_has_one_form() -> None:
    """As PostgreSQL prints it: a table of files has no type for it, and would keep another text for an equal value."""
    schema, plain = record(a=logical("string", "uuid")), "6f1f0c4e-6a52-4a8b-8f0e-0f6c3c1b2a3d"
    forms = [plain, plain.upper(), plain.replace("-", ""), f"{{{plain}}}"]
    # Not by fastavro, which writes no other form.
    payloads = [b"\0\0\0\0\1" + write_long(len(each)) + each.encode() for each in forms]
    for given in (payloads[:2], payloads):
        assert [row["a"] for row in rows_of(decoder(schema), given)] == [plain] * len(given)


def test_fields_can_be_renamed_and_taken_as_numbers() -> None:
    """``names`` where a column of that name is there already, ``raw`` where a value has no type of PostgreSQL."""
    schema = record(timestamp=logical("long", "timestamp-nanos"))
    found = decoder(schema, columns={"at": "bigint"}, raw=["timestamp"], names={"timestamp": "at"})
    assert rows_of(found, [written(schema, {"timestamp": 1})]) == [{"at": 1}]


BAD = {
    "a magic byte": (record(a="int"), b"\1\0\0\0\1\2", "does not begin with a schema's id"),
    "nothing": (record(a="int"), b"", "does not begin with a schema's id"),
    "an unknown id": (record(a="int"), b"\0\0\0\0\x09\2", "has schema 9, which subject orders-value did not have"),
    "an early end": (record(a="string"), b"\0\0\0\0\1\x08ab", "it ends too early"),
    "an empty value": (record(a="double"), b"\0\0\0\0\1", "it ends too early"),
    "surplus": (record(a="int"), b"\0\0\0\0\1\2\0", "bytes follow its end"),
    "a length": (record(a="bytes"), b"\0\0\0\0\1\1", "a length is below zero"),
    "an endless number": (record(a="long"), b"\0\0\0\0\1" + b"\xff" * 12, "a number does not end"),
    "a large int": (record(a="int"), b"\0\0\0\0\1" + write_long(2**31), "more than 32 bits"),
    "a branch": (record(a=["null", "int"]), b"\0\0\0\0\1\4\0", "a union has no such branch"),
    "a symbol": (record(a={"type": "enum", "name": "E", "symbols": ["X"]}), b"\0\0\0\0\1\2", "no such symbol"),
    "a boolean": (record(a="boolean"), b"\0\0\0\0\1\2", "neither 0 nor 1"),
    "no UTF-8": (record(a="string"), b"\0\0\0\0\1\2\xff", "a text is no UTF-8"),
    "NUL": (record(a="string"), b"\0\0\0\0\1\2\0", "a NUL character"),
    "a year": (record(a=logical("int", "date")), b"\0\0\0\0\1" + write_long(2_932_897), "years 1 to 9999"),
    "finer": (record(a=logical("long", "timestamp-nanos")), b"\0\0\0\0\1\2", "digits below the microsecond"),
    "a text that is no UUID": (record(a=logical("string", "uuid")), b"\0\0\0\0\1\6ABC", "a text is no UUID"),
    "a clock": (record(a=logical("int", "time-millis")), b"\0\0\0\0\1\1", "not within a day"),
    "digits": (
        record(a=logical("bytes", "decimal", precision=2, scale=0)),
        b"\0\0\0\0\1\2\x64",
        "a decimal has more than 2 digits",
    ),
    "digits of the lowest number": (
        record(a=logical("bytes", "decimal", precision=4, scale=2)),
        b"\0\0\0\0\1\x10\x80" + bytes(7),
        "a decimal has more than 4 digits",
    ),
    "thousands of digits": (
        record(a=logical("bytes", "decimal", precision=4, scale=0)),
        b"\0\0\0\0\1" + write_long(2000) + b"\x7f" * 2000,
        "a decimal has more than 4 digits",
    ),
    "thousands of digits in a list": (
        record(a={"type": "array", "items": logical("bytes", "decimal", precision=4, scale=0)}),
        b"\0\0\0\0\1\2" + write_long(2000) + b"\x7f" * 2000 + b"\0",
        "a decimal has more than 1000 digits",
    ),
    "a long list": (
        record(a={"type": "array", "items": "null"}),
        b"\0\0\0\0\1" + write_long(2**60),
        "a list is longer than its bytes",
    ),
    "a list without end": (record(a={"type": "array", "items": "int"}), b"\0\0\0\0\1\2\2", "does not end"),
}
GOOD = {
    "double": 1.5,
    "string": "x",
    "bytes": b"x",
    "int": 1,
    "long": 1,
    "boolean": True,
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_found_among_good_ones(name: str) -> None:
    """Exactly the bad one is named, with the reason, and the others are read as they are."""
    schema, payload, reason = BAD[name]
    good = next(each for each in (written(schema, {"a": value}) for value in _candidates(schema["fields"][0]["type"])))
    found = decoder(schema)
    arrays, problems = found.decode([good, payload, good])
    assert list(problems) == [1], problems
    assert reason in problems[1]
    alone = rows_of(found, [good])
    assert [arrays[0][place].as_py() for place in (0, 2)] == [alone[0]["a"]] * 2


def _candidates(type_: Any) -> list[Any]:
    """Return a value that is of a type."""
    if isinstance(type_, list):
        return [None]
    if isinstance(type_, str):
        return [GOOD[type_]]
    if type_.get("logicalType") == "decimal":
        return [Decimal(7)]
    if type_.get("logicalType") == "timestamp-nanos":
        return [1000]
    if type_.get("logicalType") == "uuid":
        return [str(uuid.UUID(int=1))]
    if type_.get("logicalType") == "time-millis":
        return [time(1)]
    return {"enum": ["X"], "array": [[]]}.get(type_["type"], [date(2026, 1, 1)])


def test_mangled_records_never_pass_as_others() -> None:
    """Bytes cut, added and changed: what is taken is what fastavro reads of the whole message; neighbours stay."""
    rng = random.Random(11)
    schema = record(
        id="long", name="string", maybe=["null", "double"], tags={"type": "array", "items": "string"}, raw="bytes"
    )
    parsed, found = fastavro.parse_schema(schema), decoder(schema)
    values = [
        {"id": number(rng, 64), "name": "abc" * rng.randrange(9), "maybe": rng.choice((None, 1.5)), "tags": ["t"] * 3}
        for _ in range(400)
    ]
    good = [written(schema, {**each, "raw": b"\0\1"}) for each in values]
    mangled = [_mangle(rng, each) if index % 2 else each for index, each in enumerate(good)]
    arrays, problems = found.decode(mangled)
    rows = pyarrow.table(arrays, names=[column.name for column in found.columns]).to_pylist()
    assert all(at % 2 for at in problems)
    assert len(problems) > 50
    for index, (payload, row) in enumerate(zip(mangled, rows, strict=True)):
        if index in problems:
            continue
        stream = io.BytesIO(payload[5:])
        expected = fastavro.schemaless_reader(stream, parsed)
        assert stream.read() == b""
        assert {**row, "tags": json.loads(row["tags"])} == expected


def _mangle(rng: random.Random, payload: bytes) -> bytes:
    body = bytearray(payload)
    at = rng.randrange(5, len(body))
    match rng.randrange(3):
        case 0:
            del body[at:]
        case 1:
            body.insert(at, rng.randrange(256))
        case _:
            body[at] = rng.randrange(256)
    return bytes(body)


def test_numbers_of_every_length_are_read() -> None:
    """One to ten bytes, and beside each other."""
    values = [sign * 2**power - less for power in range(63) for less in (0, 1) for sign in (1, -1)]
    schema = record(a="long", b="long")
    rows = rows_of(decoder(schema), [written(schema, {"a": value, "b": -1}) for value in values])
    assert rows == [{"a": value, "b": -1} for value in values]
    assert read_long(write_long(-(2**63)), 0) == (-(2**63), 10)
    with pytest.raises(Malformed):
        read_long(b"\xff", 0)


@pytest.mark.parametrize(
    "schema", ["nothing", "{", '{"type": "record", "name": "R"}', '{"type": "record", "name": "R", "fields": 7}']
)
def test_what_is_no_schema_is_refused(schema: str) -> None:
    """In one sentence."""
    with pytest.raises(InvalidDeclaration, match="Avro schema"):
        avro_schema.parse(schema)


def test_names_are_found_in_their_namespace() -> None:
    """Also those that another schema defines, and a type within itself."""
    other = json.dumps({"type": "enum", "name": "a.b.State", "symbols": ["X"]})
    schema = {
        "type": "record",
        "name": "a.b.Order",
        "fields": [
            {"name": "state", "type": "State"},
            {"name": "again", "type": ["null", "a.b.State"]},
            {"name": "next", "type": ["null", "Order"]},
        ],
    }
    node = avro_schema.parse(json.dumps(schema), [other])
    assert avro_schema.column_types(node, "value", ()) == {"state": "text", "again": "text", "next": "json"}
