"""The log that several tables of a database share, as the source of a hydration of its own: it has windows only."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.replication_slots import slot_name
from airflow_provider_backpressure.connectors.postgres.source.shared_log import SharedLog
from airflow_provider_backpressure.connectors.postgres.source.table import KIND, PostgresTable
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.messages import ReadSpec, Window
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.exceptions import SourceRefused

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.postgres.source.config import PostgresSource


class PostgresStream(PostgresTable):
    """Implements :class:`..core.ports.Source` for a log. What is asked of rows is asked of its tables' own sources."""

    def __init__(
        self, declared: "PostgresSource", endpoint: Endpoint, stream: str, tables: Sequence[QualifiedName]
    ) -> None:
        """``declared``: what may be kept of the log. ``stream``: the id of its hydration; ``tables``: see the log."""
        name = slot_name(stream)
        super().__init__(replace(declared, table=name, tables=(), columns=None), endpoint)
        self._tables = tables
        self.identity = f"postgres://{endpoint.address}/{name}"

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`: there is nothing but the log."""
        return Snapshot(
            source_identity=self.identity,
            columns=(),
            key=(),
            split=(),
            unique=False,
            frontier={},
            total=0,
            total_exact=True,
            row_bytes=0.0,
            consistency=Consistency.CATCH_UP,
            position=self._position(),
        )

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        return ReadSpec(kind=KIND, conn_id=self._declared.conn_id, columns=snapshot.columns)

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """Refuse: a window is not read again by itself."""
        raise SourceRefused(f"Windows of {self.identity} are replayed one after another, and none by itself.")

    def _open_log(self, hydration_id: str) -> SharedLog:
        return SharedLog(self._endpoint, self._tables, hydration_id, **self._limits)
