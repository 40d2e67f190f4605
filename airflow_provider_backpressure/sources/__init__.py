"""Sources: what to ask an upstream. Declarations hold no connection and are cheap to build."""

from airflow_provider_backpressure.sources.kafka import KafkaSource
from airflow_provider_backpressure.sources.landed import LandedSource
from airflow_provider_backpressure.sources.mysql import MySQLSource
from airflow_provider_backpressure.sources.postgres import PostgresSource

__all__ = ["KafkaSource", "LandedSource", "MySQLSource", "PostgresSource"]
