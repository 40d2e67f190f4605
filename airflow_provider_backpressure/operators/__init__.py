"""Operators: the steps of a hydration as Airflow tasks."""

from airflow_provider_backpressure.operators.hydrate import HydrateOperator, ListTablesOperator
from airflow_provider_backpressure.operators.plan import PlanSnapshotOperator
from airflow_provider_backpressure.operators.submit import SubmitRangeOperator
from airflow_provider_backpressure.operators.verify import VerifyHydrationOperator

__all__ = [
    "HydrateOperator",
    "ListTablesOperator",
    "PlanSnapshotOperator",
    "SubmitRangeOperator",
    "VerifyHydrationOperator",
]
