"""Types of one name in two databases: bytes of one definition are other values of another."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, columns_from_json
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from tests.integration.attempts import another
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = pytest.mark.integration


@pytest.fixture
def warehouse(database: Endpoint) -> Iterator[Endpoint]:
    """Another database, where types have numbers of their own."""
    with another(database) as endpoint:
        run(endpoint, "CREATE SCHEMA raw", "CREATE TYPE before AS ENUM ('moves the numbers')")
        yield endpoint


def arriving(database: Endpoint, type_: str, **declared: tuple[str, ...]) -> tuple[Column, ...]:
    """Return the columns of a table with a column of this type, as a plan has them."""
    run(database, f"CREATE TABLE t (id bigint PRIMARY KEY, v {type_})")
    with closing(PostgresSource(conn_id="shop", table="public.t", **declared).open(database)) as source:
        return source.snapshot().columns


def fit(warehouse: Endpoint, columns: tuple[Column, ...], mode: str = "append") -> None:
    with closing(PostgresSink(conn_id="wh", table="raw.t").open(warehouse)) as sink:
        sink.fit(columns, mode=mode, key=("id",))


DOMAIN = ["CREATE DOMAIN d AS {}"]
RANGE = ["CREATE TYPE d AS RANGE (subtype = {})"]
POINT = ["CREATE TYPE d AS ({})"]
DEEP = [
    "CREATE DOMAIN e AS {}",
    "CREATE TYPE pair AS (a int, b e)",
    "CREATE TYPE many AS RANGE (subtype = e, multirange_type_name = d)",
    "CREATE DOMAIN f AS pair[]",
    "CREATE TYPE whole AS (m d, f f[])",
]


@pytest.mark.parametrize("there", mark_long(["missing", "append", "upsert", "replace"], quick=["append"]))
@pytest.mark.parametrize(
    ("setup", "here", "other", "column", "words"),
    [
        (
            DOMAIN,
            "timestamp",
            "timestamptz",
            "d",
            "type public.d of column v is defined as domain of timestamp without time zone in the source and as "
            "domain of timestamp with time zone in the target",
        ),
        (DOMAIN, "integer", "real", "d", "as domain of integer in the source and as domain of real in the target"),
        (
            DOMAIN,
            "numeric(10,2)",
            "numeric(10,0)",
            "d",
            "domain of numeric(10,2) in the source and as domain of numeric(10,0)",
        ),
        (DOMAIN, "bigint[]", "float8[]", "d[]", "array of public.d (domain of bigint[]) in the source"),
        (
            RANGE,
            "bigint",
            "float8",
            "d",
            "range of bigint in the source and as range of double precision in the target",
        ),
        (
            POINT,
            "lat float8, lon float8",
            'lon float8, "Lat" float8',
            "d",
            "of lat double precision, lon double precision in the source and as composite of lon double",
        ),
        (
            DEEP,
            "bigint",
            "timestamptz",
            "d",
            "range of public.e (domain of bigint) in the source and as range of public.e",
        ),
        (DEEP, "bigint", "timestamptz", "f", "b public.e (domain of bigint)"),
        (DEEP, "bigint", "timestamptz", "whole", "b public.e (domain of timestamp with time zone)"),
    ],
)
def test_a_type_of_another_definition_is_refused_by_name(
    database: Endpoint,
    warehouse: Endpoint,
    setup: list[str],
    here: str,
    other: str,
    column: str,
    words: str,
    there: str,
) -> None:
    """Whether the target is there or would be made."""
    run(database, *(statement.format(here) for statement in setup))
    run(warehouse, *(statement.format(other) for statement in setup))
    if there != "missing":
        run(warehouse, f"CREATE TABLE raw.t (id bigint PRIMARY KEY, v {column})")
    mode = "append" if there == "missing" else there
    columns = arriving(database, column)
    with pytest.raises(SinkRefused) as raised:
        fit(warehouse, columns, mode)
    assert words in str(raised.value)


@pytest.mark.parametrize("there", ["missing", "append", "replace"])
def test_types_of_the_same_definition_are_taken(database: Endpoint, warehouse: Endpoint, there: str) -> None:
    """Their numbers differ from database to database."""
    for endpoint in (database, warehouse):
        run(endpoint, *(statement.format("bigint") for statement in DEEP), "CREATE TYPE mood AS ENUM ('a')")
        run(endpoint, "CREATE TYPE every AS (w whole[], m mood, d d[])")
    if there != "missing":
        run(warehouse, "CREATE TABLE raw.t (id bigint PRIMARY KEY, v every)")
    fit(warehouse, arriving(database, "every"), "append" if there == "missing" else there)


def test_an_enum_is_no_domain_of_its_name(database: Endpoint, warehouse: Endpoint) -> None:
    run(database, "CREATE TYPE d AS ENUM ('a')")
    run(warehouse, "CREATE DOMAIN d AS text", "CREATE TABLE raw.t (id bigint, v d)")
    with pytest.raises(SinkRefused, match="is defined as enum in the source and as domain of text in the target"):
        fit(warehouse, arriving(database, "d"))


def test_types_of_postgresql_itself_have_no_definition(database: Endpoint) -> None:
    assert [column.definition for column in arriving(database, "int4range[]")] == [None, None]


def test_a_type_that_is_read_as_text_has_no_definition(database: Endpoint) -> None:
    run(database, "CREATE DOMAIN d AS timestamp")
    assert arriving(database, "d", as_text=("v",))[1] == Column(name="v", type="text")


def test_a_plan_that_knows_no_definitions_goes_on(database: Endpoint, warehouse: Endpoint) -> None:
    """A plan of an earlier release has columns without them, and is completed as it began."""
    run(database, "CREATE DOMAIN d AS timestamp")
    run(warehouse, "CREATE DOMAIN d AS timestamptz", "CREATE TABLE raw.t (id bigint, v d)")
    stored = [{"name": each.name, "type": each.type, "nullable": each.nullable} for each in arriving(database, "d")]
    columns = columns_from_json(stored)
    assert [replace(column, definition="x") == column for column in columns] == [False, False]
    fit(warehouse, columns)
