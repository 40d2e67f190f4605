"""A hydration whose parts all live in memory, reached through operators and connections as the real ones are."""

import itertools
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_backpressure import base_operator as task
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.hooks import backpressure, spark_and_yarn
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource

CONNECTIONS = {
    "shop_db": {"conn_type": "postgres", "host": "shop", "schema": "shop", "login": "reader", "password": "secret1"},
    "warehouse": {"conn_type": "postgres", "host": "dwh", "schema": "dwh", "login": "writer", "password": "secret2"},
    "spark": {"conn_type": "spark_connect", "host": "spark", "port": 15002},
    "backpressure_default": {"conn_type": "backpressure", "extra": {"path": "/tmp/ledger.sqlite"}},
}
TABLES: dict[str, Any] = {}
"""Opened sources and sinks by table name: declarations are values and hold none."""


@dataclass(frozen=True, kw_only=True)
class MemoryTable:
    """Declares an in-memory source or sink."""

    conn_id: str
    table: str
    key: tuple[str, ...] | None = None
    where: str | None = None
    conn_types: tuple[str, ...] = ("postgres",)
    modes: ClassVar[tuple[Mode, ...]] = tuple(Mode)
    consistencies: tuple[str, ...] = ("static", "snapshot")

    def open(self, endpoint: Endpoint) -> Any:
        """Return what the test has put there."""
        assert endpoint.conn_id == self.conn_id
        return TABLES[self.table]


@dataclass(kw_only=True)
class World:
    """Everything of one in-memory hydration."""

    rows: int = 100
    budget: Budget = field(default_factory=lambda: Budget(credits=3, range_rows=10))
    running: set[str] = field(default_factory=set)
    """Runs that Airflow has under way, beside the one that a test executes."""
    source: Source = field(init=False)
    sink: Sink = field(init=False)

    def __post_init__(self) -> None:
        """Make the parts."""
        self.source = MemorySource(keys=range(self.rows))
        self.sink = MemorySink()
        self.runner = MemoryRunner(source=self.source, sink=self.sink)
        self.ledger = MemoryLedger()
        TABLES.update({"public.t": self.source, "raw.t": self.sink})

    def install(self, monkeypatch: pytest.MonkeyPatch, **connections: dict[str, Any]) -> None:
        """Let Airflow's connections lead to these parts."""
        for conn_id, values in {**CONNECTIONS, **connections}.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(values))
        monkeypatch.setitem(spark_and_yarn.RUNNERS, "spark_connect", lambda request: self.runner)
        monkeypatch.setattr(backpressure, "open_ledger", lambda address: self.ledger)
        monkeypatch.setattr(task, "is_running", lambda dag_id, run_id: run_id in self.running)
        monkeypatch.setenv("AIRFLOW__BACKPRESSURE__INLINE_WAIT", "0.02")
        monkeypatch.setenv("AIRFLOW__BACKPRESSURE__POLL_INTERVAL", "0.01")

    @property
    def flow(self) -> dict[str, Any]:
        """Arguments of every operator."""
        return {
            "source": MemoryTable(conn_id="shop_db", table="public.t"),
            "sink": MemoryTable(conn_id="warehouse", table="raw.t"),
            "spark_conn_id": "spark",
            "budget": self.budget,
        }

    @property
    def hydration(self) -> Hydration:
        """The only hydration of the ledger."""
        (found,) = self.ledger.hydrations()
        return found

    @property
    def plan(self) -> Plan:
        """Its plan."""
        plan = self.hydration.plan
        assert plan is not None
        return plan


class Store(dict[str, Any]):
    """Stands for a state store of Airflow's: get, set, and an accessor per asset."""

    set = dict.__setitem__

    def __missing__(self, key: Any) -> "Store":
        self[key] = Store()
        return self[key]  # type: ignore[no-any-return]


def context(
    *, dag_id: str = "dag", run_id: str = "run", task_id: str = "task", map_index: int = -1, conf: Any = None
) -> Any:
    """Return what a task is given by Airflow, as far as it is used here."""
    pushed: dict[str, Any] = {}
    instance = SimpleNamespace(
        dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index, pushed=pushed, xcom_push=pushed.__setitem__
    )
    return {
        "ti": instance,
        "dag_run": SimpleNamespace(conf=conf),
        "asset_state_store": Store(),
        "outlet_events": OutletEventAccessors(),
    }


_numbers = itertools.count()


def task_id() -> str:
    """Return a task id that no other task of the test has."""
    return f"task_{next(_numbers)}"
