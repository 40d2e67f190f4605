"""The columns that the versions of a subject make together, and a registry's answers as errors."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.source.formats import Format, Shape
from airflow_provider_backpressure.connectors.kafka.source.json_schema import column_types
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import Registry, Version
from airflow_provider_backpressure.connectors.kafka.source.schema_versions import Pinned, is_held, merge, pin, to_key
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.sources import Avro, JsonSchema

AVRO = Avro(registry_conn_id="registry")
SECRET = "s3cret-word"


def merged(*versions: dict[str, str | None] | Shape, format_: Format = AVRO) -> Pinned:
    """Return versions with these fields together; their ids are 10, 20 and so on."""
    made = [
        (
            Version(id=10 * number, number=number, type=format_.schema_type, schema=f'"{number}"'),
            each if isinstance(each, Shape) else Shape(types=each),
        )
        for number, each in enumerate(versions, 1)
    ]
    return merge(format_, "orders-value", tuple(made))


def single(type_: str, name: str = "key") -> Shape:
    """Return what a value becomes that is one column."""
    return Shape(types={name: type_}, is_whole=True)


def test_fields_keep_the_order_in_which_they_appeared() -> None:
    """So a field that is added or gone moves no other one."""
    found = merged({"id": "bigint", "old": "text"}, {"new": "date", "id": "bigint"})
    assert list(found.columns.items()) == [("id", "bigint"), ("old", "text"), ("new", "date")]
    assert found.misfits == {}


def test_a_field_that_was_widened_has_its_last_type() -> None:
    """Values of the earlier type fit; one of nulls only fits any."""
    found = merged({"id": "integer", "note": None}, {"id": "bigint", "note": "text"}, {"id": "bigint", "note": None})
    assert dict(found.columns) == {"id": "bigint", "note": "text"}
    assert found.misfits == {}


def test_a_version_that_does_not_fit_is_left_out_and_says_why() -> None:
    """With both ids; its other fields are no columns."""
    found = merged({"id": "text", "odd": "date"}, {"id": "bigint"})
    assert dict(found.columns) == {"id": "bigint"}
    assert found.misfits == {10: "its schema 10 does not fit schema 20: field id is text and not bigint"}
    assert found.to_json()["schemas"] == {
        "10": {"misfit": found.misfits[10]},
        "20": {"schema": '"2"', "references": []},
    }


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ({"id": "text"}, r"Schema 20 \(version 2 of subject orders-value\) .* schema 10, .*: column id was bigint"),
        ({"id": "bigint", "new": "text"}, None),
        ({"new": "text"}, None),
    ],
)
def test_the_last_plan_s_schema_is_compared(types: dict[str, str | None], words: str | None) -> None:
    """A new column and one that is gone pass: the policy for new columns decides about them."""
    found = merged({"id": "bigint"}, types)
    if words is None:
        found.check_against(10)
    else:
        with pytest.raises(SourceRefused, match=words):
            found.check_against(10)
    found.check_against(None)
    found.check_against(99)


@pytest.mark.statement("R2")
def test_keys_of_a_deleted_schema_are_known_by_the_plan() -> None:
    """R2: a plan of an earlier version of this package has no digest of them: then nothing is assumed."""
    known = Version(id=10, number=1, type=AVRO.schema_type, schema='"string"')
    found = merge(AVRO, "orders-value", ((known, single("text")),))
    assert found.describe_rekeying(None, "") == found.describe_rekeying(10, "") == ""
    assert found.describe_rekeying(99, found.key_form) == ""
    assert "Schema 10 (version 1 of subject orders-value) writes keys in another way than" in (
        found.describe_rekeying(99, "other")
    )
    assert "may write keys in another way than the deleted schema 99" in found.describe_rekeying(99, "")


@pytest.mark.parametrize(
    ("before", "now", "held"),
    [
        ("integer", "bigint", True),
        ("bigint", "integer", False),
        ("bigint", "double precision", False),
        ("real", "double precision", True),
        ("uuid", "text", True),
        ("json", "text", False),
        ("numeric(9,2)", "numeric(12,3)", True),
        ("numeric(9,2)", "numeric(9,3)", False),
        ("numeric(9,2)", "numeric(12,1)", False),
    ],
)
def test_what_holds_every_value_of_another_type(before: str, now: str, held: bool) -> None:
    """Nothing is rounded on the way."""
    assert is_held(before, now) is held


def test_a_key_of_several_fields_is_one_text() -> None:
    """A single value has its own type, unless rows cannot be upserted by it."""
    assert to_key(merged(single("bigint"))).type == "bigint"
    assert to_key(merged(single("json"))).type == "text"
    assert to_key(merged({"id": "bigint", "region": "text"})).type == "text"


def test_a_key_of_one_field_is_a_text_whatever_its_name() -> None:
    """Records are one text, so the column of keys is one as soon as any version is a record."""
    assert to_key(merged({"key": "bigint"})).type == "text"
    assert to_key(merged({"key": "bigint"}, single("bigint"))).type == "text"


JSON = JsonSchema(registry_conn_id="registry")
OPEN, CLOSED = '{"type": "object"}', '{"type": "object", "properties": {"value": {"type": "object"}}}'


@pytest.mark.parametrize("texts", [(OPEN, CLOSED), (CLOSED, OPEN)])
def test_json_of_one_column_and_of_several_does_not_fit(texts: tuple[str, str]) -> None:
    """Its records would lose what is in no column, so both ids are named; Avro is read by each record's own schema."""
    versions = [Version(id=number, number=number, type="JSON", schema=text) for number, text in enumerate(texts, 1)]
    found = merged(*(JSON.shape(each, "value") for each in versions), format_=JSON)
    assert "its schema 10 does not fit schema 20: by one of them a value is one column" in found.misfits[10]
    assert found.to_json()["whole"] is (texts[1] == OPEN)
    with pytest.raises(SourceRefused, match=r"does not fit schema 10, by which .* a value is one column"):
        found.check_against(10)
    assert merged(single("bigint", "value"), {"id": "bigint"}).misfits == {}


