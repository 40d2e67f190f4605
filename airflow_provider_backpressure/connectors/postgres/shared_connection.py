"""One connection of the control side, shared by threads under a lock and opened again after a loss."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.connectors.postgres.connect import CONTROL, Settings, connect
from airflow_provider_backpressure.connectors.postgres.errors import Errors, is_lost
from airflow_provider_backpressure.core.endpoints import Endpoint

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
        settings: Settings | None = None,
        application_name: str = CONTROL,
    ) -> None:
        self.endpoint = endpoint
        self._application_name = application_name
        self.errors = errors
        self._settings = settings
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    def rows(self, query: Query, params: Params | None = None, *, seconds: float | None = None) -> list[Row]:
        """Return the rows of one statement, in a transaction of its own; ``seconds`` as in :meth:`transaction`."""
        return self._run(lambda connection: connection.execute(query, params).fetchall(), seconds)

    def value(self, query: Query, params: Params | None = None) -> Any:
        """Return the only value of the first row."""
        return self.rows(query, params)[0][0]

    def first(self, text: str) -> Row | None:
        """Return the first row of a user's statement, by the protocol that takes no second one behind it."""
        return self._run(lambda connection: connection.execute(text.encode(), binary=True).fetchone())

    def transaction(self, work: Callable[[Connection], T], *, seconds: float | None = None) -> T:
        """Return what ``work`` makes of the connection inside one transaction.

        It runs a second time where the connection turns out to have been lost before, so it has to be idempotent.
        ``seconds``: how long a server may say nothing at all, as behind a link that is stuck, until it counts as away.
        """

        def run_in_transaction(connection: Connection) -> T:
            with connection.transaction():
                return work(connection)

        return self._run(run_in_transaction, seconds)

    def stream(self, query: Query) -> Iterator[Row]:
        """Yield the rows of one statement as the server finds them, over a connection of its own."""
        connection = self._connect()
        with self.errors.translate_errors(self.endpoint), connection, connection.transaction():
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
        """Release the connection; idempotent. The next statement would open a new one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _run(self, work: Callable[[Connection], T], seconds: float | None = None) -> T:
        with self._lock, self.errors.translate_errors(self.endpoint):
            used_before = self._connection is not None
            connection = self._open()
            try:
                with _hung_up(connection, seconds):
                    return work(connection)
            except psycopg.Error as error:
                if not (used_before and is_lost(error)):
                    raise
                connection = self._open()
                with _hung_up(connection, seconds):
                    return work(connection)

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> Connection:
        return connect(
            self.endpoint, errors=self.errors, application_name=self._application_name, settings=self._settings
        )


@contextmanager
def _hung_up(connection: Connection, seconds: float | None) -> Iterator[None]:
    """Hang up on a server that lets us wait for longer: neither libpq nor TCP would ever give up on it."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, _hang_up, (connection.pgconn.socket,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _hang_up(descriptor: int) -> None:
    # It is closed by then where the work has ended at this very moment.
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as own:
        own.shutdown(socket.SHUT_RDWR)
