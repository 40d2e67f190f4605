"""Bounds become conditions whose values can be nothing but values."""

import pytest
from psycopg import sql

from airflow_provider_backpressure.core.ranges import KeyBounds
from airflow_provider_backpressure.postgres.bounds import condition, key_cast


def text_of(bounds: KeyBounds, cast: str) -> list[str]:
    return [part.as_string(None) for part in condition(bounds, cast)]


@pytest.mark.parametrize(
    ("column_type", "cast"),
    [
        ("bigint", "bigint"),
        ("numeric(15,2)", "numeric"),
        ("character varying(20)", "text"),
        ("character(5)", "bpchar"),
        ("timestamp(3) without time zone", "timestamp without time zone"),
        ("timestamp with time zone", "timestamp with time zone"),
        ("double precision", None),
        ("bigint[]", None),
        ("public.text", None),
    ],
)
def test_a_key_is_cast_without_its_length(column_type: str, cast: str | None) -> None:
    assert key_cast(column_type) == cast


def test_bounds_are_half_open() -> None:
    assert text_of(KeyBounds(column="id", start="1", end="9"), "bigint") == [
        "\"id\" >= '1'::bigint",
        "\"id\" < '9'::bigint",
    ]


def test_an_open_end_is_no_condition() -> None:
    assert text_of(KeyBounds(column="id", start=None, end=None), "bigint") == []
    assert text_of(KeyBounds(column="id", start="1", end=None), "bigint") == ["\"id\" >= '1'::bigint"]


def test_neither_value_nor_name_can_leave_its_quotes() -> None:
    hostile = KeyBounds(column='k"ey', start="x' OR true --", end="back\\' slash")
    start, end = text_of(hostile, "text")
    assert start == "\"k\"\"ey\" >= 'x'' OR true --'::text"
    assert end == "\"k\"\"ey\" <  E'back\\\\'' slash'::text"


def test_values_are_literals_for_psycopg_too() -> None:
    assert all(isinstance(part, sql.Composed) for part in condition(KeyBounds(column="a", start="1", end=None), "text"))