@pytest.mark.parametrize("format_", [Avro, JsonSchema])
def test_two_fields_for_one_column_are_refused(format_: type[Format]) -> None:
    """In one version or over several."""
    chosen = format_(registry_conn_id="registry", names={"timestamp": "at"})
    fields: tuple[dict[str, str | None], ...] = ({"timestamp": "text"}, {"at": "text"})
    for versions in (fields, ({**fields[0], **fields[1]},)):
        with pytest.raises(InvalidDeclaration, match="timestamp and at of subject orders-value would both be the col"):
            merged(*versions, format_=chosen)


def test_names_of_fields_that_no_schema_has_go_to_no_task() -> None:
    """A field would be looked for by a name that it does not have."""
    chosen = JsonSchema(registry_conn_id="registry", names={"gone": "id", "timestamp": "at"})
    found = merged({"id": "bigint", "timestamp": "text"}, format_=chosen)
    assert dict(found.columns) == {"id": "bigint", "at": "text"}
    assert found.to_json()["names"] == {"timestamp": "at"}


def test_names_are_not_those_of_keys() -> None:
    """A key is one column, whose name is given."""
    with answering({LIST: (200, [1]), f"{LIST}/1": (200, ONE)}, []) as place:
        found = pin(replace(AVRO, names={"key": "id"}), "a/b-value", "key", place)
    assert to_key(found).type == "bigint"
    assert found.to_json()["names"] == {}


