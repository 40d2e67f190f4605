"""Keys of several fields by several schemas: one key is one text, and two keys are never one."""

import io
import json
import struct
from collections.abc import Sequence
from typing import Any

import fastavro
import pytest

from airflow_provider_backpressure.connectors.kafka import avro_schema
from airflow_provider_backpressure.connectors.kafka.source.formats import Avro, JsonSchema, Protobuf
from airflow_provider_backpressure.connectors.kafka.source.key_compatibility import avro_form, digest_form
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import Version
from airflow_provider_backpressure.connectors.kafka.tasks.record_batches import to_decoders
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec

pytestmark = pytest.mark.statement("R1", "R2")

LONG, TEXT = {"name": "id", "type": "long"}, {"name": "region", "type": "string"}
WITH_DEFAULT = {**TEXT, "default": "eu"}


def key_schema(*fields: dict[str, Any], name: str = "Key", **more: Any) -> dict[str, Any]:
    """Return the Avro schema of a key."""
    return {"type": "record", "name": name, "fields": list(fields), **more}


def version(number: int, schema: Any, type_: str = "AVRO") -> Version:
    """Return a version of a subject, whose schema has the id of its number."""
    text = schema if type_ == "PROTOBUF" else json.dumps(schema)
    return Version(number=number, id=number, type=type_, schema=text, references=())


def other_key(writer: Any, latest: Any) -> str:
    """Return why a key of one Avro schema is no key of the other."""
    return Avro(registry_conn_id="r").other_key(version(1, writer), version(2, latest))


def decode(schemas: Sequence[Any], keys: Sequence[tuple[int, Any]], *, row_key: tuple[str, ...] = ("key",)) -> Any:
    """Return the texts of Avro keys that are written by the schemas of these numbers, from 1, and what is wrong."""
    pinned = {str(number): {"schema": json.dumps(each), "references": []} for number, each in enumerate(schemas, 1)}
    latest = len(schemas)
    others = {str(at): why for at, each in enumerate(schemas, 1) if (why := other_key(each, schemas[-1]))}
    decoding = {"format": "avro", "subject": "s", "latest": latest, "schemas": pinned, "whole": False}
    decoding |= {"raw": [], "names": {}, "other_keys": others}
    read = ReadSpec(
        kind="kafka",
        conn_id="c",
        columns=(Column(name="key", type="text"),),
        decoding={"key": decoding},
        row_key=row_key,
    )
    payloads = []
    for number, value in keys:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schemas[number - 1]), value)
        payloads.append(struct.pack(">bI", 0, number) + out.getvalue())
    arrays, problems = to_decoders(read)["key"].decode(payloads)
    return arrays[0].to_pylist(), problems


def test_a_key_is_one_text_whatever_schema_it_is_written_by() -> None:
    """R1: documentation, names of types, the order of fields, fields with a default, and wider numbers."""
    schemas = [
        key_schema(LONG),
        key_schema(LONG, doc="another text", name="Other"),
        key_schema({"name": "id", "type": "int", "doc": "a number"}),
        key_schema(TEXT, LONG),
        ["null", key_schema({"name": "id", "type": ["null", "long"]})],
        key_schema(LONG, WITH_DEFAULT),
    ]
    eu = {"id": 7, "region": "eu"}
    keys = [(number, {"id": 7}) for number in (1, 2, 3)] + [(4, eu), (5, {"id": 7}), (6, eu)]
    texts, problems = decode(schemas, [*keys, (5, None), (6, {"id": 7, "region": "us"})])
    assert problems == {}
    assert texts == ['{"id": 7, "region": "eu"}'] * 6 + [None, '{"id": 7, "region": "us"}']
    # Rows that are appended have the key as its sender wrote it.
    texts, _ = decode(schemas, keys, row_key=())
    assert texts == ['{"id": 7}'] * 3 + ['{"region": "eu", "id": 7}', '{"id": 7}', '{"id": 7, "region": "eu"}']


