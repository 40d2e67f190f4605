"""The declaration of a PostgreSQL source: cheap, frozen, without a driver."""

import dataclasses
import subprocess
import sys
import time

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.sources import PostgresSource

ENDPOINT = Endpoint(conn_id="shop_db", host="db", port=5432, database="shop", user="reader", password="s3cret")


def identity(**declared: object) -> str:
    source = PostgresSource(conn_id="shop_db", **{"table": "public.orders", **declared})  # type: ignore[arg-type]
    return source.open(ENDPOINT).identity


def test_importing_it_imports_no_driver() -> None:
    code = "import sys, airflow_provider_backpressure.sources; print({'psycopg', 'airflow'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_five_hundred_are_declared_at_once() -> None:
    """D14: 500 tables in one DAG parse in under 1 s; the declarations are a small part of it."""
    start = time.process_time()
    for number in range(500):
        PostgresSource(conn_id="shop_db", table=f"public.table_{number}", columns=("a", "b"))
    assert time.process_time() - start < 0.1


def test_it_is_frozen_and_names_its_templated_fields() -> None:
    source = PostgresSource(conn_id="shop_db", table="public.{{ params.table }}")
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.table = "other"  # type: ignore[misc]
    rendered = {name: getattr(source, name) for name in PostgresSource.templated}
    assert dataclasses.replace(source, **rendered) == source
    assert not hasattr(source, "template_fields"), "Airflow would assign to it"


def test_lists_are_taken_for_tuples() -> None:
    source = PostgresSource(conn_id="c", table="t", columns=["a"], as_text=["a"])  # type: ignore[arg-type]
    assert source.columns == ("a",)
    assert source.as_text == ("a",)
    assert hash(source)


@pytest.mark.parametrize("declared", [{"columns": "id"}, {"as_text": "id"}, {"columns": ()}])
def test_what_cannot_be_meant_is_refused(declared: dict[str, object]) -> None:
    with pytest.raises(InvalidDeclaration):
        PostgresSource(conn_id="c", table="t", **declared)  # type: ignore[arg-type]


def test_the_identity_has_no_secret_and_needs_no_connection() -> None:
    assert identity() == "postgres://db:5432/shop/public.orders"
    assert identity(table='"Odd.Name"') == 'postgres://db:5432/shop/public."Odd.Name"'


def test_a_part_of_a_table_is_another_source() -> None:
    parts = [
        {},
        {"where": "id > 1"},
        {"where": "id > 2"},
        {"columns": ("id",)},
        {"columns": ("id", "v")},
        {"columns": ("id", "v"), "as_text": ("v",)},
    ]
    assert len({identity(**part) for part in parts}) == len(parts)
    assert identity(split_column="id") == identity(), "how it is cut changes nothing about what it is"
    assert identity(where="  ") == identity()


def test_a_table_that_is_no_name_is_refused_when_opened() -> None:
    with pytest.raises(InvalidDeclaration, match="is not a table's name"):
        identity(table="a.b.c")
