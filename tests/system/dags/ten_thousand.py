"""Ten thousand ranges through an in-memory runner: what Airflow and the ledger alone take for them."""

import os
import pickle
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk import DAG

from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports.sink import Marker, PlanRow
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice
from airflow_provider_backpressure.hooks import spark_and_yarn
from airflow_provider_backpressure.task_groups import hydrate
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource

RANGES = 10_000
KEPT = Path(os.environ.get("AIRFLOW_HOME", tempfile.gettempdir())) / "ten_thousand.pickle"


class KeptSink(MemorySink):
    """A sink whose plan and markers outlive the task that made them, as those of a database do: in a file."""

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        """Begin the file with the plan."""
        epoch = super().begin(plan, clear=clear)
        KEPT.write_bytes(pickle.dumps(plan))
        return epoch

    def commit(self, spec: RangeSpec, piece: Slice, keys: Sequence[int]) -> Marker:
        """Add the marker to the file."""
        marker = super().commit(spec, piece, keys)
        with KEPT.open("ab") as kept:
            pickle.dump(marker, kept)
        return marker

    def epoch(self, plan_id: str) -> int | None:
        """See ``Sink.epoch``."""
        self._read()
        return super().epoch(plan_id)

    def held(self) -> PlanRow | None:
        """See ``Sink.held``."""
        self._read()
        return super().held()

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        """See ``Sink.markers``."""
        self._read()
        return super().markers(plan_id, slice_ids)

    def _read(self) -> None:
        """Take in what an earlier task has kept."""
        if self.plan is not None or not KEPT.exists():
            return
        with KEPT.open("rb") as kept, suppress(EOFError):
            self.plan, self.last_epoch = pickle.load(kept), 1
            while True:
                marker = pickle.load(kept)
                self._markers[marker.plan_id, marker.slice_id] = marker


SOURCE, SINK = MemorySource(keys=range(RANGES)), KeptSink()
spark_and_yarn.RUNNERS["memory"] = lambda request: MemoryRunner(source=SOURCE, sink=SINK)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """An in-memory table."""

    conn_id: str
    table: str
    key: tuple[str, ...] | None = None
    conn_types: tuple[str, ...] = ("postgres",)
    modes: ClassVar[tuple[Mode, ...]] = tuple(Mode)
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
