"""The log that several tables of a database share, as the source of a hydration of its own: it has windows only."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.replication_slots import slot_name
from airflow_provider_backpressure.connectors.postgres.source.shared_log import SharedLog
from airflow_provider_backpressure.connectors.postgres.source.table import KIND, PostgresTable
from airflow_provider_backpressure.connectors.relational.shared_log_source import StreamSource
from airflow_provider_backpressure.core.endpoints import Endpoint

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.postgres.source.config import PostgresSource


class PostgresStream(StreamSource, PostgresTable):
    """Implements :class:`..core.ports.Source` for a log."""

    kind = KIND

    def __init__(
        self, declared: "PostgresSource", endpoint: Endpoint, stream: str, tables: Sequence[QualifiedName]
    ) -> None:
        """``declared``: what may be kept of the log. ``stream``: the id of its hydration; ``tables``: see the log."""
        name = slot_name(stream)
        super().__init__(replace(declared, table=name, tables=(), columns=None), endpoint)
        self._tables = tables
        self.identity = f"postgres://{endpoint.address}/{name}"

    def _open_log(self, hydration_id: str) -> SharedLog:
        return SharedLog(self._endpoint, self._tables, hydration_id, **self._limits)
