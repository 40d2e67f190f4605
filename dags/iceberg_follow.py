"""A PostgreSQL table that changes is followed into an Iceberg table of the catalog that Spark has.

The Spark Connect server needs Iceberg's connector and a catalog named ``lake``. The source keeps its log for the table.
"""

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import SparkTableSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

with DAG("iceberg_follow", schedule=None, catchup=False, max_active_runs=1, tags=["backpressure"]):
    hydrate(
        source=PostgresSource(conn_id="shop_db", table="public.stock"),
        sink=SparkTableSink(table="lake.raw.stock", spark_conn_id="spark_connect_default", format="iceberg"),
        spark_conn_id="spark_connect_default",
        mode="upsert",
        consistency="catch_up",
        budget=Budget(credits=1, range_rows=100_000),
    )
