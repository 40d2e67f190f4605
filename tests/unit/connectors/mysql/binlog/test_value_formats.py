"""Values as the log packs them. What the server itself prints for each was written down."""

import pytest

from airflow_provider_backpressure.connectors.mysql.binlog.value_formats import (
    date_text,
    datetime_text,
    decimal_bytes,
    decimal_text,
    document,
    double_text,
    time_text,
    timestamp_text,
)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (2.0, "2"),
        (0.1, "0.1"),
        (1e14, "100000000000000"),
        (1e15, "1e15"),
        (123456789012345680.0, "1.2345678901234568e17"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"),
        (-1.2345678901234568e-10, "-1.234567890123457e-10"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (5e-324, "5e-324"),
    ],
)
def test_doubles_are_printed_in_22_characters(number: float, shown: str):
    assert double_text(number) == shown


@pytest.mark.parametrize(
    ("raw", "precision", "scale", "shown"),
    [
        ("7ffffffffffffe", 15, 2, "-0.01"),
        (
            "8000000000000000000000000000000000000000" * 0
            + "80000000000000000000000000000001"
            + "1dcd6500"
            + "00" * 10,
            65,
            30,
            "1.5",
        ),
    ],
)
def test_decimals_keep_their_digits(raw: str, precision: int, scale: int, shown: str):
    packed = bytes.fromhex(raw)
    assert decimal_bytes(precision, scale) == len(packed)
    assert decimal_text(packed, precision, scale) == shown.ljust(len(shown.split(".")[0]) + 1 + scale, "0")


def test_dates_and_times():
    assert date_text(bytes.fromhex("22d007")) == "1000-01-02"
    assert date_text(bytes(3)) == "0000-00-00"
    assert datetime_text(bytes.fromhex("99b2bb7efa0c"), 2) == "2024-02-29 23:59:58.12"
    assert timestamp_text(bytes.fromhex("7fffffff0f423f"), 6) == "2038-01-19 03:14:07.999999"
    assert timestamp_text(bytes(4), 0) == "0000-00-00 00:00:00"
    assert time_text(bytes.fromhex("7fef7cf63c"), 3) == "-01:02:03.250"
    assert time_text(bytes.fromhex("800000"), 0) == "00:00:00"


def test_documents_are_printed_as_the_server_prints_them():
    packed = bytes.fromhex(
        "0002003500120001001300020002150000310061626204001c000501000b10000400000c180000000000000004c003c3a90a00000400"
    )
    assert document(packed) == '{"a": [1, -2.5, null, "é\\n"], "bb": {}}'
    assert document(b"") == "null"
