"""One small hydration for each way that rows take, run in every cell of the matrix."""

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG
from matrix_transforms import hold, uppercase  # type: ignore[import-not-found]

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.sinks import ParquetSink, PostgresSink
from airflow_provider_backpressure.sources import KafkaSource, PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

TARGETS = os.environ["MATRIX_SCHEMA"]
LAKE = os.environ["MATRIX_LAKE"]
RANGE_ROWS = int(os.environ.get("MATRIX_RANGE_ROWS", "4000"))

ORDERS = PostgresSource(conn_id="shop_db", table="public.orders")
FLOWS: dict[str, dict[str, Any]] = {
    "copy": {"source": ORDERS, "consistency": "static", "verify": "full"},
    "sql": {"source": ORDERS, "transform": "SELECT id, amount, upper(comment) AS comment, at FROM source"},
    "python": {"source": ORDERS, "transform": uppercase},
    "held": {"source": ORDERS, "transform": hold, "consistency": "static"},
    "kafka": {"source": KafkaSource(conn_id="events", topic="orders")},
    "parquet": {"source": ORDERS, "sink": ParquetSink(path=f"{LAKE}/orders")},
}

for name, flow in FLOWS.items():
    # A try that is killed is followed by another one at once.
    again = {"retry_delay": timedelta(seconds=1)}
    with DAG(f"matrix_{name}", schedule=None, catchup=False, default_args=again) as dag:
        sink = PostgresSink(conn_id="warehouse", table=f"{TARGETS}.{name}")
        budget = Budget(credits=2, range_rows=RANGE_ROWS)
        hydrate(**{"sink": sink, "spark_conn_id": "spark", "budget": budget, **flow})
    globals()[dag.dag_id] = dag
