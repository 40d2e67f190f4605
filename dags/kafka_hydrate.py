"""A Kafka topic goes into PostgreSQL; each later run brings the offsets that have arrived since."""

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import KafkaSource
from airflow_provider_backpressure.task_groups import hydrate

with DAG("kafka_hydrate", schedule=None, catchup=False, max_active_runs=1, tags=["backpressure"]):
    hydrate(
        source=KafkaSource(conn_id="events", topic="orders"),
        sink=PostgresSink(conn_id="warehouse", table="raw.orders"),
        spark_conn_id="spark_connect_default",
        budget=Budget(credits=2, range_rows=250_000),
    )
