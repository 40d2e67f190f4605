"""Sensors: the parts of the gate as Airflow tasks."""

from airflow_provider_backpressure.sensors.gate import ExecutorMemorySensor, HydrationQueueSensor, SinkCommitSensor

__all__ = ["ExecutorMemorySensor", "HydrationQueueSensor", "SinkCommitSensor"]
