"""A MySQL table goes into PostgreSQL, range by range."""

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import MySQLSource
from airflow_provider_backpressure.task_groups import hydrate

with DAG("mysql_hydrate", schedule=None, catchup=False, max_active_runs=1, tags=["backpressure"]):
    hydrate(
        source=MySQLSource(conn_id="erp", table="lineitem"),
        sink=PostgresSink(conn_id="warehouse", table="raw.lineitem_mysql"),
        spark_conn_id="spark_connect_default",
        budget=Budget(credits=2, range_rows=250_000),
    )
