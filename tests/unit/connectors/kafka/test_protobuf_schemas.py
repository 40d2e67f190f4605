"""Texts of Protobuf schemas, compared with what Protobuf's own compiler makes of them."""

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka import protobuf_schema
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import Version
from airflow_provider_backpressure.connectors.kafka.source.schema_versions import Pinned, merge
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused
from airflow_provider_backpressure.sources import Debezium, KafkaSource, Protobuf
from tests.support.protobuf import MAIN, compile_files

ODD = r"""
// A comment; with "signs" {
syntax /* within */ = 'proto2';
package shop.v1 ;
import "base.proto"; import public "google/protobuf/any.proto"; import "google/protobuf/descriptor.proto";
option java_package = "com." "shop"; option (file_opt) = { a: 1, b: "}" c { d: [1, 2] } };
;
extend google.protobuf.FileOptions { optional Opt file_opt = 50001; }
extend google.protobuf.FieldOptions { optional string note = 50002; }
message Opt { optional int32 a = 1; optional string b = 2; optional C c = 3; message C { repeated int32 d = 1; } }
message Order {
  option deprecated = true;
  reserved 100 to 199, 300; reserved "old", 'older';
  extensions 1000 to 2000, 3000;
  required int64 id = 0x10;
  optional string /* name */ package = 011 [default = "a;]", (note) = "x", deprecated = false];
  optional Kind kind = 3 [default = B]; repeated .shop.v1.Order.Kind kinds = 4 [packed = true];
  enum Kind { option allow_alias = true; A = 0; B = 0x2; C = 2 [deprecated = true]; D = -3; reserved 7, 9 to 12; }
  oneof which { int32 reserved_number = 5; v1.Opt nested = 6; .base.Thing other = 7; }
  map<string, Kind> by_name = 8; map < sint64 , base.Thing.Part > parts = 12;
  optional Inner message_ = 10; optional base.Thing.Part part = 11; optional google.protobuf.Any any = 536870911;
  message Inner { optional Order above = 1; optional Kind kind = 2; optional base.Thing thing = 3;
    message base { optional int32 x = 1; message Thing { optional int32 y = 1; } } }
  extend Order { optional int32 extra = 1000; }
  optional float inf = 13 [default = -inf]; optional double syntax = 14 [default = 1.5e-3];
};
service Orders { rpc Get (Order) returns (stream Order) { option deprecated = true; } }
"""
BASE = """
syntax = "proto3"; package base; message Thing { message Part { optional string a = 1; int32 b = 2; } Part p = 1; }
"""
SHADOWED = """
syntax = "proto3";
package a.b;
message Outer { message a { int32 x = 1; } Other first = 1; message Other { int32 y = 1; } .a.b.Other second = 2; }
message Other { Outer.Other third = 1; b.Outer.a fourth = 2; }
"""
EDITION = """
edition = "2023";
option features.field_presence = IMPLICIT;
message M { int32 a = 1; int32 b = 2 [features.field_presence = EXPLICIT]; N n = 3; oneof o { int32 c = 4; }
  int32 d = 5 [features = { field_presence: LEGACY_REQUIRED }]; repeated int32 e = 6; }
message N { string a = 1 [features.utf8_validation = NONE]; }
"""
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "proto2": (ODD, {"base.proto": BASE}),
    "names within names": (SHADOWED, {}),
    "a package of a type's name": (
        'syntax = "proto3"; package a.b; import "base.proto"; message M { b x = 1; }',
        {"base.proto": 'syntax = "proto3"; message b { int32 y = 1; }'},
    ),
    "an edition": (EDITION, {}),
}
KINDS = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message"),
    *("bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)


def described(message: protobuf_schema.Message) -> dict[str, Any]:
    """Return a message as the product reads it."""
    return {
        each.name: (
            each.number,
            each.kind,
            each.repeated,
            each.presence,
            each.required,
            each.oneof,
            _described_type(each),
        )
        for each in message.fields
    }


def _described_type(each: protobuf_schema.Field) -> Any:
    if each.message is not None:
        return described(each.message) if each.message.is_entry else each.message.name
    return None if each.enum is None else (each.enum.name, dict(each.enum.by_number))


def compiled(message: Any) -> dict[str, Any]:
    """Return the same as Protobuf's own compiler reads it."""
    is_entry = message.GetOptions().map_entry
    return {
        each.name: (
            each.number,
            KINDS[each.type],
            each.is_repeated,
            # A value of a map is there, or its zero is.
            each.has_presence and not is_entry,
            each.is_required,
            each.containing_oneof.name if each.containing_oneof and each.containing_oneof.name[0] != "_" else "",
            _compiled_type(each),
        )
        for each in message.fields
    }


def _compiled_type(each: Any) -> Any:
    if each.message_type is not None:
        inner = each.message_type
        return compiled(inner) if inner.GetOptions().map_entry else inner.full_name
    if each.enum_type is None:
        return None
    names = {}
    for value in each.enum_type.values:
        names.setdefault(value.number, value.name)
    return each.enum_type.full_name, names


@pytest.mark.parametrize("name", CASES)
def test_schemas_are_read_as_protobuf_s_compiler_reads_them(name: str) -> None:
    """R1: names, numbers, types, presence, and what each name means, in texts that use the language's corners."""
    text, others = CASES[name]
    pool = compile_files({MAIN: text, **others})
    found = protobuf_schema.load(text, list(others.items()))
    file = pool.FindFileByName(MAIN)
    assert found.first == next(iter(file.message_types_by_name.values())).full_name
    assert len(found.messages) >= len(file.message_types_by_name)
    for full, message in found.messages.items():
        descriptor = pool.FindMessageTypeByName(full)
        assert described(message) == compiled(descriptor), full
        path = []
        while descriptor is not None:
            path.append(descriptor.index if hasattr(descriptor, "index") else _index(descriptor, file))
            descriptor = descriptor.containing_type
        assert found.paths[full] == tuple(reversed(path))


def _index(descriptor: Any, file: Any) -> int:
    above = descriptor.containing_type
    every = above.nested_types if above is not None else file.message_types_by_name.values()
    names = [each.name for each in every if not each.GetOptions().map_entry]
    return names.index(descriptor.name)


REFUSED: Mapping[str, tuple[str, str]] = {
    "no schema": ("{}", "line 1 has '{' where it cannot be"),
    "a sign": ('syntax = "proto3"; message M { § }', "line 1 has '§'"),
    "an early end": ('syntax = "proto3";\nmessage M { int32 a = 1;', r"ends within a statement \(line 2\)"),
    "a line": ('syntax = "proto3";\nmessage M {\n int32 a 1; }', "line 3 has '1' where it cannot be"),
    "a type": ('syntax = "proto3"; message M { N a = 1; }', "field a of message M is of type N, which is not defined"),
    "an import": (
        'syntax = "proto3"; import "x.proto"; message M {}',
        "imports x.proto, which is not among its references",
    ),
    "a group": ('syntax = "proto2"; message M { optional group G = 1 { } }', "The field G is a group"),
    "delimited": ('edition = "2023"; message M { M a = 1 [features.message_encoding = DELIMITED]; }', "as groups"),
    "an edition": ('edition = "2099"; message M {}', "The syntax 2099"),
    "two numbers": ('syntax = "proto3"; message M { int32 a = 1; int32 b = 1; }', "two fields of one number"),
    "number 0": ('syntax = "proto3"; message M { int32 a = 0; }', "an impossible number"),
    "no value": (
        'syntax = "proto3"; message M { E a = 1; } enum E { option deprecated = true; }',
        "The enum E has no value",
    ),
    "no message": ('syntax = "proto3"; enum E { A = 0; }', "has no message"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_when_a_run_plans(name: str) -> None:
    """With the reason, and the line where the text is at fault."""
    text, words = REFUSED[name]
    with pytest.raises(InvalidDeclaration, match=words):
        protobuf_schema.load(text)


def test_a_type_of_an_import_that_is_not_passed_on_is_not_seen() -> None:
    """Only what the files in between import publicly, as for Protobuf's compiler."""
    low, text = 'syntax = "proto3"; message L {}', 'syntax = "proto3"; import "mid.proto"; message M { L a = 1; }'
    mid = 'syntax = "proto3"; import {} "low.proto";'
    seen = protobuf_schema.load(text, [("low.proto", low), ("mid.proto", mid.format("public"))])
    assert protobuf_schema.column_types(seen.messages["M"], ()) == {"a": "json"}
    with pytest.raises(InvalidDeclaration, match="of type L, which is not defined"):
        protobuf_schema.load(text, [("low.proto", low), ("mid.proto", mid.format(""))])


def test_two_versions_of_an_import_are_refused() -> None:
    """A schema sees a file by its name, so either version could be the one that records were written with."""
    first, second = (f'syntax = "proto3"; message L {{ {kind} a = 1; }}' for kind in ("int32", "sint32"))
    text = 'syntax = "proto3"; import "low.proto"; message M { L a = 1; }'
    assert protobuf_schema.load(text, [("low.proto", first), ("low.proto", first)]).first == "M"
    with pytest.raises(InvalidDeclaration, match=r"lead to two versions of low\.proto"):
        protobuf_schema.load(text, [("low.proto", first), ("low.proto", second)])


VALUE = Protobuf(registry_conn_id="registry")
ORDER, REFUND = "message Order { int64 id = 1; } ", "message Refund { int64 id = 1; } "


def pinned(*bodies: str, format_: Protobuf = VALUE) -> Pinned:
    """Return the versions of a subject together; their ids are 10, 20 and so on."""
    versions = [
        Version(id=10 * number, number=number, type="PROTOBUF", schema=f'syntax = "proto3"; package shop; {body}')
        for number, body in enumerate(bodies, 1)
    ]
    resolved = format_.resolve(versions[-1])
    shapes = tuple((each, resolved.shape(each, "value")) for each in versions)
    return merge(resolved, "orders-value", shapes, format_)


def test_versions_without_the_message_are_left_out_and_named() -> None:
    """R2: their records are bad records, with both ids."""
    found = pinned(REFUND, ORDER)
    assert found.misfits == {10: "its schema 10 does not fit schema 20: it has no message shop.Order"}
    assert found.to_json()["message"] == "shop.Order"
    assert pinned(REFUND, ORDER + REFUND, format_=Protobuf(registry_conn_id="r", message="Refund")).misfits == {}


def test_another_first_message_is_refused_unless_one_is_named() -> None:
    """R2: with both ids; a message that is named stays the same one."""
    words = r"Schema 20 .* schema 10, .*: its first message was shop.Order and is shop.Refund: name the one"
    with pytest.raises(SourceRefused, match=words):
        pinned(ORDER, REFUND + ORDER).check_against(10)
    pinned(ORDER, REFUND + ORDER, format_=Protobuf(registry_conn_id="r", message="shop.Order")).check_against(10)
    pinned(ORDER, ORDER + REFUND).check_against(10)


def test_a_message_that_is_not_there_is_named_with_those_that_are() -> None:
    """Also one of which several have the name."""
    with pytest.raises(InvalidDeclaration, match=r"no message Line, .* there are shop.Order, shop.Refund"):
        pinned(ORDER + REFUND, format_=Protobuf(registry_conn_id="r", message="Line"))
    nested = "message A { message X {} } message B { message X {} }"
    with pytest.raises(InvalidDeclaration, match="several end with that name"):
        pinned(nested, format_=Protobuf(registry_conn_id="r", message="X"))


def test_declarations_that_cannot_be_meant_are_refused() -> None:
    """When a DAG is parsed."""
    with pytest.raises(InvalidDeclaration, match=r"Protobuf.registry_conn_id must name"):
        Protobuf(registry_conn_id="")
    with pytest.raises(InvalidDeclaration, match=r"Protobuf.raw must be a list"):
        Protobuf(registry_conn_id="registry", raw="at")  # type: ignore[arg-type]
    with pytest.raises(InvalidDeclaration, match=r"value=Avro\(…\), not with Protobuf"):
        KafkaSource(conn_id="events", topic="orders", value=VALUE, envelope=Debezium())
    with pytest.raises(InvalidDeclaration, match=r"does not go with key=Protobuf"):
        KafkaSource(conn_id="events", topic="orders", fields={"id": "bigint"}, key=VALUE, envelope=Debezium())
