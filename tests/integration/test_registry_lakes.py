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

from airflow_provider_backpressure.connectors.lake.sink.target import LakeTarget
from airflow_provider_backpressure.core.config import NewColumn
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.sources import Avro, JsonSchema
from tests import types_avro as typed
from tests.integration.test_kafka_source import Run, Stage, stage  # noqa: F401 - the fixture
from tests.integration.test_registry import FIRST, Registered, orders, planned  # noqa: F401 - the fixture
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
KINDS = mark_long(lakes.KINDS, quick=["iceberg"])
LEFT = ("topic", "partition", "timestamp", "headers")
"""Columns that other tests look at."""


def hydration(orders: Registered, kind: str, folder: Path, format_: Any) -> Run:  # noqa: F811
    """Return a hydration into a table of files."""
    return orders.hydration(format_, reading={"key": format_}, into=lakes.place(kind, folder))


def read(run: Run) -> list[dict[str, Any]]:
    """Return the rows in the order of their offsets."""
    rows = lakes.table(**run.composed.into).drop_columns(list(LEFT)).to_pylist()
    return sorted(rows, key=lambda row: row["offset"])


def evolve(orders: Registered, run: Run, format_: Any, added: str, kind: str, folder: Path) -> Run:  # noqa: F811
    """Let files that are there get new columns by policy, also where the planner is killed behind them.

    A folder of Parquet gets none, and stays as it is: return the same in another one.
    """
    before = lakes.table(**run.composed.into)
    with pytest.raises(SourceRefused, match=f"column {added} was added"):
        run.plan()
    assert lakes.table(**run.composed.into).equals(before)
    if kind == "parquet":
        with pytest.raises(SinkRefused, match=f"cannot be given the column {added}: its files have the columns they"):
            planned(orders, run, on_new_column=NewColumn.ADD)
        assert lakes.table(**run.composed.into).equals(before)
        (folder / "again").mkdir()
        again = orders.hydration(format_, into=lakes.place(kind, folder / "again"))
        again.go()
        return again
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeTarget, "begin", interrupt)
        with pytest.raises(KeyboardInterrupt):
            planned(orders, run, on_new_column=NewColumn.ADD)
    wider = lakes.table(**run.composed.into)
    assert wider.select(before.column_names).equals(before)
    assert wider.column_names == [*before.column_names, *added.split(", ")]
    planned(orders, run, on_new_column=NewColumn.ADD)
    run.drain()
    assert run.verify(Verify.FULL).equal
    return run


def interrupt(*_: Any, **__: Any) -> int:
    """End as a planner does that is killed."""
    raise KeyboardInterrupt


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


@pytest.mark.statement("R2")
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_schema_evolves_the_files_and_one_that_does_not_fit_stops(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R2: by the declared policy; both ids are in the error, each record goes by its own schema."""
    first = orders.subject().register(FIRST)
    orders.topic.send(0, avro_record(FIRST, {"id": 1, "state": "new"}, first))
    run = orders.hydration(into=lakes.place(kind, tmp_path))
    run.go()
    wider = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    second = orders.subject().register(wider)
    orders.topic.send(0, avro_record(wider, {"id": 2, "state": "sent", "note": "x"}, second))
    orders.topic.send(0, avro_record(FIRST, {"id": 3, "state": "new"}, first))
    again = evolve(orders, run, Avro(registry_conn_id=CONN_ID), "note", kind, tmp_path)
    rows = [(1, "new", None), (2, "sent", "x"), (3, "new", None)]
    assert [(row["id"], row["state"], row["note"]) for row in read(again)] == rows
    other = {**FIRST, "fields": [{"name": "id", "type": "string"}]}
    third = orders.subject().register(other)
    orders.topic.send(0, avro_record(other, {"id": "4"}, third))
    with pytest.raises(
        SourceRefused, match=rf"Schema {third} .* does not fit schema {second}, .*: column id was bigint"
    ):
        again.plan()
    assert len(read(again)) == len(rows)


@pytest.mark.statement("R2")
@pytest.mark.parametrize("kind", mark_long(["delta", "iceberg"], quick=["iceberg"]))
def test_rows_that_are_upserted_get_a_new_column(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R2: earlier rows are NULL in it until a record of their key comes; a record without a value deletes as before."""
    key = orders.subject("key").register("long")

    def send(schema: dict[str, Any], number: int, *values: dict[str, Any] | None) -> None:
        for each, value in enumerate(values):
            record = None if value is None else avro_record(schema, {"id": each, **value}, number)
            orders.topic.send(0, record, key=avro_record("long", each, key))

    first = orders.subject().register(FIRST)
    send(FIRST, first, *({"state": "new"},) * 3)
    format_ = Avro(registry_conn_id=CONN_ID)
    run = orders.hydration(format_, mode="upsert", reading={"key": format_}, into=lakes.place(kind, tmp_path))
    run.go()
    wider = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    second = orders.subject().register(wider)
    send(wider, second, {"state": "sent", "note": "x"}, None)
    assert planned(orders, run, on_new_column=NewColumn.ADD).verdict is Verdict.PLANNED
    run.drain()
    assert [(row["key"], row["state"], row["note"]) for row in read(run)] == [(2, "new", None), (0, "sent", "x")]


@pytest.mark.statement("R4")
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_decoded_is_named_or_put_aside(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R4: an unknown id and undecodable bytes, by partition and offset; what is good arrives, nothing is lost."""
    schema = orders.subject().register(FIRST)
    good = [avro_record(FIRST, {"id": number, "state": "new"}, schema) for number in range(2)]
    orders.topic.send(0, good[0], framed(good[0][5:], 10**6), good[0][:-1], good[1])
    run = orders.hydration(into=lakes.place(kind, tmp_path))
    run.plan()
    with pytest.raises((SourceRefused, RangeFailed), match=r"offset 1 of partition 0 .* has schema 1000000, which"):
        run.drain()
    assert len(lakes.table(**run.composed.into)) == 0
    kept, aside = put_aside(run, kind, tmp_path)
    assert [(row["offset"], row["id"]) for row in read(kept)] == [(0, 0), (3, 1)]
    assert sorted(aside) == ["1", "2"]
    assert "has schema 1000000" in aside["1"]
    assert "ends too early" in aside["2"]


@pytest.mark.statement("R4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_registry_that_is_down_stops_no_range_that_was_planned(
    orders: Registered,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    """R4: files get what was planned; the next plan is unavailable, and once the registry answers nothing was lost."""
    schema, into = orders.subject().register(FIRST), lakes.place(kind, tmp_path)
    orders.topic.send(0, avro_record(FIRST, {"id": 1, "state": "new"}, schema))
    run = orders.hydration(into=into)
    run.plan()
    down = replace(orders.server, url="http://127.0.0.1:9/apis/ccompat/v7")
    gone = orders.hydration(server=down, into=into)
    gone.drain()
    assert [row["id"] for row in read(gone)] == [1]
    orders.topic.send(0, avro_record(FIRST, {"id": 2, "state": "new"}, schema))
    with pytest.raises(SourceUnavailable, match=r"schema registry at .* does not answer"):
        gone.plan()
    run.go()
    assert [row["id"] for row in read(run)] == [1, 2]
