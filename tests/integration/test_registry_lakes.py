"""Topics whose schemas are in a real registry into every table of files, read by each format's own library."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import RangeFailed, SourceRefused
from airflow_provider_backpressure.sources import Avro, JsonSchema
from tests import types_avro as typed
from tests.integration.test_kafka_source import Run, Stage, stage  # noqa: F401 - the fixture
from tests.integration.test_registry import Registered, orders  # noqa: F401 - the fixture
from tests.support import lakes
from tests.support.marks import mark_long
from tests.support.registry import CONN_ID, avro_record, framed

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("R1")]

READ: dict[str, Callable[[str], Any]] = {
    "boolean": lambda text: text == "true",
    "integer": int,
    "bigint": int,
    "real": float,
    "double precision": float,
    "bytea": lambda text: bytes.fromhex(text[2:]),
    "date": date.fromisoformat,
    "timestamp with time zone": datetime.fromisoformat,
    "timestamp without time zone": datetime.fromisoformat,
    "numeric(38,10)": Decimal,
    "numeric(15,2)": Decimal,
}
"""What files hold by its own type, from the text that PostgreSQL prints; of every other type they hold that text."""
LEFT = ("topic", "partition", "timestamp", "headers")
"""Columns that other tests look at."""


def hydration(orders: Registered, kind: str, folder: Path, format_: Any) -> Run:  # noqa: F811
    """Return a hydration into a table of files."""
    return orders.hydration(format_, reading={"key": format_}, into=lakes.place(kind, folder))


def read(run: Run) -> list[dict[str, Any]]:
    """Return the rows in the order of their offsets."""
    rows = lakes.table(**run.composed.into).drop_columns(list(LEFT)).to_pylist()
    return sorted(rows, key=lambda row: row["offset"])


def put_aside(run: Run, kind: str, folder: Path) -> tuple[Run, dict[str, str]]:
    """Read the same topic into another table with a quarantine; return why records are there, by their offset."""
    (folder / "kept").mkdir()
    into = lakes.place(kind, folder / "kept")
    kept = replace(run, composed=replace(run.composed, into={**into, "quarantine": 9}))
    kept.go()
    name = "table" if kind == "iceberg" else "path"
    rows = lakes.table(**{**into, name: f"{into[name]}_quarantine"}).to_pylist()
    return kept, {str(json.loads(row["key"])["offset"]): row["reason"] for row in rows}


def is_same(found: Any, expected: Any) -> bool:
    """Whether both are one value of one type: NaN is itself."""
    if isinstance(found, float) and isinstance(expected, float):
        return found == expected or (math.isnan(found) and math.isnan(expected))
    return type(found) is type(expected) and bool(found == expected)


@pytest.mark.parametrize("kind", lakes.KINDS)
def test_every_type_of_avro_is_in_the_files_as_it_was_written(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R1: Avro values and keys, with NULL and extremes, and a record without a value."""
    value, key = orders.subject().register(typed.schema()), orders.subject("key").register("long")
    ends = (2**63 - 1, -(2**63), 0, 99)
    records = [avro_record(typed.schema(), record, value) for record in typed.records()]
    for number, record in zip(ends, [*records, None], strict=True):
        orders.topic.send(0, record, key=avro_record("long", number, key))
    run = hydration(orders, kind, tmp_path, Avro(registry_conn_id=CONN_ID))
    run.go()
    rows = read(run)
    assert [row["key"] for row in rows] == list(ends)
    wrong = {}
    for name, (type_, shown) in typed.expected().items():
        expected = [*(READ.get(type_, str)(text) for text in shown), None, None]
        found = [row[name] for row in rows]
        if not all(map(is_same, found, expected)):
            wrong[typed.shown(name)] = (found, expected)
    assert wrong == {}
    assert run.verify(Verify.FULL).equal


JSON: dict[str, tuple[dict[str, Any], tuple[tuple[str, Any], ...]]] = {
    "whole": ({"type": "integer"}, ((f"{2**63 - 1}", 2**63 - 1), (f"-{2**63}", -(2**63)))),
    "digits": (
        {"type": "number"},
        (("0.10000000000000000001", "0.10000000000000000001"), ("-12345678901234567890.5", "-12345678901234567890.5")),
    ),
    "flag": ({"type": "boolean"}, (("true", True), ("false", False))),
    "words": ({"type": "string"}, (('"ä𝄞 \\"q\\"\\n"', 'ä𝄞 "q"\n'), ('""', ""))),
    "day": (
        {"type": "string", "format": "date"},
        (('"0001-01-01"', date(1, 1, 1)), ('"9999-12-31"', date(9999, 12, 31))),
    ),
    "moment": (
        {"type": "string", "format": "date-time"},
        (
            ('"0001-01-01T00:00:00Z"', datetime.fromisoformat("0001-01-01T00:00:00Z")),
            ('"9999-12-31T23:59:59.999999Z"', datetime.fromisoformat("9999-12-31T23:59:59.999999Z")),
        ),
    ),
    "id": (
        {"type": "string", "format": "uuid"},
        (
            ('"00000000-0000-0000-0000-000000000007"', "00000000-0000-0000-0000-000000000007"),
            ('"ffffffff-ffff-ffff-ffff-ffffffffffff"', "ffffffff-ffff-ffff-ffff-ffffffffffff"),
        ),
    ),
    "inner": ({"type": "object"}, (('{"a": 1.50, "b": null}', '{"a": 1.50, "b": null}'), ("{}", "{}"))),
    "list": ({"type": "array"}, (("[1.10, null]", "[1.10, null]"), ("[]", "[]"))),
    "either": ({"type": ["integer", "string"]}, (("7", "7"), ('"x"', '"x"'))),
}
"""By property: its schema, and twice what is sent beside what the files are to hold."""


