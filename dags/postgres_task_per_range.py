"""The same hydration composed manually: a task for each range, held back by two sensors."""

from typing import Any

from airflow.sdk import DAG, task_group

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.operators import (
    PlanSnapshotOperator,
    SubmitRangeOperator,
    VerifyHydrationOperator,
)
from airflow_provider_backpressure.sensors import ExecutorMemorySensor, SinkCommitSensor
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource

FLOW: dict[str, Any] = {
    "source": PostgresSource(conn_id="shop_db", table="public.lineitem"),
    "sink": PostgresSink(conn_id="warehouse", table="raw.lineitem_by_task"),
    "spark_conn_id": "spark_connect_default",
    "budget": Budget(credits=2, range_rows=500_000),
}

with DAG(
    "postgres_task_per_range",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},
    tags=["backpressure"],
):
    plan = PlanSnapshotOperator(task_id="plan_snapshot", consistency="static", each_range=True, **FLOW)

    @task_group
    def hydrate_range(seq: int) -> None:
        """Wait for memory, then for a credit, which the sensor reserves; then submit."""
        executor_memory = ExecutorMemorySensor(task_id="executor_memory", **FLOW)
        sink_commit = SinkCommitSensor(task_id="sink_commit", seq=seq, **FLOW)
        executor_memory >> sink_commit >> SubmitRangeOperator(task_id="submit_range", seq=seq, **FLOW)

    verify = VerifyHydrationOperator(task_id="verify_hydration", trigger_rule="none_failed_min_one_success", **FLOW)
    ranges = hydrate_range.expand(seq=plan.output)
    plan >> ranges >> verify
    plan >> verify
