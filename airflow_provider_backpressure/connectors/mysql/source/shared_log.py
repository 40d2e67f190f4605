"""MySQL's binlog as several tables share it: windows are of all of them, and nothing is made in the server.

The binlog shows every table, so a table joins and leaves without a trace there. Its own position says from where on its
changes count, and is compared with the log's files: a binlog that was reset has transactions of the same numbers again.
"""

from airflow_provider_backpressure.connectors.mysql.binlog_position import Place
from airflow_provider_backpressure.connectors.mysql.identifiers import TableName
from airflow_provider_backpressure.connectors.mysql.source.change_log import MySQLLog
from airflow_provider_backpressure.connectors.mysql.source.checks import check_server
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import Clock
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.exceptions import InvalidDeclaration


class SharedLog(MySQLLog):
    """The log of a stream. Each of its tables says by itself from where on its changes count."""

    def __init__(self, endpoint: Endpoint, stream: str, *, clock: Clock | None = None) -> None:
        """``stream``: the id of the stream's hydration."""
        super().__init__(endpoint, stream, clock=clock)

    def begin(self) -> LogPosition:
        """See :meth:`..core.ports.ChangeLog.begin`. XA transactions are waited for where a table joins."""
        check_server(self._session)
        return self._read_place().position

    def check(self, position: LogPosition) -> None:
        """See :class:`..core.ports.ChecksPosition`: otherwise tables would be read again before the loss is found.

        Windows find transactions without a GTID: to look for them here would send the log a second time.
        """
        place = Place.from_position(position)
        self._check(place.gtids, self._read_executed())
        self._check_same_log(place)

    def storage(self, read: ReadSpec) -> TableStorage:
        """Refuse: each table has its own."""
        raise InvalidDeclaration(f"The log {self.stream} is that of several tables.")


class SharedTableLog(MySQLLog):
    """Implements :class:`..core.ports.SharedTableLog`: a table's part of a log that several share."""

    def __init__(
        self, endpoint: Endpoint, table: TableName, stream: str, *, query: str, clock: Clock | None = None
    ) -> None:
        """``stream``: the id of the stream's hydration. ``query``: see :class:`..core.ports.SharedTableLog`."""
        super().__init__(endpoint, stream, table, clock=clock)
        self.query = query

    def check(self, position: LogPosition) -> None:
        """See :meth:`..core.ports.SharedTableLog.check`. The log shows every table, unless it is another log."""
        place = Place.from_position(position)
        self._check_present(place.gtids, self._read_executed())
        self._check_same_log(place)

    def windows(
        self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
    ) -> list[LogBounds]:
        """Refuse: windows are of all tables."""
        raise InvalidDeclaration(f"{self._table} shares the log {self.stream}, which is replayed for all its tables.")
