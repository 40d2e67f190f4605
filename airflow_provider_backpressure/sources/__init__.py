"""Sources: what to ask an upstream. Declarations hold no connection and are cheap to build."""

from airflow_provider_backpressure.connectors.kafka.source.config import KafkaSource
from airflow_provider_backpressure.connectors.kafka.source.formats import Avro, Debezium, JsonSchema, Protobuf
from airflow_provider_backpressure.connectors.lake.source.config import LandedSource
from airflow_provider_backpressure.connectors.lake.source.spark_config import SparkSource
from airflow_provider_backpressure.connectors.mysql.source.config import MySQLSource
from airflow_provider_backpressure.connectors.postgres.source.config import PostgresSource

__all__ = [
    "Avro",
    "Debezium",
    "JsonSchema",
    "KafkaSource",
    "LandedSource",
    "MySQLSource",
    "PostgresSource",
    "Protobuf",
    "SparkSource",
]
