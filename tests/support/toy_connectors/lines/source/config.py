"""The declaration of a text file as a source."""

from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_backpressure.connectors.lines.source.table import LinesTable
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source


@dataclass(frozen=True, kw_only=True)
class LinesSource:
    """Each line of a text file is a row: its number, and its text."""

    conn_types: ClassVar[tuple[str, ...]] = ("fs",)
    consistencies: ClassVar[tuple[str, ...]] = (Consistency.STATIC,)
    templated: ClassVar[tuple[str, ...]] = ("path",)

    conn_id: str
    path: str

    def open(self, endpoint: Endpoint) -> Source:
        """Open the file."""
        return LinesTable(conn_id=self.conn_id, path=self.path)
