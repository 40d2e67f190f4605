"""Fields of Avro records: for each type what is written, and what PostgreSQL prints of it."""

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

FIELDS: dict[str, tuple[Any, str, tuple[tuple[Any, str], ...]]] = {
    "boolean": ("boolean", "boolean", ((True, "true"), (False, "false"))),
    "int": ("int", "integer", ((2**31 - 1, "2147483647"), (-(2**31), "-2147483648"))),
    "long": ("long", "bigint", ((2**63 - 1, "9223372036854775807"), (-(2**63), "-9223372036854775808"))),
    "float": ("float", "real", ((1.5, "1.5"), (float("-inf"), "-Infinity"))),
    "double": ("double", "double precision", ((0.1, "0.1"), (float("nan"), "NaN"))),
    "bytes": ("bytes", "bytea", ((b"\0\xff", "\\x00ff"), (b"", "\\x"))),
    "fixed(n)": (
        {"type": "fixed", "name": "F3", "size": 3},
        "bytea",
        ((b"abc", "\\x616263"), (b"\0\0\0", "\\x000000")),
    ),
    "string": ("string", "text", (('ä𝄞 "q"\n', 'ä𝄞 "q"\n'), ("", ""))),
    "enum": ({"type": "enum", "name": "E", "symbols": ["NEW", "SENT"]}, "text", (("NEW", "NEW"), ("SENT", "SENT"))),
    "decimal(p,s) of bytes": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
        "numeric(38,10)",
        ((Decimal("9" * 28 + "." + "9" * 10), "9" * 28 + "." + "9" * 10), (Decimal("-0.0000000001"), "-0.0000000001")),
    ),
    "decimal(p,s) of fixed": (
        {"type": "fixed", "name": "F16", "size": 16, "logicalType": "decimal", "precision": 15, "scale": 2},
        "numeric(15,2)",
        ((Decimal("-9999999999999.99"), "-9999999999999.99"), (Decimal("0.00"), "0.00")),
    ),
    "decimal of more than 38 digits": (
        {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 3},
        "numeric(60,3)",
        ((Decimal("9" * 57 + ".125"), "9" * 57 + ".125"), (Decimal("-1.000"), "-1.000")),
    ),
    "date": (
        {"type": "int", "logicalType": "date"},
        "date",
        ((date(1, 1, 1), "0001-01-01"), (date(9999, 12, 31), "9999-12-31")),
    ),
    "time-millis": (
        {"type": "int", "logicalType": "time-millis"},
        "time without time zone",
        ((time(0), "00:00:00"), (time(23, 59, 59, 999000), "23:59:59.999")),
    ),
    "time-micros": (
        {"type": "long", "logicalType": "time-micros"},
        "time without time zone",
        ((time(12, 30, 0, 1), "12:30:00.000001"), (time(23, 59, 59, 999999), "23:59:59.999999")),
    ),
    "timestamp-millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        "timestamp with time zone",
        (
            (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01 00:00:00+00"),
            (datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), "9999-12-31 23:59:59.999+00"),
        ),
    ),
    "timestamp-micros": (
        {"type": "long", "logicalType": "timestamp-micros"},
        "timestamp with time zone",
        (
            (datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC), "2026-01-31 12:00:00.000001+00"),
            (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "1969-12-31 23:59:59.999999+00"),
        ),
    ),
    "timestamp-nanos": (
        {"type": "long", "logicalType": "timestamp-nanos"},
        "timestamp with time zone",
        ((1_700_000_000_123_456_000, "2023-11-14 22:13:20.123456+00"), (-1000, "1969-12-31 23:59:59.999999+00")),
    ),
    "local-timestamp-millis": (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        "timestamp without time zone",
        (
            (datetime(2026, 1, 31, 12, 0, 0, 500000), "2026-01-31 12:00:00.5"),
            (datetime(1, 1, 1), "0001-01-01 00:00:00"),
        ),
    ),
    "local-timestamp-micros": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "timestamp without time zone",
        (
            (datetime(2026, 1, 31, 12, 0, 0, 1), "2026-01-31 12:00:00.000001"),
            (datetime(9999, 12, 31, 23, 59, 59, 999999), "9999-12-31 23:59:59.999999"),
        ),
    ),
    "local-timestamp-nanos": (
        {"type": "long", "logicalType": "local-timestamp-nanos"},
        "timestamp without time zone",
        ((0, "1970-01-01 00:00:00"), (-1000, "1969-12-31 23:59:59.999999")),
    ),
    "uuid of string": (
        {"type": "string", "logicalType": "uuid"},
        "uuid",
        ((uuid.UUID(int=7), str(uuid.UUID(int=7))), (uuid.UUID(int=2**128 - 1), str(uuid.UUID(int=2**128 - 1)))),
    ),
    "uuid of fixed": (
        {"type": "fixed", "name": "U16", "size": 16, "logicalType": "uuid"},
        "uuid",
        ((uuid.UUID(int=7).bytes, str(uuid.UUID(int=7))), (bytes(16), str(uuid.UUID(int=0)))),
    ),
    "record": (
        {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "bytes"}]},
        "json",
        (
            ({"a": 2**63 - 1, "b": b"\xff"}, '{"a": 9223372036854775807, "b": "/w=="}'),
            ({"a": 0, "b": b""}, '{"a": 0, "b": ""}'),
        ),
    ),
    "array": ({"type": "array", "items": "string"}, "json", ((["ä", "b"], '["ä", "b"]'), ([], "[]"))),
    "map": ({"type": "map", "values": "double"}, "json", (({"a": 0.5}, '{"a": 0.5}'), ({}, "{}"))),
    "union of several": (["int", "string"], "json", ((7, "7"), ("x", '"x"'))),
}
"""By Avro's type: its schema, PostgreSQL's type, and twice what is written beside the text that is there."""


def schema() -> dict[str, Any]:
    """Return the schema of a record with a field of each type, which may be null."""
    fields = [
        {"name": name, "type": ["null", *(type_ if isinstance(type_, list) else [type_])]}
        for name, (type_, _, _) in zip(_names(), FIELDS.values(), strict=True)
    ]
    return {"type": "record", "name": "Every", "fields": fields}


def records() -> tuple[dict[str, Any], ...]:
    """Return the values: the first ones, the second ones, and null."""
    every = [
        {name: values[number][0] for name, (_, _, values) in zip(_names(), FIELDS.values(), strict=True)}
        for number in (0, 1)
    ]
    return (*every, dict.fromkeys(_names()))


def expected() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return PostgreSQL's type and what it prints, by column."""
    return {
        name: (type_, tuple(text for _, text in values))
        for name, (_, type_, values) in zip(_names(), FIELDS.values(), strict=True)
    }


def shown(name: str) -> str:
    """Return a column's type as the page has it."""
    return list(FIELDS)[_names().index(name)]


def _names() -> list[str]:
    return [f"f{number}" for number in range(len(FIELDS))]
