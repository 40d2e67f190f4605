"""A PostgreSQL table goes into a folder of Parquet, a Delta table and an Iceberg table, range by range.

The folder must be one that Airflow and every executor reach by the same path, or a prefix of a bucket (s3://…), which
takes a connection of type ``aws``.
"""

import os

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

LAKE = os.environ.get("LAKE_FOLDER", "/tmp/lake")  # an example
CATALOG = {"name": "lake", "type": "sql", "uri": f"sqlite:///{LAKE}/catalog.db", "warehouse": f"file://{LAKE}/iceberg"}
SINKS = {
    "parquet": ParquetSink(path=f"{LAKE}/parquet/lineitem"),
    "delta": DeltaSink(path=f"{LAKE}/delta/lineitem"),
    "iceberg": IcebergSink(table="raw.lineitem", catalog=CATALOG),
}

with DAG("lake_hydrate", schedule=None, catchup=False, max_active_runs=1, tags=["backpressure"]):
    for kind, sink in SINKS.items():
        hydrate(
            source=PostgresSource(conn_id="shop_db", table="public.lineitem", where="l_id <= 1000000"),
            sink=sink,
            spark_conn_id="spark_connect_default",
            budget=Budget(credits=1, range_rows=250_000),
            group_id=f"hydrate_{kind}",
        )
