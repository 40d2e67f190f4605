"""Which tables a pattern means in a real PostgreSQL and a real MySQL."""

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.sources import MySQLSource, PostgresSource
from tests.support import mysql, postgres

pytestmark = pytest.mark.integration


def test_tables_of_postgresql(database: Endpoint) -> None:
    """Plain and partitioned tables that the role may read, as SQL spells them; no partitions, views, none of ours."""
    postgres.run(
        database,
        "CREATE TABLE orders (id int)",
        'CREATE TABLE "Odd Orders" (id int)',
        "CREATE TABLE parts (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        "CREATE VIEW seen AS SELECT 1 AS id",
        "CREATE TABLE backpressure_plan (id int)",
        "CREATE SCHEMA raw CREATE TABLE orders (id int)",
    )
    source = PostgresSource(conn_id="shop", tables="public.*")
    assert [table.spelled for table in source.found(database)] == [
        'public."Odd Orders"',
        "public.orders",
        "public.parts",
    ]
    everywhere = PostgresSource(conn_id="shop", tables="*.orders").found(database)
    assert [table.spelled for table in everywhere] == ["public.orders", "raw.orders"]


def test_tables_of_mysql(mysql_database: Endpoint) -> None:
    """Tables of any engine; no views, and nothing of the server's own."""
    mysql.run(
        mysql_database,
        "CREATE TABLE orders (id int)",
        "CREATE TABLE `odd orders` (id int)",
        "CREATE VIEW seen AS SELECT 1 AS id",
    )
    name = mysql_database.database
    found = MySQLSource(conn_id="shop", tables=f"{name}.*").found(mysql_database)
    assert [table.spelled for table in found] == [f"{name}.`odd orders`", f"{name}.orders"]
    everywhere = {table.schema for table in MySQLSource(conn_id="shop", tables="*").found(mysql_database)}
    assert name in everywhere
    assert everywhere.isdisjoint({"mysql", "sys", "information_schema", "performance_schema"})
