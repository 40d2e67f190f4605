"""The declaration of a MySQL table as a source. Knows no connection and imports no driver."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from airflow_provider_backpressure.connectors.relational.config import TableSource, make_stream
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.table_selection import TableName
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused

ZERO_DATES = ("refuse", "null")


@dataclass(frozen=True, kw_only=True)
class MySQLSource(TableSource):
    """A table or view, or a part of it. Raises :class:`InvalidDeclaration`.

    ``table``: ``database.table``, or ``table`` in the connection's schema; a part that needs it is in backticks.
    """

    conn_types: ClassVar[tuple[str, ...]] = ("mysql",)
    """Types that the Airflow connection may be of."""
    consistencies: ClassVar[tuple[str, ...]] = (Consistency.STATIC, Consistency.CATCH_UP)
    """What may be asked for, the default first: MySQL has no snapshot that several connections could read in."""

    whole: bool = False
    """Read a table without a key in one range, whatever its size, streamed."""
    zero_dates: str = "refuse"
    """What becomes of dates like 0000-00-00 and 2024-00-00: ``refuse`` the range by the column's name, or ``null``."""

    def __post_init__(self) -> None:
        """See :meth:`TableSource.__post_init__`; a table is read whole or cut."""
        super().__post_init__()
        if self.zero_dates not in ZERO_DATES:
            raise InvalidDeclaration(f"MySQLSource.zero_dates must be 'refuse' or 'null', not {self.zero_dates!r}.")
        if self.whole and self.split_column is not None:
            raise InvalidDeclaration("MySQLSource reads a table whole or by a split_column, not both.")

    def parse_name(self, table: str) -> TableName:
        """Return a table's names; :class:`InvalidDeclaration` for what is none."""
        from airflow_provider_backpressure.connectors.mysql.identifiers import parts

        database, name = parts(table)
        return TableName(schema=database, name=name, spelled=table)

    def found(self, endpoint: Endpoint) -> list[TableName]:
        """Return the tables that the pattern meets and the user may see."""
        self._check_installed()
        from airflow_provider_backpressure.connectors.mysql.source.table import found

        return found(endpoint, str(self.tables))

    def open(self, endpoint: Endpoint) -> Source:
        """Return the source at this endpoint; it connects at the first question. Names are checked here."""
        self._check_installed()
        from airflow_provider_backpressure.connectors.mysql.source.table import MySQLTable

        return MySQLTable(self, endpoint)

    def declare_stream(self, stream: str, tables: Sequence[str]) -> "MySQLStreamSource":
        """Return the declaration of the log that ``tables`` of this server share. ``stream``: its hydration's id."""
        return make_stream(self, MySQLStreamSource, stream, tables)

    def open_stream(self, endpoint: Endpoint, stream: str) -> Source:
        """Return the log of this server. ``stream``: the id of its hydration."""
        self._check_installed()
        from airflow_provider_backpressure.connectors.mysql.source.shared_log_source import MySQLStream

        return MySQLStream(self, endpoint, stream)

    @staticmethod
    def _check_installed() -> None:
        if find_spec("pymysql") is None:
            raise SourceRefused(
                "MySQLSource needs the Python package pymysql: `pip install 'airflow-provider-backpressure[mysql]'`."
            )


@dataclass(frozen=True, kw_only=True)
class MySQLStreamSource(MySQLSource):
    """The log that several tables share, which is a hydration of its own. Tasks declare it, DAGs do not."""

    stream: str = ""
    """The id of its hydration."""
    members: tuple[str, ...] = ()
    """Tables with which the log begins."""

    def open(self, endpoint: Endpoint) -> Source:
        """Return the log at this endpoint; it connects at the first question."""
        return self.open_stream(endpoint, self.stream)
