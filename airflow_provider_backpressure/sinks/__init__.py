"""Sinks: prepare a target, fence its plans, read its commit markers. Declarations hold no connection."""

from airflow_provider_backpressure.sinks.delta import DeltaSink
from airflow_provider_backpressure.sinks.iceberg import IcebergSink
from airflow_provider_backpressure.sinks.parquet import ParquetSink
from airflow_provider_backpressure.sinks.postgres import PostgresSink

__all__ = ["DeltaSink", "IcebergSink", "ParquetSink", "PostgresSink"]
