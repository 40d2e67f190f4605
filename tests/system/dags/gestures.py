"""DAGs on which a person acts, or that lose their scheduler: see ``test_gestures.py`` and ``test_kills.py``."""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

NO_RETRY = {"retries": 0}


def one(
    dag_id: str,
    *,
    source: str,
    target: str,
    rows: int,
    default_args: dict[str, Any],
    timeout: timedelta | None = None,
    **schedule: Any,
) -> None:
    """Make a DAG of one hydration with two credits; ``timeout`` is its lane's alone."""
    with DAG(dag_id, **{"schedule": None, **schedule}, catchup=False, default_args=default_args) as dag:
        hydrate(
            source=PostgresSource(conn_id="shop_db", table=source),
            sink=PostgresSink(conn_id="warehouse", table=target),
            spark_conn_id="spark_connect_default",
            budget=Budget(credits=2, range_rows=rows, law="fixed"),
            consistency="static",
            verify="none",
            refresh="once",
            group_id="hydrate",
        )
    dag.get_task("hydrate.hydrate_ranges").execution_timeout = timeout


one("gestured", source="public.gestured", target="raw.gestured", rows=100, default_args=NO_RETRY)
one("trespasser", source="public.gestured", target="raw.gestured", rows=100, default_args=NO_RETRY)
one(
    "timed",
    source="public.timed",
    target="raw.timed",
    rows=100,
    default_args=NO_RETRY,
    timeout=timedelta(seconds=120),
)
one(
    "killed",
    source="public.killed",
    target="raw.killed",
    rows=100,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
)
one(
    "waiting",
    source="public.small",
    target="raw.waiting",
    rows=10_000,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
)
one(
    "backfilled",
    source="public.small",
    target="raw.backfilled",
    rows=10_000,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    end_date=datetime(2026, 1, 3, tzinfo=UTC),
)
