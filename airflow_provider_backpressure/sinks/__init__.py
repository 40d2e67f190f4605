"""Sinks: prepare a target, fence its plans, read its commit markers. Declarations hold no connection."""

from airflow_provider_backpressure.connectors.lake.config import DeltaSink, IcebergSink, ParquetSink
from airflow_provider_backpressure.connectors.lake.spark.config import SparkTableSink
from airflow_provider_backpressure.connectors.postgres.sink.config import PostgresSink

__all__ = ["DeltaSink", "IcebergSink", "ParquetSink", "PostgresSink", "SparkTableSink"]
