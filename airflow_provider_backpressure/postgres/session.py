"""One connection of the control side, shared by threads under a lock and made anew after a loss."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.postgres.connecting import CONTROL, connect
from airflow_provider_backpressure.postgres.errors import Errors, is_lost

T = TypeVar("T")
Query = sql.SQL | sql.Composed
Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]

STREAM_ROWS = 10_000


class Session:
    """Runs statements on one connection, opened at the first. Every psycopg error leaves as one of ``errors``."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        errors: Errors,
        settings: Mapping[str, str] | None = None,
        application_name: str = CONTROL,
    ) -> None:
        self.endpoint = endpoint
        self._application_name = application_name
        self.errors = errors
        self._settings = settings
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    def rows(self, query: Query, params: Params | None = None) -> list[Row]:
        """Return the rows of one statement, in a transaction of its own."""
        return self._run(lambda connection: connection.execute(query, params).fetchall())

    def value(self, query: Query, params: Params | None = None) -> Any:
        """Return the only value of the first row."""
        return self.rows(query, params)[0][0]

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """Return what ``work`` makes of the connection inside one transaction.

        It runs a second time where the connection turns out to have been lost before, so it has to be idempotent.
        """

        def transacted(connection: Connection) -> T:
            with connection.transaction():
                return work(connection)

        return self._run(transacted)

    def stream(self, query: Query) -> Iterator[Row]:
        """Yield the rows of one statement as the server finds them, over a connection of its own."""
        connection = self._connect()
        with self.errors.translated(self.endpoint), connection, connection.transaction():
            # Every row will be fetched: a plan that is quick for the first ones only would be the wrong one.
            connection.execute(sql.SQL("SET LOCAL cursor_tuple_fraction = 1"))
            with connection.cursor(name="backpressure_stream") as cursor:
                cursor.itersize = STREAM_ROWS
                cursor.execute(query)
                yield from cursor

    @property
    def server_version(self) -> int:
        """The server's version as libpq has it, 180006 for 18.6."""
        return self._run(lambda connection: connection.info.server_version)

    def close(self) -> None:
        """Give the connection back; idempotent. The next statement would open one anew."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._lock, self.errors.translated(self.endpoint):
            used_before = self._connection is not None
            try:
                return work(self._opened())
            except psycopg.Error as error:
                if not (used_before and is_lost(error)):
                    raise
                return work(self._opened())

    def _opened(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> Connection:
        return connect(
            self.endpoint, errors=self.errors, application_name=self._application_name, settings=self._settings
        )
