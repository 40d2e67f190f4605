"""Where a log that tables of Spark's catalog share is replayed: a table without rows, whose commits have the marks.

Each window is committed to its tables one by one, and here when all of them have it. So the mark of a window says that
no table lacks it, and only then the source lets its log go.
"""

import json
from collections.abc import Sequence

from airflow_provider_backpressure.connectors.lake.sink.spark_target import KIND, SparkTableTarget
from airflow_provider_backpressure.core.config import Log, Mode
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec

COLUMNS = (Column(name="backpressure", type="text"),)
"""A table has to have a column; this one never has a value."""


class SparkStreamTarget(SparkTableTarget):
    """Implements :class:`..core.ports.sink.Sink` for a stream: it fences and marks its windows as a table's are."""

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str], log: Log | None = None) -> WriteSpec:
        """See :meth:`..core.ports.sink.Sink.fit`: what is written is said by each table of a window."""
        return WriteSpec(
            kind=KIND,
            conn_id=self._conn_id,
            target=self._name,
            columns=(),
            mode=Mode.UPSERT.value,
            key=(),
            plan_table=json.dumps({"format": self._wanted, "follows": True}),
            commit_table="",
            fence=self._name,
            frontier_table="",
            ordered=True,
            tasks=self._tasks,
        )

    def prepare(self, write: WriteSpec) -> None:
        """See :meth:`..core.ports.sink.Sink.prepare`."""
        with self._errors():
            there = self._table.schema()
            self._table.check(there)
            if there is None:
                self._table.create(COLUMNS)

    def holds_rows(self) -> bool:
        return False

    def erase(self) -> None:
        """See :meth:`..core.ports.sink.Sink.erase`. The table is nobody else's."""
        with self._errors():
            self._table.run(f"DROP TABLE IF EXISTS {self._table.quoted}")
