"""DAGs that show one behaviour each: see ``test_behaviour.py``."""

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, BaseNotifier, chain, task

from airflow_provider_backpressure.assets import hydrations_of
from airflow_provider_backpressure.core.config import ActiveSessions, Budget, Query
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import MySQLSource, PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

SMALL = PostgresSource(conn_id="shop_db", table="public.small")
RETRY_SOON = {"retries": 2, "retry_delay": timedelta(seconds=1)}
FAIL_AT_ONCE = {"retries": 0}


class Written(BaseNotifier):
    """Writes what it is told into a file."""

    template_fields = ("text",)

    def __init__(self) -> None:
        super().__init__()
        self.text = "{{ backpressure_event.kind }} {{ ti.task_id }}: {{ backpressure_event.sentence }}"

    def notify(self, context: Any) -> None:
        """See ``BaseNotifier.notify``."""
        with open(os.environ["EVENTS_FILE"], "a") as file:
            print(self.text, file=file)


def one(dag_id: str, *, default_args: dict, **values) -> None:
    """Make a DAG of one hydration."""
    with DAG(dag_id, schedule=None, catchup=False, default_args=default_args):
        flow = {"source": SMALL, "spark_conn_id": "spark_connect_default", "consistency": "static"}
        hydrate(**{**flow, "group_id": "hydrate", **values})


one(
    "gated",
    default_args=RETRY_SOON,
    sink=PostgresSink(conn_id="warehouse", table="raw.gated"),
    on_event=[Written()],
)
one(
    "looked_at",
    default_args=RETRY_SOON,
    sink=PostgresSink(conn_id="warehouse", table="raw.looked_at"),
    budget=Budget(credits=2, range_rows=1_000),
)
one("foretold", default_args=RETRY_SOON, sink=PostgresSink(conn_id="warehouse", table="raw.foretold"))
one("intruder", default_args=RETRY_SOON, sink=PostgresSink(conn_id="warehouse", table="raw.gated"))
one(
    "slow",
    default_args=RETRY_SOON,
    source=PostgresSource(conn_id="shop_db", table="public.slow"),
    sink=PostgresSink(conn_id="warehouse", table="raw.slow"),
    budget=Budget(credits=2, range_rows=800),
    verify="none",
)
one(
    "watched",
    default_args=RETRY_SOON,
    sink=PostgresSink(conn_id="warehouse", table="raw.watched"),
    budget=Budget(
        signals=(
            ActiveSessions(on="sink", most=190),
            Query(on="source", sql="SELECT v FROM pressure", most=50, name="pressure"),
            Query(conn_id="warehouse", sql="SELECT 1", most=50, name="calm"),
        )
    ),
)
one(
    "templated",
    default_args=RETRY_SOON,
    source=PostgresSource(conn_id="shop_db", table="public.small", where="l_id <= {{ dag_run.conf['most'] }}"),
    sink=PostgresSink(conn_id="warehouse", table="raw.templated"),
    transform="SELECT l_id, amount * 2 AS doubled FROM source",
    lanes=2,
    budget=Budget(credits=2, range_rows=5_000),
)
for name, source in (
    ("followed", PostgresSource(conn_id="shop_db", table="public.followed")),
    ("followed_mysql", MySQLSource(conn_id="erp", table="followed")),
):
    one(
        name,
        default_args=RETRY_SOON,
        source=source,
        sink=PostgresSink(conn_id="warehouse", table=f"raw.{name}"),
        mode="upsert",
        consistency="catch_up",
        budget=Budget(credits=2, range_rows=2_000),
    )
one(
    "no_tables",
    default_args=RETRY_SOON,
    sink=PostgresSink(conn_id="warehouse", table="raw.no_tables"),
    backpressure_conn_id="ledger_without_tables",
)
one(
    "no_spark",
    default_args=FAIL_AT_ONCE,
    sink=PostgresSink(conn_id="warehouse", table="raw.no_spark"),
    spark_conn_id="no_spark",
)
one(
    "locked_out",
    default_args=FAIL_AT_ONCE,
    source=PostgresSource(conn_id="locked_out", table="public.small"),
    sink=PostgresSink(conn_id="warehouse", table="raw.locked_out"),
)

with DAG("mapped", schedule=None, catchup=False, default_args=RETRY_SOON, params={"most": 1_000_000}):
    for group_id, tables, target in (
        ("pattern", "public.mapped_?", "raw.{table}"),
        ("named", ("public.mapped_a", "public.gone"), "raw.{schema}_{table}"),
    ):
        hydrate(
            source=PostgresSource(conn_id="shop_db", tables=tables, where="l_id <= {{ params.most }}"),
            sink=PostgresSink(conn_id="warehouse", table=target),
            spark_conn_id="spark_connect_default",
            group_id=group_id,
        )

with DAG("told", schedule=[hydrations_of("mapped")], catchup=False):

    @task(inlets=[hydrations_of("mapped")])
    def told(*, inlet_events: Any) -> list[str]:
        """Return the names of what has come."""
        return sorted({event.asset.name for event in inlet_events[hydrations_of("mapped")]})

    told()

with DAG("mapped_operators", schedule=None, catchup=False, default_args=RETRY_SOON, params={"table": "mapped"}):
    many: list[dict[str, Any]] = [
        {
            "source": PostgresSource(conn_id="shop_db", table="public.{{ params.table }}_a", where="l_id <= 500"),
            "sink": PostgresSink(conn_id="warehouse", table="raw.part_of_{{ params.table }}_a"),
        }
    ]
    steps = [
        operator.partial(task_id=task_id, spark_conn_id="spark_connect_default").expand_kwargs(many)
        for task_id, operator in (
            ("plan_snapshot", PlanSnapshotOperator),
            ("hydrate_ranges", HydrateOperator),
            ("verify_hydration", VerifyHydrationOperator),
        )
    ]
    chain(*steps)