@pytest.mark.parametrize("kind", lakes.KINDS)
def test_every_type_of_json_schema_is_in_the_files_as_it_was_sent(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R1: JSON Schema values and keys, numbers with all digits, with NULL, a missing property and no value."""
    schema = {"type": "object", "properties": {name: type_ for name, (type_, _) in JSON.items()}}
    value = orders.subject().register(schema, type_="JSON")
    key = orders.subject("key").register({"type": "object", "properties": {"id": {"type": "integer"}}}, type_="JSON")
    sent = [
        "{" + ", ".join(f'"{name}": {values[number][0]}' for name, (_, values) in JSON.items()) + "}"
        for number in (0, 1)
    ]
    sent += ["{" + ", ".join(f'"{name}": null' for name in JSON) + "}", "{}"]
    for number, text in enumerate(sent):
        orders.topic.send(0, framed(text.encode(), value), key=framed(b'{"id": %d}' % number, key))
    orders.topic.send(0, None, key=framed(b"{}", key))
    run = hydration(orders, kind, tmp_path, JsonSchema(registry_conn_id=CONN_ID))
    run.go()
    rows = read(run)
    assert [row["key"] for row in rows] == [*(f'{{"id": {number}}}' for number in range(len(sent))), "{}"]
    wrong = {}
    for name, (_, values) in JSON.items():
        expected = [*(there for _, there in values), None, None, None]
        found = [row[name] for row in rows]
        if not all(map(is_same, found, expected)):
            wrong[name] = (found, expected)
    assert wrong == {}
    assert run.verify(Verify.FULL).equal


OUTSIDE = {
    "avro-time": ({"type": "long", "logicalType": "timestamp-millis"}, 253_402_300_800_000),
    "avro-date": ({"type": "int", "logicalType": "date"}, 2_932_897),
    "avro-nanos": ({"type": "long", "logicalType": "timestamp-nanos"}, 1),
    "avro-time-of-day": ({"type": "int", "logicalType": "time-millis"}, 86_400_001),
    "json-integer": ({"type": "integer"}, str(2**63)),
    "json-moment": ({"type": "string", "format": "date-time"}, '"10000-01-01T00:00:00Z"'),
}
"""Values that no column of files can hold, by what they are called."""


# Files of all kinds come from one writer: one kind shows each case, and one case each kind.
@pytest.mark.parametrize(
    ("kind", "case"),
    mark_long(
        product(lakes.KINDS, OUTSIDE),
        quick=[*product(["delta"], OUTSIDE), *product(["iceberg", "parquet"], ["avro-time"])],
    ),
)
def test_a_value_that_files_cannot_hold_is_named_and_nothing_of_its_range_arrives(
    orders: Registered,  # noqa: F811
    kind: str,
    case: str,
    tmp_path: Path,
) -> None:
    """R1: by partition, offset and field."""
    type_, value = OUTSIDE[case]
    if case.startswith("avro"):
        schema = {"type": "record", "name": "One", "fields": [{"name": "f", "type": type_}]}
        raw = {**schema, "fields": [{"name": "f", "type": type_["type"]}]}
        number, format_ = orders.subject().register(schema), Avro(registry_conn_id=CONN_ID)
        good, bad = (avro_record(raw, {"f": each}, number) for each in (0, value))
    else:
        schema = {"type": "object", "properties": {"f": type_}}
        number, format_ = orders.subject().register(schema, type_="JSON"), JsonSchema(registry_conn_id=CONN_ID)
        good, bad = (framed(b'{"f": %s}' % text.encode(), number) for text in ("null", value))
    orders.topic.send(0, good, bad)
    run = orders.hydration(format_, into=lakes.place(kind, tmp_path))
    run.plan()
    with pytest.raises((SourceRefused, RangeFailed), match="offset 1 of partition 0") as refused:
        run.drain()
    assert re.search(r"\bfield f\b", str(refused.value)), str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(lakes.table(**run.composed.into)) == 0
