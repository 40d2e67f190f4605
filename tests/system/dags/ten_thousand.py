"""Ten thousand ranges through an in-memory runner: what Airflow and the ledger alone take for them."""

from dataclasses import dataclass
from typing import Any

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.hooks import spark
from airflow_provider_backpressure.task_groups import hydrate
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource

RANGES = 10_000


class ForgetfulSink(MemorySink):
    """A sink whose rows live in one task's process: the next task finds its plan, but not its rows."""

    def epoch(self, plan_id: str) -> int | None:
        """Every plan is the first."""
        return 1


SOURCE, SINK = MemorySource(keys=range(RANGES)), ForgetfulSink()
spark.RUNNERS["memory"] = lambda request: MemoryRunner(source=SOURCE, sink=SINK)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """An in-memory table."""

    conn_id: str
    table: str
    key: tuple[str, ...] | None = None
    conn_types: tuple[str, ...] = ("postgres",)
    consistencies: tuple[str, ...] = ("static",)

    def open(self, endpoint: Endpoint) -> Any:
        """Return this process' own."""
        return SOURCE if self.table == "source" else SINK


with DAG("ten_thousand", schedule=None, catchup=False):
    hydrate(
        source=Declared(conn_id="shop_db", table="source"),
        sink=Declared(conn_id="warehouse", table="sink"),
        spark_conn_id="memory",
        budget=Budget(range_rows=1),
        verify=False,
        group_id="hydrate",
    )
