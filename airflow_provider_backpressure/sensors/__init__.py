"""Sensors: the parts of the gate as Airflow tasks."""

from airflow_provider_backpressure.sensors.gate import ExecutorMemorySensor, SinkCommitSensor

__all__ = ["ExecutorMemorySensor", "SinkCommitSensor"]
