"""DAGs of one hydration each, whose states are looked at while they last: see ``test_seen_states.py``."""

from typing import Any

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

SLOW = "pg_sleep(0.03)::text = ''"
"""A condition for which the source takes its time with each row, also when it is verified."""


def one(state: str, *, where: str | None = None, **values: Any) -> None:
    """Make the DAG of a state; its table is named like it, on both sides."""
    with DAG(f"state_{state}", schedule=None, catchup=False, default_args={"retries": 0}):
        hydrate(
            source=PostgresSource(conn_id="shop_db", table=f"public.state_{state}", where=where),
            sink=PostgresSink(conn_id="warehouse", table=f"raw.state_{state}"),
            spark_conn_id="spark_connect_default",
            budget=Budget(credits=2, range_rows=100, law="fixed"),
            group_id="hydrate",
            **{"consistency": "static", **values},
        )


one("slow", where=SLOW, verify="full")
for state in ("planning", "throttled", "failed", "unplanned", "killed", "paused", "queued"):
    one(state)
one("following", mode="upsert", consistency="catch_up")
