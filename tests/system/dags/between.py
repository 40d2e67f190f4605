"""Is looked after between its runs by Airflow's triggerer, and a notifier is told: see ``test_between.py``."""

import os
from pathlib import Path

from airflow.sdk import DAG, AsyncCallback

from airflow_provider_backpressure.assets import watch_source
from airflow_provider_backpressure.core.config import SlotLag
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

source = PostgresSource(conn_id="shop_db", table="public.small")
sink = PostgresSink(conn_id="warehouse", table="raw.looked_after")
heard = {"file": str(Path(os.environ["EVENTS_FILE"]).with_name("between.txt"))}
unread = watch_source(
    source,
    sink,
    signals=[SlotLag(bytes=64 * 2**20)],
    on_event=AsyncCallback("tests.system.listening.Heard", kwargs=heard),
)

with DAG("looked_after", schedule=[unread], catchup=False, max_active_runs=1):
    hydrate(
        source,
        sink,
        spark_conn_id="spark_connect_default",
        mode="upsert",
        consistency="catch_up",
        group_id="hydrate",
    )
