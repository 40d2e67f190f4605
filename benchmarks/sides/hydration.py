"""Ours, as the tasks of a DAG run it: Airflow's connections, plan, ledger, gate, lane, markers, checksums, statistics.

Only Airflow's own part is missing, its scheduler and the process that looks after a task.
"""

import json
import logging
import math
import os
import time
from contextlib import ExitStack
from typing import Any

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.messages import Transform
from airflow_provider_backpressure.hooks.hydration import Declaration
from airflow_provider_backpressure.operators.lane import LaneClock, ProgressLog
from airflow_provider_backpressure.runners import connect
from airflow_provider_backpressure.sinks import PostgresSink, postgres_target
from airflow_provider_backpressure.sources import PostgresSource, postgres_table
from benchmarks.sides.side import SCHEMA, Order

IDENTITY = "SELECT * FROM source"
LANES = 1
LOADED = (connect, postgres_table, postgres_target)
"""What is otherwise loaded with the first use: loading libraries is no part of a session's start."""


class Hydration:
    """A hydration's plan and its lane. ``transform``: SQL by which the rows take the frame path."""

    def __init__(self, order: Order, *, transform: str | None = None) -> None:
        self._order, self._sql = order, transform
        self._stack = ExitStack()

    def open(self) -> None:
        """Open the ports and the warm session: our code goes to Spark, and a first task runs there."""
        _connect(self._order)

        order = self._order
        declaration = Declaration(
            source=PostgresSource(conn_id="benchmark_source", table=f"public.{order.table}"),
            sink=PostgresSink(conn_id="benchmark_sink", table=f"{SCHEMA}.{order.table}"),
            spark_conn_id="benchmark_spark",
            budget=Budget(credits=order.credits, range_rows=order.range_rows),
            transform=Transform(sql=self._sql) if self._sql else None,
            owner="benchmark",
        )
        self._opened = self._stack.enter_context(declaration.open())
        self._opened.runner.probe()

    def run(self) -> dict[str, Any]:
        """Plan anew, as the first task of the DAG does, and drain the ranges, as its lane does."""

        opened = self._opened
        began = time.perf_counter()
        planned = opened.planner().plan(restart=True)
        plan_seconds = time.perf_counter() - began
        progress = ProgressLog(ledger=opened.ledger, hydration_id=planned.hydration.id, log=logging.getLogger(__name__))
        result = opened.hydrator(
            lane="benchmark",
            share=math.ceil(self._order.credits / LANES),
            inline_wait=settings.inline_wait(),
            clock=LaneClock(),
            on_commit=progress.committed,
        ).run()
        progress.write()
        if result.committed != planned.ranges:
            raise RuntimeError(f"{result.committed} of {planned.ranges} ranges were committed: {result.outcome.value}.")
        return {"path": planned.plan.path, "ranges": planned.ranges, "plan_seconds": plan_seconds}

    def close(self) -> None:
        """Close the ports."""
        self._stack.close()


def _connect(order: Order) -> None:
    """Give Airflow's connections by environment, which a process sets for itself and shows to nobody."""
    databases = {"benchmark_source": order.source, "benchmark_sink": order.sink, "backpressure_default": order.ledger}
    login = {"host": order.host, "port": order.port, "login": order.user, "password": order.password}
    for conn_id, name in databases.items():
        kind = "backpressure" if conn_id == "backpressure_default" else "postgres"
        os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps({"conn_type": kind, "schema": name, **login})
    host, _, port = order.remote.removeprefix("sc://").rpartition(":")
    spark = {"conn_type": "spark_connect", "host": host, "port": int(port), "extra": {"ui_url": order.ui_url}}
    os.environ["AIRFLOW_CONN_BENCHMARK_SPARK"] = json.dumps(spark)