@pytest.mark.parametrize(
    ("property_", "type_"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "numeric"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string"}, "text"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp with time zone"),
        ({"type": "string", "format": "uuid"}, "uuid"),
        ({"type": "string", "format": "email"}, "text"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"type": "null"}, None),
        ({"type": ["integer", "string"]}, "json"),
        ({"type": "object"}, "json"),
        ({"type": "array"}, "json"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "text"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "json"),
        ({"$ref": "#/definitions/id"}, "bigint"),
        ({"$ref": "#/definitions/loop"}, "json"),
        ({"$ref": "elsewhere.json"}, "json"),
        ({"enum": ["a", 1]}, "json"),
        (True, "json"),
    ],
)
def test_a_property_of_json_has_the_type_that_holds_it(property_: Any, type_: str | None) -> None:
    """What may be several things is JSON."""
    definitions = {"id": {"type": "integer"}, "loop": {"$ref": "#/definitions/loop"}}
    schema = {"type": "object", "properties": {"a": property_}, "definitions": definitions}
    assert column_types(json.dumps(schema)) == {"a": type_}


@pytest.mark.statement("R1")
@pytest.mark.parametrize(
    "beside",
    [
        {"if": {"properties": {"a": {"const": 1}}}, "then": {"properties": {"b": {"type": "string"}}}},
        {"dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}}},
        {"dependencies": {"a": {"properties": {"b": {"type": "string"}}}}},
        {"patternProperties": {"^b": {"type": "string"}}},
        {"additionalProperties": {"type": "string"}},
    ],
    ids=lambda beside: next(iter(beside)),
)
def test_properties_that_a_condition_names_leave_the_value_whole(beside: dict[str, Any]) -> None:
    """R1: they would be lost with no word."""
    assert column_types(json.dumps({"properties": {"a": {"type": "integer"}}, **beside})) == {}


def test_what_demands_or_forbids_properties_names_none() -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "dependencies": {"a": ["a"]}, "additionalProperties": False}
    assert column_types(json.dumps(schema)) == {"a": "bigint"}


@pytest.mark.parametrize("beside", ["allOf", "anyOf", "oneOf", "$ref"])
def test_properties_in_several_places_leave_the_value_whole(beside: str) -> None:
    """Columns of some of them would lose the others."""
    more = {"properties": {"b": {"type": "string"}}}
    schema = {"properties": {"a": {"type": "integer"}}, "more": more}
    schema[beside] = "#/more" if beside == "$ref" else [{"$ref": "#/more"}]
    assert column_types(json.dumps(schema)) == {}
    assert column_types(json.dumps({"$ref": "#/here", "here": {**schema, "more": more}, "more": more})) == {}


