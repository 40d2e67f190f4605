"""Where a log that tables share is replayed: a row among the plans of its tables, and a frontier, but no table."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_backpressure.connectors.postgres.connect import Connection
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.replication_slots import slot_name
from airflow_provider_backpressure.connectors.postgres.sink.plan_row import mark_consistent
from airflow_provider_backpressure.connectors.postgres.sink.target import KIND, PostgresTarget
from airflow_provider_backpressure.core.config import Log, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.postgres.sink.config import PostgresSink


class PostgresStreamTarget(PostgresTarget):
    """Implements :class:`..core.ports.sink.Sink` for a stream: it fences and marks its windows as a table's are."""

    def __init__(self, declared: "PostgresSink", endpoint: Endpoint, stream: str) -> None:
        """``declared``: one of the tables' targets, beside which the plan table is. ``stream``: id of its hydration."""
        schema = declared.system_schema or QualifiedName.parse(declared.table).schema
        name = QualifiedName(schema=schema, name=slot_name(stream))
        super().__init__(replace(declared, table=str(name), key=None, quarantine=None), endpoint)

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str], log: Log | None = None) -> WriteSpec:
        """See :meth:`..core.ports.sink.Sink.fit`: what is written is said by each table of a window."""
        return WriteSpec(
            kind=KIND,
            conn_id=self._declared.conn_id,
            target="",
            columns=(),
            mode=Mode.UPSERT.value,
            key=(),
            plan_table=self._plans.name.sql,
            commit_table=self._commits.name.sql,
            fence=self._fence,
            frontier_table=self._frontiers.name.sql,
            ordered=True,
        )

    def holds_rows(self) -> bool:
        return False

    def complete(self, plan: Plan) -> None:
        """See :meth:`..core.ports.sink.Sink.complete`. Each table's own plan says whether that table is consistent."""
        self._session.transaction(lambda each: mark_consistent(each, self._plans, fence=self._fence, plan=plan))

    def _create(self, connection: Connection, write: WriteSpec) -> None:
        """Create nothing."""
