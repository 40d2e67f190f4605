"""A PostgreSQL table goes into PostgreSQL, range by range."""

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

with DAG("postgres_hydrate", schedule=None, catchup=False, max_active_runs=1, tags=["backpressure"]):
    hydrate(
        source=PostgresSource(conn_id="shop_db", table="public.lineitem"),
        sink=PostgresSink(conn_id="warehouse", table="raw.lineitem"),
        spark_conn_id="spark_connect_default",
        budget=Budget(credits=2, range_rows=250_000),
    )
