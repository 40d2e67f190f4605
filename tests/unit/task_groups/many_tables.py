"""Parses a DAG of 500 hydrations, and says how long it took and what it opened meanwhile; for ``test_hydrate``."""

import json
import sys
import time

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

TABLES = 500
OPENED: list[str] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Note every connection, every process and every SQLite file; Python itself tells of them."""
    if event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect", "subprocess.Popen", "os.fork"):
        OPENED.append(f"{event} {arguments[:2]}")


def parse(tables: int) -> float:
    """Return the seconds of CPU that a parse takes: others may share the machine."""
    began = time.process_time()
    with DAG("many", schedule=None) as dag:
        for number in range(tables):
            hydrate(
                source=PostgresSource(conn_id="shop_db", table=f"public.t{number}"),
                sink=PostgresSink(conn_id="warehouse", table=f"raw.t{number}"),
                spark_conn_id="spark",
            )
    seconds = time.process_time() - began
    assert len(dag.tasks) == 4 * tables
    return seconds


def parse_plain(tables: int) -> float:
    """Return the same of a DAG of as many tasks that do nothing: what Airflow itself takes, on this machine now."""
    began = time.process_time()
    with DAG("plain", schedule=None):
        for number in range(4 * tables):
            EmptyOperator(task_id=f"t{number}")
    return time.process_time() - began


if __name__ == "__main__":
    parse(1)  # Airflow imports the last of its own modules with the first DAG
    sys.addaudithook(watch)
    found = [(parse(TABLES), parse_plain(TABLES)) for _ in range(3)]
    print(
        json.dumps({"seconds": [ours for ours, _ in found], "plain": [plain for _, plain in found], "opened": OPENED})
    )
