"""Ours, as the tasks of a DAG run it: Airflow's connections, plan, ledger, gate, lane, markers, checksums, statistics.

Only Airflow's own part is missing, its scheduler and the process that looks after a task.
"""

import json
import logging
import math
import os
import time
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from typing import Any

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.core.config import Budget, Consistency
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.planning.range_size import ASSUMED_ROWS_PER_SECOND
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.exceptions import SnapshotLost
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.operators.lane_progress import LaneClock, ProgressLog
from airflow_provider_backpressure.sinks import ParquetSink, PostgresSink
from airflow_provider_backpressure.sources import KafkaSource, MySQLSource, PostgresSource
from benchmarks.sides.side import SCHEMA, Login, Order

log = logging.getLogger(__name__)

IDENTITY = "SELECT * FROM source"
LANES = 1
SNAPSHOTS = 3
"""Tries to read everything in one snapshot."""
SOURCE, SINK, SPARK = "benchmark_source", "benchmark_sink", "benchmark_spark"
"""Airflow's connections."""
LOADED = {
    PostgresSource: "connectors.postgres.source.table",
    MySQLSource: "connectors.mysql.source.table",
    KafkaSource: "connectors.kafka.source.topic",
    PostgresSink: "connectors.postgres.sink.target",
    ParquetSink: "connectors.lake.sink.target",
}
"""What is otherwise loaded with the first use: loading libraries is no part of a session's start."""


def declared(name: str, order: Order) -> Declaration:
    """Return what the DAG of a side declares."""
    source: Any = PostgresSource(conn_id=SOURCE, table=f"public.{order.table}")
    sink: Any = PostgresSink(conn_id=SINK, table=f"{SCHEMA}.{order.table}")
    consistency = None
    match name:
        case "copy" | "frame":
            pass
        case "copy-static":
            consistency = Consistency.STATIC
        case "kafka":
            source = KafkaSource(conn_id=SOURCE, topic=order.table)
        case "mysql":
            source = MySQLSource(conn_id=SOURCE, table=order.table)
        case "parquet":
            sink = ParquetSink(path=order.folder)
        case _:
            raise ValueError(f"There is no side {name}.")
    return Declaration(
        source=source,
        sink=sink,
        spark_conn_id=SPARK,
        budget=budget(order),
        transform=Transform(sql=IDENTITY) if name == "frame" else None,
        consistency=consistency,
        owner="benchmark",
    )


def budget(order: Order) -> Budget:
    """Return a budget in which rows alone say how large a range is."""
    least = Budget()
    return Budget(
        credits=order.credits,
        range_rows=order.range_rows,
        range_bytes=max(least.range_bytes, order.range_rows * 1024),
        range_seconds=max(least.range_seconds, order.range_rows / ASSUMED_ROWS_PER_SECOND),
    )


class Hydration:
    """A hydration's plan and its lane."""

    def __init__(self, order: Order, declaration: Declaration) -> None:
        self._order, self._declaration = order, declaration
        self._stack = ExitStack()
        rooms = ("runners.connect_runner", LOADED[type(declaration.source)], LOADED[type(declaration.sink)])
        for name in rooms:
            import_module(f"airflow_provider_backpressure.{name}")

    def open(self) -> None:
        """Open the ports and the warm session: our code goes to Spark, and a first task runs there."""
        for conn_id, fields in _connections(self._order).items():
            # By environment, which a process sets for itself and shows to nobody.
            os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(fields)
        self._opened = self._stack.enter_context(self._declaration.open())
        self._opened.runner.probe()

    def run(self) -> dict[str, Any]:
        """Plan, as the first task of the DAG does, and drain the ranges, as its lane does."""
        opened = self._opened
        began = time.perf_counter()
        planned = opened.planner().plan(restart=not self._order.resumes)
        plan_seconds = time.perf_counter() - began
        progress = ProgressLog(
            ledger=opened.ledger,
            hydration_id=planned.hydration.id,
            log=log,
        )
        committed = self._drained(progress)
        progress.write()
        if not self._order.resumes and committed != planned.ranges:
            raise RuntimeError(f"{committed} of {planned.ranges} ranges were committed.")
        return {
            "path": planned.plan.path,
            "ranges": planned.ranges,
            "committed": committed,
            "plan_seconds": plan_seconds,
        }

    def _drained(self, progress: ProgressLog) -> int:
        """Return how many ranges were committed, once none is left. A plan whose snapshot is lost is made again."""
        for _ in range(SNAPSHOTS):
            hydrator = self._opened.hydrator(
                lane="benchmark",
                share=math.ceil(self._order.credits / LANES),
                inline_wait=settings.inline_wait(),
                clock=LaneClock(),
                on_commit=progress.log_if_due,
            )
            try:
                result = hydrator.run()
            except SnapshotLost as error:
                log.warning("%s", error)
                self._opened.close_plan()
                continue
            if result.outcome is not Outcome.DONE:
                raise RuntimeError(f"The gate stayed closed after {result.committed} ranges.")
            return result.committed
        raise RuntimeError(f"{SNAPSHOTS} snapshots were lost.")

    def close(self) -> None:
        """Close the ports."""
        self._stack.close()


def _connections(order: Order) -> dict[str, dict[str, Any]]:
    """Return Airflow's connections by their ids."""
    host, _, port = order.remote.removeprefix("sc://").rpartition(":")
    return {
        SOURCE: _source(order),
        SINK: _database("postgres", order.sink_at or order.postgres, order.sink),
        SPARK: {"conn_type": "spark_connect", "host": host, "port": int(port), "extra": {"ui_url": order.ui_url}},
        "backpressure_default": _database("backpressure", order.postgres, order.ledger),
    }


def _source(order: Order) -> dict[str, Any]:
    if order.brokers:
        return {"conn_type": "kafka", "extra": {"bootstrap.servers": order.brokers}}
    if order.mysql:
        return _database("mysql", order.mysql, order.source)
    return _database("postgres", order.postgres, order.source)


def _database(kind: str, login: Login, name: str) -> dict[str, Any]:
    told = asdict(login)
    return {"conn_type": kind, "schema": name, "login": told.pop("user"), **told}
