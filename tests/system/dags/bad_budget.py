"""A budget that cannot be meant: refused when the DAG is parsed."""

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

with DAG("bad_budget", schedule=None, catchup=False):
    hydrate(
        source=PostgresSource(conn_id="shop_db", table="public.small"),
        sink=PostgresSink(conn_id="warehouse", table="raw.bad_budget"),
        spark_conn_id="spark_connect_default",
        budget=Budget(credits=0),
    )
