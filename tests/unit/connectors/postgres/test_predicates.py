"""Bounds become conditions whose values can be nothing but values."""

import pytest
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.key_types import key_cast
from airflow_provider_backpressure.connectors.postgres.predicates import condition, within_blocks, within_window
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, KeyBounds, NullBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Window


def text_of(bounds: KeyBounds | NullBounds, *casts: str) -> list[str]:
    return [part.as_string(None) for part in condition(bounds, casts)]


@pytest.mark.parametrize(
    ("column_type", "cast"),
    [
        ("bigint", "bigint"),
        ("numeric(15,2)", "numeric"),
        ("character varying(20)", "text"),
        ("character(5)", "bpchar"),
        ("timestamp(3) without time zone", "timestamp without time zone"),
        ("timestamp with time zone", "timestamp with time zone"),
        ("bytea", "bytea"),
        ("double precision", None),
        ("bigint[]", None),
        ("public.text", None),
    ],
)
def test_a_key_is_cast_without_its_length(column_type: str, cast: str | None) -> None:
    assert key_cast(column_type) == cast


def test_bounds_are_half_open() -> None:
    assert text_of(KeyBounds.of_column(column="id", start="1", end="9"), "bigint") == [
        "\"id\" >= '1'::bigint",
        "\"id\" < '9'::bigint",
    ]


def test_an_open_end_is_no_condition() -> None:
    assert text_of(KeyBounds.of_column(column="id", start=None, end=None), "bigint") == []
    assert text_of(KeyBounds.of_column(column="id", start="1", end=None), "bigint") == ["\"id\" >= '1'::bigint"]


def test_neither_value_nor_name_can_leave_its_quotes() -> None:
    hostile = KeyBounds.of_column(column='k"ey', start="x' OR true --", end="back\\' slash")
    start, end = text_of(hostile, "text")
    assert start == "\"k\"\"ey\" >= 'x'' OR true --'::text"
    assert end == "\"k\"\"ey\" <  E'back\\\\'' slash'::text"


def test_values_are_literals_for_psycopg_too() -> None:
    assert all(
        isinstance(part, sql.Composed)
        for part in condition(KeyBounds.of_column(column="a", start="1", end=None), ["text"])
    )


def test_several_columns_are_compared_as_a_row() -> None:
    bounds = KeyBounds(columns=("a", "b"), start=("1", "x"), end=("2", "y"))
    assert text_of(bounds, "bigint", "text") == [
        "(\"a\", \"b\") >= ('1'::bigint, 'x'::text)",
        "(\"a\", \"b\") < ('2'::bigint, 'y'::text)",
    ]


def test_null_is_a_piece_of_its_own() -> None:
    assert text_of(NullBounds(column="a"), "bigint") == ['"a" IS NULL']


def test_blocks_are_half_open() -> None:
    bounds = BlockBounds(table="public.t", file=1, start=(3, 0), end=(9, 7))
    assert [part.as_string(None) for part in within_blocks(bounds)] == ["ctid >= '(3,0)'::tid", "ctid < '(9,7)'::tid"]


def test_the_first_window_has_the_rows_without_a_value_too() -> None:
    first, later = Window(column="at", after=None, upto="7"), Window(column="at", after="7", upto="9")
    assert [part.as_string(None) for part in within_window(first, "bigint")] == [
        '("at" <= \'7\'::bigint OR "at" IS NULL)'
    ]
    assert [part.as_string(None) for part in within_window(later, "bigint")] == [
        "\"at\" > '7'::bigint",
        "\"at\" <= '9'::bigint",
    ]
