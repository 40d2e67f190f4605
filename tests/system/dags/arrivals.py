"""Runs when something has come to its topic, and by nothing else: see ``test_arrivals.py``."""

from airflow.sdk import DAG

from airflow_provider_backpressure.assets import watch_source
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import KafkaSource
from airflow_provider_backpressure.task_groups import hydrate

source = KafkaSource(conn_id="events", topic="arrivals", fields={"id": "bigint"})
sink = PostgresSink(conn_id="warehouse", table="raw.arrivals")

with DAG("arrivals", schedule=[watch_source(source, sink)], catchup=False, max_active_runs=1):
    hydrate(source, sink, spark_conn_id="spark_connect_default", group_id="hydrate")
