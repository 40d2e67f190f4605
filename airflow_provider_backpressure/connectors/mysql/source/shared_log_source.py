"""The binlog that several tables of a server share, as the source of a hydration of its own: it has windows only."""

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_backpressure.connectors.mysql.source.shared_log import SharedLog
from airflow_provider_backpressure.connectors.mysql.source.table import KIND, MySQLTable
from airflow_provider_backpressure.connectors.relational.shared_log_source import StreamSource
from airflow_provider_backpressure.core.endpoints import Endpoint

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.mysql.source.config import MySQLSource


class MySQLStream(StreamSource, MySQLTable):
    """Implements :class:`..core.ports.Source` for a log."""

    kind = KIND

    def __init__(self, declared: "MySQLSource", endpoint: Endpoint, stream: str) -> None:
        """``stream``: the id of its hydration."""
        name = f"backpressure_{stream}"
        # The log is the server's: it is in no database.
        super().__init__(replace(declared, table=f"{name}.{name}", tables=(), columns=None), endpoint)
        self.identity = f"mysql://{endpoint.host}:{endpoint.port}/{name}"

    def _open_log(self, hydration_id: str) -> SharedLog:
        return SharedLog(self._endpoint, hydration_id)