@pytest.mark.parametrize(
    ("writer", "latest", "words"),
    [
        (key_schema(LONG, TEXT), key_schema(LONG), "field region is gone, so that several keys would be one"),
        (key_schema(LONG), key_schema(LONG, TEXT), "field region was added without a default"),
        (key_schema(LONG), key_schema({"name": "id", "type": "string"}), "field id is of another type"),
        (key_schema(LONG), "long", "only one of them is of several fields"),
        (
            key_schema({"name": "id", "type": "float"}),
            key_schema({"name": "id", "type": "double"}),
            "field id is of another type",
        ),
        (
            key_schema({"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}),
            key_schema({"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}),
            "field at is of another type",
        ),
        (
            key_schema({"name": "id", "type": {"type": "array", "items": "int"}}),
            key_schema({"name": "id", "type": {"type": "array", "items": "string"}}),
            "field id is of another type",
        ),
        (
            key_schema({"name": "id", "type": key_schema(LONG, name="Inner")}),
            key_schema({"name": "id", "type": key_schema(LONG, WITH_DEFAULT, name="Inner")}),
            "field id is of another type",
        ),
    ],
)
def test_a_schema_of_another_key_is_refused(writer: Any, latest: Any, words: str) -> None:
    """R2: by each record that has it, where rows go by the key's text; others are as they were."""
    assert other_key(writer, latest) == words
    if isinstance(latest, str) or writer["fields"] != [LONG]:
        return
    keys = [(1, {"id": 7})]
    _, problems = decode([writer, latest], keys)
    assert problems == {0: words}
    assert decode([writer, latest], keys, row_key=()) == (['{"id": 7}'], {})


def test_a_schema_that_holds_itself_is_compared() -> None:
    """R1: and is of the same form as another one that holds itself in the same way."""

    def tree(name: str, leaf: str) -> dict[str, Any]:
        fields = [{"name": "leaf", "type": leaf}, {"name": "next", "type": ["null", name], "default": None}]
        return key_schema(*fields, name=name)

    assert other_key(tree("A", "int"), tree("B", "long")) == ""
    words = "field leaf is of another type; field next is of another type"
    assert other_key(tree("A", "int"), tree("B", "string")) == words


MESSAGE = 'syntax = "proto3"; message Key { %s } message Part { int64 a = 1; } enum State { NEW = 0; }'


@pytest.mark.parametrize(
    ("writer", "latest", "words"),
    [
        ("int64 id = 1;", "int64 id = 1; string region = 2;", ""),
        ("int64 id = 1; string region = 2;", "string region = 2; int64 id = 1;", ""),
        ("Part id = 1; State s = 2;", "Part id = 1; State s = 2; optional string more = 3;", ""),
        ("int64 id = 1; string region = 2;", "int64 id = 1;", "field region is gone"),
        ("int32 id = 1;", "sint32 id = 1;", "field id is of another type"),
        ("int64 id = 1;", "int64 id = 2;", "field id is of another type"),
        ("int64 id = 1;", "optional int64 id = 1;", "field id is of another type"),
    ],
)
def test_keys_of_protobuf_go_by_the_latest_message(writer: str, latest: str, words: str) -> None:
    """R1, R2: unless a field is gone, or has another number or another kind."""
    versions = [version(at, MESSAGE % each, "PROTOBUF") for at, each in enumerate((writer, latest), 1)]
    format_ = Protobuf(registry_conn_id="r", message="Key")
    found = format_.other_key(*versions)
    assert found.startswith(words)
    assert bool(found) is bool(words)
    assert format_.key_form(versions[0]) != format_.key_form(versions[1])


def test_a_form_s_digest_is_that_of_its_equals() -> None:
    """R2: a plan keeps it, so it does not depend on the process, nor on the order of a union."""
    unions = [avro_form(avro_schema.parse(json.dumps(types), [])) for types in (["long", "string"], ["string", "int"])]
    assert unions[0] == unions[1]
    assert len({digest_form(each) for each in unions}) == 1
    assert digest_form("long") == "7471df73a3dfd63b81bf137fa9433225"
    assert digest_form(("a", ("b", 1))) != digest_form((("a", "b"), 1)) != digest_form(("a", ("b", "1")))
    assert digest_form(None) == ""


def test_a_key_of_protobuf_is_written_by_the_latest_message() -> None:
    """R1: a field that it does not have has its zero, as where it is there and not set."""
    texts = [MESSAGE % fields for fields in ("int64 id = 1;", "string region = 2; int64 id = 1;")]
    decoding = {
        **{"format": "protobuf", "subject": "s", "latest": 2, "whole": False, "message": "Key", "raw": [], "names": {}},
        "schemas": {str(at): {"schema": text, "references": []} for at, text in enumerate(texts, 1)},
        "other_keys": {},
    }
    payloads = [struct.pack(">bI", 0, number) + b"\0\x08\x07" for number in (1, 2)]
    columns = (Column(name="key", type="text"),)
    for row_key, first in ((("key",), '{"region": "", "id": 7}'), ((), '{"id": 7}')):
        read = ReadSpec(kind="kafka", conn_id="c", columns=columns, decoding={"key": decoding}, row_key=row_key)
        (found,), problems = to_decoders(read)["key"].decode(payloads)
        assert (found.to_pylist(), problems) == ([first, '{"region": "", "id": 7}'], {})


def test_forms_say_when_rows_would_get_another_key() -> None:
    """R2: documentation does not matter, all else does. JSON is the text of its sender."""
    format_ = Avro(registry_conn_id="r")
    forms = [
        format_.key_form(version(1, each))
        for each in (
            key_schema(LONG),
            key_schema(LONG, doc="x"),
            key_schema(LONG, WITH_DEFAULT),
            key_schema(TEXT, LONG),
        )
    ]
    assert forms[0] == forms[1]
    assert len(set(forms)) == 3
    text = JsonSchema(registry_conn_id="r")
    first, second = (
        version(at, {"type": "object", "properties": {"a": {"type": each}}})
        for at, each in ((1, "integer"), (2, "string"))
    )
    assert text.key_form(first) == text.key_form(second)
    assert text.other_key(first, second) == ""
