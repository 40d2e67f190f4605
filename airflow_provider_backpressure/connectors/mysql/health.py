"""The health of a MySQL server: running threads, how far it is behind as a replica, and queries of the user's."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from pymysql.cursors import DictCursor

from airflow_provider_backpressure.connectors.mysql.connect import CONTROL, Connection, connect
from airflow_provider_backpressure.connectors.mysql.errors import Errors
from airflow_provider_backpressure.connectors.mysql.server_versions import is_mariadb, version
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.connectors.relational.user_queries import to_figure
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import (
    Figure,
    Query,
    ReplicaLag,
    ThreadsRunning,
    Watched,
)
from airflow_provider_backpressure.exceptions import BackpressureError

GIVES = (ThreadsRunning, ReplicaLag, Query)
REPLICA = (8, 0, 22)
"""Version since which MySQL speaks of replicas."""
BEHIND = ("Seconds_Behind_Source", "Seconds_Behind_Master")


class MySQLHealth:
    """Implements :class:`..core.ports.Health`: one statement for each kind of figure, over one connection."""

    def __init__(self, endpoint: Endpoint, watched: Sequence[Watched], *, errors: Errors, seconds: float) -> None:
        for each in watched:
            if not isinstance(each, GIVES) or (isinstance(each, ReplicaLag) and each.seconds is None):
                what = "ReplicaLag in bytes" if isinstance(each, ReplicaLag) else type(each).__name__
                raise errors.refused(f"MySQL has no {what}: it gives ThreadsRunning, ReplicaLag in seconds, and Query.")
        self._endpoint = replace(endpoint, options={**endpoint.options, "connect_timeout": str(max(1, ceil(seconds)))})
        self._watched, self._errors, self._seconds = tuple(watched), errors, seconds
        self._connection: Connection | None = None

    @property
    def key(self) -> Hashable:
        """See :attr:`..core.ports.Health.key`."""
        at = self._endpoint
        return "mysql", at.address, at.user, hash(at.password), at.conn_id

    def look(self) -> dict[Watched, Figure | BackpressureError]:
        self._open()
        found: dict[Watched, Figure | BackpressureError] = {}
        for each in self._watched:
            try:
                found[each] = self._figure(each)
            except (self._errors.refused, self._errors.unavailable) as error:
                found[each] = error
        return found

    def close(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None

    def _figure(self, watched: Watched) -> Figure:
        match watched:
            case ThreadsRunning():
                # The look itself is one of them.
                running = int(self._rows("SHOW GLOBAL STATUS LIKE 'Threads_running'")[0]["Value"]) - 1
                return Figure(value=max(0, running))
            case ReplicaLag():
                return self._lag()
            case Query():
                rows = self._rows(watched.sql)
                row = tuple(rows[0].values()) if rows else None
                return to_figure(watched, row, refused=self._errors.refused, unavailable=self._errors.unavailable)
        raise AssertionError(watched)

    def _lag(self) -> Figure:
        connection = self._open()
        new = is_mariadb(connection) or version(connection) >= REPLICA
        channels = self._rows("SHOW REPLICA STATUS" if new else "SHOW SLAVE STATUS")
        at = where(self._endpoint)
        if not channels:
            raise self._errors.refused(
                f"MySQL at {at} is no replica, and a server does not report how far others are behind it: "
                "watch a replica, or leave ReplicaLag out."
            )
        behind = [next((channel[name] for name in BEHIND if name in channel), None) for channel in channels]
        if None in behind:
            raise self._errors.unavailable(f"Replication at MySQL at {at} stands still, so its lag is not known.")
        return Figure(value=max(float(each) for each in behind if each is not None))

    def _rows(self, statement: str) -> list[dict[str, Any]]:
        connection = self._open()
        try:
            with self._errors.translate_errors(self._endpoint), connection.cursor(DictCursor) as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        except self._errors.unavailable:
            # After a time-out its answer could still come, as that of the next statement.
            self.close()
            raise

    def _open(self) -> Connection:
        if self._connection is None:
            connection = connect(self._endpoint, errors=self._errors, name=CONTROL)
            # The server ends what takes too long; a server that is frozen is given up by the socket.
            connection._read_timeout = connection._write_timeout = self._seconds + 1
            limit = "max_statement_time = {:g}" if is_mariadb(connection) else "max_execution_time = {:.0f}"
            span = self._seconds if is_mariadb(connection) else self._seconds * 1000
            try:
                with self._errors.translate_errors(self._endpoint), connection.cursor() as cursor:
                    cursor.execute(f"SET SESSION {limit.format(span)}")
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection
