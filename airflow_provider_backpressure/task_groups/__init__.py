"""Task groups: a hydration in one call."""

from airflow_provider_backpressure.task_groups.hydrate import hydrate

__all__ = ["hydrate"]
