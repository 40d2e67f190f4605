"""Fields of JSON objects: for each declared type what is sent, and what PostgreSQL prints of it."""

import json

COLUMNS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "smallint": ("smallint", (("-32768", "-32768"), ('"32767"', "32767"))),
    "int": ("integer", (("2147483647", "2147483647"), ("-2147483648", "-2147483648"))),
    "bigint": ("bigint", (("9007199254740993", "9007199254740993"), ("-9223372036854775808", "-9223372036854775808"))),
    "numeric": ("numeric", (("12345678901234567890.1250", "12345678901234567890.1250"), ('"NaN"', "NaN"))),
    "numeric(12,2)": ("numeric(12,2)", (("12.5", "12.50"), ('"-9999999999.99"', "-9999999999.99"))),
    "numeric(38,0)": ("numeric(38,0)", (("9" * 38, "9" * 38), ("-1", "-1"))),
    "real": ("real", (("1.5", "1.5"), ("-2.5e3", "-2500"))),
    "double precision": ("double precision", (("0.1", "0.1"), ("1e300", "1e+300"))),
    "boolean": ("boolean", (("true", "true"), ("false", "false"))),
    "date": ("date", (('"2024-02-29"', "2024-02-29"), ('"0001-01-01"', "0001-01-01"))),
    "timestamp": (
        "timestamp without time zone",
        (
            ('"2026-01-31T12:00:00.123456"', "2026-01-31 12:00:00.123456"),
            ('"0001-01-01 00:00:00"', "0001-01-01 00:00:00"),
        ),
    ),
    "timestamptz": (
        "timestamp with time zone",
        (
            ('"2026-01-31T12:00:00+02:00"', "2026-01-31 10:00:00+00"),
            ('"2026-01-31 12:00:00.000001Z"', "2026-01-31 12:00:00.000001+00"),
        ),
    ),
    "time": ("time without time zone", (('"12:30:00.5"', "12:30:00.5"), ('"00:00"', "00:00:00"))),
    "interval": ("interval", (('"1 day 2 hours"', "1 day 02:00:00"), ('"PT1M"', "00:01:00"))),
    "text": ("text", (('"\\u00e4\\ud834\\udd1e \\"q\\""', 'ä𝄞 "q"'), ("1.10", "1.10"))),
    "varchar(5)": ("character varying(5)", (('"abcde"', "abcde"), ('""', ""))),
    "char(4)": ("character(4)", (('"ab"', "ab"), ('"abcd"', "abcd"))),
    "uuid": (
        "uuid",
        (
            ('"6f1f0c4e-6a52-4a8b-8f0e-0f6c3c1b2a3d"', "6f1f0c4e-6a52-4a8b-8f0e-0f6c3c1b2a3d"),
            ('"6F1F0C4E6A524A8B8F0E0F6C3C1B2A3D"', "6f1f0c4e-6a52-4a8b-8f0e-0f6c3c1b2a3d"),
        ),
    ),
    "inet": ("inet", (('"10.0.0.1"', "10.0.0.1/32"), ('"::1/64"', "::1/64"))),
    "json": ("json", (('{"a": [1.10, null]}', '{"a": [1.10, null]}'), ('"x"', '"x"'))),
    "jsonb": ("jsonb", (('{"b": 1,"a":1.10}', '{"a": 1.10, "b": 1}'), ("[]", "[]"))),
    "int[]": ("integer[]", (('"{1,NULL,3}"', "{1,NULL,3}"), ('"{}"', "{}"))),
}
"""By the type in ``fields``: the column's own, and twice the JSON that is sent beside the text that is there."""


def records() -> tuple[bytes, ...]:
    """Return the messages: the first values of all types, the second ones, null, and none at all."""
    every = [
        ", ".join(f"{json.dumps(name)}: {sent[number][0]}" for name, (_, sent) in _named().items()) for number in (0, 1)
    ]
    nulls = ", ".join(f"{json.dumps(name)}: null" for name in _named())
    return tuple(f"{{{text}}}".encode() for text in (*every, nulls, ""))


def fields() -> dict[str, str]:
    """Return what a source declares."""
    return dict(zip(_named(), COLUMNS, strict=True))


def _named() -> dict[str, tuple[str, tuple[tuple[str, str], ...]]]:
    return {f"f{number}": column for number, column in enumerate(COLUMNS.values())}
