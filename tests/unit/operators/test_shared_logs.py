"""Which tables of a task group share one log of their source."""

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_backpressure.operators.shared_log_hydration import find_stream
from airflow_provider_backpressure.sinks import ParquetSink, PostgresSink, SparkTableSink
from airflow_provider_backpressure.sources import MySQLSource, PostgresSource

POSTGRES = PostgresSource(conn_id="shop", tables=("public.a", "public.b"))
MYSQL = MySQLSource(conn_id="shop", tables=("shop.a", "shop.b"))
SPARK = SparkTableSink(table="lake.raw.{table}", spark_conn_id="spark", format="iceberg")


@pytest.mark.parametrize(
    ("source", "sink", "shares"),
    [
        (POSTGRES, PostgresSink(conn_id="warehouse", table="raw.{table}"), True),
        (MYSQL, PostgresSink(conn_id="warehouse", table="raw.{table}"), True),
        (POSTGRES, SPARK, True),
        (MYSQL, SPARK, True),
        (POSTGRES, ParquetSink(path="/lake/{table}"), False),
    ],
)
def test_tables_share_a_log_where_source_and_sink_can(source: Any, sink: Any, shares: bool) -> None:
    tables: Any = SimpleNamespace(
        declared=SimpleNamespace(source=source, sink=sink, consistency="catch_up"), hydrations=list
    )
    known: Any = {"pair": SimpleNamespace(id="one", plan=None)}
    assert (find_stream(tables, list(known), known, restart=False) is not None) is shares
