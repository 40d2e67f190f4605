"""The connection that keeps a snapshot open, and the one that counts in it."""

import threading

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import READ_ONLY, connect, put_idle, take_idle
from airflow_provider_backpressure.connectors.postgres.errors import Errors, words
from airflow_provider_backpressure.connectors.postgres.tasks.exported_snapshot import export_snapshot, import_snapshot
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.transaction_snapshot import TransactionSnapshot
from airflow_provider_backpressure.exceptions import SnapshotLost

NAME = "backpressure keeper"
_EXPORT_SETTINGS = {
    **READ_ONLY,
    # Servers end transactions that do nothing; this one does nothing on purpose.
    "idle_in_transaction_session_timeout": "0",
}
CANCEL_SECONDS = 5.0
"""Longest wait for the server to end a count that nobody needs any more."""


class SnapshotKeeper:
    """Implements :class:`..core.ports.Keeper`. The snapshot is taken when the first statement runs: at once.

    ``rows``: the statement that counts what the plan's ranges hold.
    """

    def __init__(self, endpoint: Endpoint, *, errors: Errors, rows: sql.Composable) -> None:
        self._endpoint, self._errors, self._rows = endpoint, errors, rows
        self._lock, self._ending = threading.Lock(), threading.Lock()
        self._counting: psycopg.Connection | None = None
        self._connection = self._begun()
        with errors.translate_errors(endpoint):
            self.snapshot = export_snapshot(self._connection)

    def read_seen(self) -> TransactionSnapshot:
        """Return the transactions that the snapshot sees."""
        with self._lock, self._errors.translate_errors(self._endpoint):
            row = self._connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None, "a SELECT without FROM has one row"
        return TransactionSnapshot.parse(row[0])

    def limit(self, hours: int) -> None:
        """Let the server end the snapshot when its client has said nothing for so long, as where that is frozen."""
        with self._lock, self._errors.translate_errors(self._endpoint):
            self._connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{hours:d}h'".encode())

    def check(self) -> None:
        try:
            with self._lock:
                self._connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise SnapshotLost(
                f"The snapshot of {where(self._endpoint)} was lost with the connection that kept it: {words(error)}."
            ) from error

    def count(self) -> int | None:
        """See :meth:`..core.ports.Keeper.count`. Over a connection of its own, which :meth:`close` interrupts."""
        connection = self._counting = self._begun()
        try:
            with self._errors.translate_errors(self._endpoint):
                import_snapshot(connection, self.snapshot)
                row = connection.execute(self._rows.as_string(None).encode()).fetchone()
        finally:
            with self._ending:
                self._counting = None
            _end(connection, self._endpoint)
        return row[0] if row else None

    def close(self) -> None:
        with self._ending:
            if self._counting is not None and not self._counting.closed:
                self._counting.cancel_safe(timeout=CANCEL_SECONDS)
        _end(self._connection, self._endpoint)

    def _begun(self) -> psycopg.Connection:
        """Return a connection in a new transaction that may last."""
        idle = take_idle(self._endpoint, application_name=NAME, settings=_EXPORT_SETTINGS)
        if idle is not None:
            try:
                return _begin(idle)
            except psycopg.Error:
                idle.close()
        connection = connect(self._endpoint, errors=self._errors, application_name=NAME, settings=_EXPORT_SETTINGS)
        with self._errors.translate_errors(self._endpoint):
            return _begin(connection)


def _begin(connection: psycopg.Connection) -> psycopg.Connection:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    return connection


def _end(connection: psycopg.Connection, endpoint: Endpoint) -> None:
    """End the transaction, and leave the connection to the keepers of other tables."""
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()
    put_idle(connection, endpoint, application_name=NAME, settings=_EXPORT_SETTINGS)
