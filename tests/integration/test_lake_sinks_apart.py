"""A lake table has one hydration, whichever kind of sink writes it: each kind keeps its plans elsewhere."""

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SinkRefused
from tests.support.composed import Composed
from tests.support.lakes import Cluster
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900), pytest.mark.statement("X1")]
FORMATS = pytest.mark.parametrize("format_", ["delta", "iceberg"])


def place_of_task_sink(cluster: Cluster, format_: str, name: str) -> dict[str, Any]:
    """Return where the sink whose tasks write finds the table that Spark has under this name."""
    if format_ == "delta":
        return {"kind": "delta", "path": str(cluster.find_folder(cluster.place(format_, name)))}
    warehouse = f"file://{cluster.folder}/iceberg"
    return {
        "kind": "iceberg",
        "table": f"raw.{name}",
        "catalog": {"name": "lake", "type": "hadoop", "warehouse": warehouse},
    }


@pytest.fixture
def pair(database: Endpoint, hydration: Composed, lake_cluster: Cluster, format_: str, request: Any) -> list[Composed]:
    """Two hydrations of other sources: one whose tasks write the table, and one for which Spark does."""
    name = f"apart_{format_}_{request.node.originalname[-12:]}"
    # Spark's sink takes no column that is NOT NULL in its table.
    for table, rows, key in (("t", 100, ""), ("u", 90, "PRIMARY KEY")):
        run(
            database,
            f"CREATE TABLE {table} (id int {key}, a text)",
            f"INSERT INTO {table} SELECT g, '{table}' || g FROM generate_series(1, {rows}) g",
            f"ANALYZE {table}",
        )
    into = place_of_task_sink(lake_cluster, format_, name)
    by_task = replace(hydration, into=into, reading={"split_column": "id"})
    by_spark = replace(
        hydration,
        table="public.u",
        into=lake_cluster.place(format_, name),
        mode="upsert",
        remote=lake_cluster.url,
        ui_url=lake_cluster.ui_url,
        lane="by spark",
    )
    return [by_task, by_spark]


@FORMATS
def test_a_table_that_tasks_write_is_refused_to_spark(
    pair: list[Composed], database: Endpoint, lake_cluster: Cluster, format_: str
) -> None:
    """X1: its rows stay; once that hydration is removed, the other one goes."""
    by_task, by_spark = pair
    by_task.plan()
    by_task.run()
    by_task.finish()
    table = by_spark.into["table"]
    if format_ == "delta":
        lake_cluster.sql(f"CREATE TABLE {table} USING delta LOCATION '{by_task.into['path']}'")
    with pytest.raises(SinkRefused, match=r"is held by a plan of (Delta|Iceberg)Sink"):
        by_spark.plan()
    assert lake_cluster.sql(f"SELECT count(*), min(a) FROM {table}") == [(100, "t1")]
    with by_task.open() as ports:
        ports.sink.erase()
    by_spark.plan()
    by_spark.run()
    assert lake_cluster.sql(f"SELECT count(*) FROM {table} WHERE a LIKE 'u%'") == [(90,)]


@FORMATS
def test_a_table_that_spark_writes_is_refused_to_tasks(
    pair: list[Composed], lake_cluster: Cluster, format_: str
) -> None:
    """X1: its rows stay."""
    by_task, by_spark = pair
    by_spark.plan()
    by_spark.run()
    by_spark.finish()
    with pytest.raises(SinkRefused, match="is held by a plan of SparkTableSink"):
        replace(by_task, table="public.u", mode="upsert").plan()
    assert lake_cluster.sql(f"SELECT count(*), min(a) FROM {by_spark.into['table']}") == [(90, "u1")]
