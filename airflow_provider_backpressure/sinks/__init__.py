"""Sinks: prepare a target, fence its plans, read its commit markers. Declarations hold no connection."""

from airflow_provider_backpressure.connectors.lake.delta.config import DeltaSink
from airflow_provider_backpressure.connectors.lake.iceberg.config import IcebergSink
from airflow_provider_backpressure.connectors.lake.parquet.config import ParquetSink
from airflow_provider_backpressure.connectors.postgres.sink.config import PostgresSink

__all__ = ["DeltaSink", "IcebergSink", "ParquetSink", "PostgresSink"]