@contextmanager
def answering(answers: dict[str, tuple[int, Any]], seen: list[str | None]) -> Iterator[Endpoint]:
    """Give a registry with these answers by path, with the query or without."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            status, body = answers.get(self.path) or answers.get(self.path.partition("?")[0], (404, {}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield replace(NOWHERE, conn_id="registry", host=f"http://127.0.0.1:{server.server_port}/api")
    finally:
        server.shutdown()
        server.server_close()


LIST = "/api/subjects/a%2Fb-value/versions"
ONE = {"id": 7, "version": 1, "schema": '"long"'}


@pytest.mark.parametrize(
    ("answers", "error", "words"),
    [
        ({}, SourceRefused, "has no subject a/b-value"),
        ({LIST: (401, {})}, SourceRefused, "does not let reader in"),
        ({LIST: (503, {})}, SourceUnavailable, "HTTP 503"),
        ({LIST: (429, {})}, SourceUnavailable, "HTTP 429"),
        ({LIST: (200, b"<html>")}, SourceRefused, "is no schema registry"),
        ({LIST: (200, "<html>é".encode("latin-1"))}, SourceRefused, "is no schema registry"),
        ({LIST: (200, {"message": "welcome"})}, SourceRefused, "is no schema registry"),
        ({LIST: (200, 7)}, SourceRefused, "is no schema registry"),
        ({LIST: (200, [1]), f"{LIST}/1": (200, {"message": "welcome"})}, SourceRefused, "is no schema registry"),
        ({LIST: (200, [1]), f"{LIST}/1": (200, [])}, SourceRefused, "is no schema registry"),
        ({LIST: (302, {})}, SourceRefused, "is no schema registry"),
        ({LIST: (200, [1])}, SourceRefused, "no version 1 of a/b-value"),
        (
            {LIST: (200, [1]), f"{LIST}/1": (200, {**ONE, "schemaType": "PROTOBUF"})},
            SourceRefused,
            "is of type PROTOBUF, and Avro needs",
        ),
        (
            {LIST: (200, [1]), f"{LIST}/1": (200, {**ONE, "schema": '{"type": "record"}'})},
            SourceRefused,
            "Version 1 of subject a/b-value cannot be read",
        ),
        ({LIST: (200, [])}, SourceRefused, "has no version"),
        (
            {LIST: (404, {}), f"{LIST}?deleted=true": (200, [1])},
            SourceRefused,
            "no version of a/b-value that is not deleted",
        ),
    ],
)
def test_what_a_registry_answers_becomes_one_sentence(answers: Any, error: type[Exception], words: str) -> None:
    """Refused for good, or unavailable for now; the password is in none."""
    with answering(answers, []) as place, pytest.raises(error, match=words) as caught:
        pin(AVRO, "a/b-value", "value", replace(place, user="reader", password=SECRET))
    assert SECRET not in str(caught.value)


def test_a_deleted_version_is_not_the_latest() -> None:
    """Records may have its schema, so it is read all the same."""
    answers: dict[str, tuple[int, Any]] = {LIST: (200, [1, 2]), f"{LIST}?deleted=true": (200, [1, 2, 3])}
    types = {1: "int", 2: "long", 3: "string"}
    for number, type_ in types.items():
        answers[f"{LIST}/{number}"] = 200, {"id": 10 * number, "version": number, "schema": f'"{type_}"'}
    with answering(answers, []) as place:
        found = pin(AVRO, "a/b-value", "value", place)
    assert (found.latest.number, dict(found.columns)) == (2, {"value": "bigint"})
    assert set(found.misfits) == {30}
    assert [version.number for version, _ in found.versions] == [1, 3, 2]


def test_a_registry_that_is_not_there_is_unavailable() -> None:
    """A task is tried again."""
    with pytest.raises(SourceUnavailable, match="does not answer"):
        Registry(endpoint=replace(NOWHERE, conn_id="registry", host="http://127.0.0.1:9")).versions("a")


@pytest.mark.parametrize(("user", "expected"), [("reader", "Basic "), ("", f"Bearer {SECRET}")])
def test_a_login_or_a_token_goes_along(user: str, expected: str) -> None:
    """With every question."""
    seen: list[str | None] = []
    with answering({LIST: (200, [1]), f"{LIST}/1": (200, ONE)}, seen) as place:
        found = Registry(endpoint=replace(place, user=user, password=SECRET)).versions("a/b-value")
    assert found == (Version(id=7, number=1, type="AVRO", schema='"long"'),)
    assert len(seen) == 3
    assert all(each is not None and each.startswith(expected) for each in seen)


@pytest.mark.parametrize("token", [f"{SECRET}\n", f"{SECRET}é"])
def test_a_token_that_cannot_be_sent_is_in_no_error(token: str) -> None:
    """Not in the sentence, and not in an error behind it: the client's own words hold the header."""
    with answering({}, []) as place, pytest.raises(SourceRefused, match="cannot be asked") as caught:
        Registry(endpoint=replace(place, password=token)).versions("a")
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


def test_a_file_of_tls_that_is_missing_is_named_as_a_setting() -> None:
    """Before anything is asked."""
    options = {"ssl.ca.location": "/nowhere/ca.pem"}
    with pytest.raises(SourceRefused, match="settings of"):
        Registry(endpoint=replace(NOWHERE, conn_id="registry", host="https://a", options=options)).versions("a")
