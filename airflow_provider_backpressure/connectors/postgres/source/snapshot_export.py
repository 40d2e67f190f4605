"""The keeper of an exported snapshot: one transaction that stays open for as long as ranges are read in it."""

import threading

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import READ_ONLY, connect
from airflow_provider_backpressure.connectors.postgres.errors import Errors, where, words
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SnapshotLost

NAME = "backpressure keeper"
_SETTINGS = {
    **READ_ONLY,
    # Servers end transactions that do nothing; this one does nothing on purpose.
    "idle_in_transaction_session_timeout": "0",
    "statement_timeout": "0",
}
_TRANSACTION_TIMEOUT_SINCE = 170000
CANCEL_SECONDS = 5.0
"""Longest wait for the server to end a count that nobody needs any more."""


class SnapshotKeeper:
    """Implements :class:`..core.ports.Keeper`. The snapshot is taken when the first statement runs: at once.

    ``rows``: the statement that counts what the plan's ranges hold.
    """

    def __init__(self, endpoint: Endpoint, *, errors: Errors, rows: sql.Composable) -> None:
        self._endpoint, self._errors, self._rows = endpoint, errors, rows
        self._lock = threading.Lock()
        self._counting: psycopg.Connection | None = None
        self._connection = self._begun()
        with errors.translate_errors(endpoint):
            self.snapshot = str(self._one("SELECT pg_export_snapshot()"))

    def check(self) -> None:
        """See :meth:`..core.ports.Keeper.check`."""
        try:
            with self._lock:
                self._one("SELECT 1")
        except psycopg.Error as error:
            raise SnapshotLost(
                f"The snapshot of {where(self._endpoint)} was lost with the connection that kept it: {words(error)}."
            ) from error

    def count(self) -> int | None:
        """See :meth:`..core.ports.Keeper.count`. Over a connection of its own, which :meth:`close` ends."""
        self._counting = self._begun()
        with self._counting as connection, self._errors.translate_errors(self._endpoint):
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self.snapshot)))
            row = connection.execute(self._rows.as_string(None).encode()).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """See :meth:`..core.ports.Keeper.close`."""
        if self._counting is not None and not self._counting.closed:
            self._counting.cancel_safe(timeout=CANCEL_SECONDS)
        self._connection.close()

    def _begun(self) -> psycopg.Connection:
        """Return a new connection in a transaction that may last."""
        connection = connect(self._endpoint, errors=self._errors, application_name=NAME, settings=_SETTINGS)
        with self._errors.translate_errors(self._endpoint):
            if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
                connection.execute("SET transaction_timeout = 0")
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return connection

    def _one(self, query: str) -> object:
        row = self._connection.execute(query.encode()).fetchone()
        return row[0] if row else None
