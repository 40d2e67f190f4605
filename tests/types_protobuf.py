"""Fields of Protobuf messages: for each type what is written, and what PostgreSQL prints of it."""

from datetime import datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1)


def _at(text: str) -> dict[str, int]:
    moment = datetime.fromisoformat(text) - EPOCH
    return {"seconds": moment // timedelta(seconds=1), "nanos": moment.microseconds * 1000}


_WELL_KNOWN = "google.protobuf."
FIELDS: dict[str, tuple[str, str, tuple[tuple[Any, str], ...]]] = {
    "int32": ("int32", "integer", ((2**31 - 1, "2147483647"), (-(2**31), "-2147483648"))),
    "sint32": ("sint32", "integer", ((2**31 - 1, "2147483647"), (-(2**31), "-2147483648"))),
    "sfixed32": ("sfixed32", "integer", ((2**31 - 1, "2147483647"), (-(2**31), "-2147483648"))),
    "uint32": ("uint32", "bigint", ((2**32 - 1, "4294967295"), (0, "0"))),
    "fixed32": ("fixed32", "bigint", ((2**32 - 1, "4294967295"), (0, "0"))),
    "int64": ("int64", "bigint", ((2**63 - 1, "9223372036854775807"), (-(2**63), "-9223372036854775808"))),
    "sint64": ("sint64", "bigint", ((2**63 - 1, "9223372036854775807"), (-(2**63), "-9223372036854775808"))),
    "sfixed64": ("sfixed64", "bigint", ((2**63 - 1, "9223372036854775807"), (-(2**63), "-9223372036854775808"))),
    "uint64": ("uint64", "numeric(20,0)", ((2**64 - 1, "18446744073709551615"), (0, "0"))),
    "fixed64": ("fixed64", "numeric(20,0)", ((2**64 - 1, "18446744073709551615"), (0, "0"))),
    "bool": ("bool", "boolean", ((True, "true"), (False, "false"))),
    "float": ("float", "real", ((1.5, "1.5"), (float("-inf"), "-Infinity"))),
    "double": ("double", "double precision", ((0.1, "0.1"), (float("nan"), "NaN"))),
    "string": ("string", "text", (('ä𝄞 "q"\n', 'ä𝄞 "q"\n'), ("", ""))),
    "bytes": ("bytes", "bytea", ((b"\0\xff", "\\x00ff"), (b"", "\\x"))),
    "enum": ("State", "text", ((1, "SENT"), (0, "NEW"))),
    "google.protobuf.Timestamp": (
        f"{_WELL_KNOWN}Timestamp",
        "timestamp with time zone",
        (
            (_at("0001-01-01T00:00:00"), "0001-01-01 00:00:00+00"),
            (_at("9999-12-31T23:59:59.999999"), "9999-12-31 23:59:59.999999+00"),
        ),
    ),
    "google.protobuf.Duration": (
        f"{_WELL_KNOWN}Duration",
        "interval",
        (
            ({"seconds": 315_576_000_000}, "87660000:00:00"),
            ({"seconds": -3661, "nanos": -500_000_000}, "-01:01:01.5"),
        ),
    ),
    "google.type.Date": (
        "google.type.Date",
        "date",
        (({"year": 1, "month": 1, "day": 1}, "0001-01-01"), ({"year": 2024, "month": 2, "day": 29}, "2024-02-29")),
    ),
    "google.protobuf.BoolValue": (f"{_WELL_KNOWN}BoolValue", "boolean", (({"value": True}, "true"), ({}, "false"))),
    "google.protobuf.Int32Value": (
        f"{_WELL_KNOWN}Int32Value",
        "integer",
        (({"value": -(2**31)}, "-2147483648"), ({}, "0")),
    ),
    "google.protobuf.UInt32Value": (
        f"{_WELL_KNOWN}UInt32Value",
        "bigint",
        (({"value": 2**32 - 1}, "4294967295"), ({}, "0")),
    ),
    "google.protobuf.Int64Value": (
        f"{_WELL_KNOWN}Int64Value",
        "bigint",
        (({"value": -(2**63)}, "-9223372036854775808"), ({}, "0")),
    ),
    "google.protobuf.UInt64Value": (
        f"{_WELL_KNOWN}UInt64Value",
        "numeric(20,0)",
        (({"value": 2**64 - 1}, "18446744073709551615"), ({}, "0")),
    ),
    "google.protobuf.FloatValue": (f"{_WELL_KNOWN}FloatValue", "real", (({"value": 0.5}, "0.5"), ({}, "0"))),
    "google.protobuf.DoubleValue": (
        f"{_WELL_KNOWN}DoubleValue",
        "double precision",
        (({"value": 0.1}, "0.1"), ({}, "0")),
    ),
    "google.protobuf.StringValue": (f"{_WELL_KNOWN}StringValue", "text", (({"value": "ä"}, "ä"), ({}, ""))),
    "google.protobuf.BytesValue": (
        f"{_WELL_KNOWN}BytesValue",
        "bytea",
        (({"value": b"\0\xff"}, "\\x00ff"), ({}, "\\x")),
    ),
    "google.protobuf.Struct": (
        f"{_WELL_KNOWN}Struct",
        "json",
        (({"a": 0.5}, '{"a": 0.5}'), ({}, "{}")),
    ),
    "message": (
        "Inner",
        "json",
        (
            ({"a": 2**64 - 1, "b": b"\xff"}, '{"a": 18446744073709551615, "b": "/w=="}'),
            ({}, '{"a": 0, "b": ""}'),
        ),
    ),
}
"""By Protobuf's type: its name in a schema, PostgreSQL's type, and twice what is written beside the text there."""
LISTS: dict[str, tuple[str, str, tuple[tuple[Any, str], ...]]] = {
    "repeated": ("repeated string", "json", ((["ä", "b"], '["ä", "b"]'), ([], "[]"))),
    "map": ("map<string, double>", "json", (({"b": 0.5, "a": 1.0}, '{"a": 1.0, "b": 0.5}'), ({}, "{}"))),
}
"""The same of what is never NULL, but empty."""


def schema() -> str:
    """Return the schema of a message with a field of each type, which may be absent."""
    fields = [f"optional {type_} f{number} = {number + 1};" for number, (type_, _, _) in enumerate(FIELDS.values())]
    fields += [f"{type_} f{number} = {number + 1};" for number, (type_, _, _) in enumerate(LISTS.values(), len(FIELDS))]
    imports = "".join(
        f'import "google/{name}.proto"; '
        for name in (*(f"protobuf/{each}" for each in ("timestamp", "duration", "wrappers", "struct")), "type/date")
    )
    return (
        f'syntax = "proto3"; package shop; {imports} enum State {{ NEW = 0; SENT = 1; }} '
        f"message Every {{ {' '.join(fields)} }} message Inner {{ uint64 a = 1; bytes b = 2; }}"
    )


def values() -> tuple[dict[str, Any], ...]:
    """Return the values of the fields: the first ones, the second ones, and none."""
    every = [
        {f"f{number}": given[which][0] for number, (_, _, given) in enumerate((FIELDS | LISTS).values())}
        for which in (0, 1)
    ]
    return (*every, {})


def expected() -> dict[str, tuple[str, tuple[str | None, ...]]]:
    """Return PostgreSQL's type and what it prints of the three messages, by column."""
    every = FIELDS | LISTS
    return {
        f"f{number}": (type_, (*(text for _, text in given), None if name in FIELDS else given[1][1]))
        for number, (name, (_, type_, given)) in enumerate(every.items())
    }


def shown(column: str) -> str:
    """Return a column's type as the page has it."""
    return list(FIELDS | LISTS)[int(column[1:])]


DATE = 'syntax = "proto3"; package google.type; message Date { int32 year = 1; int32 month = 2; int32 day = 3; }'
"""The file of dates, which Protobuf's own compiler does not bring along."""
