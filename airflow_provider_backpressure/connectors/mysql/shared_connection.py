"""One connection of the control side, shared by threads under a lock and opened again after a loss."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pymysql

from airflow_provider_backpressure.connectors.mysql.connect import CONTROL, Connection, connect, is_mariadb
from airflow_provider_backpressure.connectors.mysql.errors import Errors, is_lost
from airflow_provider_backpressure.core.endpoints import Endpoint

T = TypeVar("T")
Row = tuple[Any, ...]


class Session:
    """Runs statements on one connection, opened at the first. Every error of the driver leaves as one of ``errors``."""

    def __init__(self, endpoint: Endpoint, *, errors: Errors) -> None:
        self.endpoint = endpoint
        self.errors = errors
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    def rows(self, query: str) -> list[Row]:
        """Return the rows of one statement."""
        with self.errors.translate_errors(self.endpoint):
            return self.raw(query)

    def raw(self, query: str) -> list[Row]:
        """Return the rows of one statement; errors of the driver stay what they are."""

        def ask(connection: Connection) -> list[Row]:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return list(cursor.fetchall())

        return self._run(ask)

    def value(self, query: str) -> Any:
        """Return the only value of the first row."""
        return self.rows(query)[0][0]

    @property
    def mariadb(self) -> bool:
        """Whether it is MariaDB in MySQL's place."""
        return self._run(is_mariadb)

    def close(self) -> None:
        """Release the connection; idempotent. The next statement would open a new one."""
        with self._lock:
            if self._connection is not None and self._connection.open:
                self._connection.close()
            self._connection = None

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._lock:
            used_before = self._connection is not None
            try:
                return work(self._open())
            except (pymysql.Error, OSError) as error:
                if not is_lost(error):
                    raise
                self.close()
                if not used_before:
                    raise
                return work(self._open())

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self.endpoint, errors=self.errors, name=CONTROL)
        return self._connection
