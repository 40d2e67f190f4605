"""The keeper of an exported snapshot: one transaction that stays open for as long as ranges are read in it."""

import threading

import psycopg

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SnapshotLost
from airflow_provider_backpressure.postgres.connecting import READ_ONLY, connect
from airflow_provider_backpressure.postgres.errors import Errors, where, words

NAME = "backpressure keeper"
_SETTINGS = {
    **READ_ONLY,
    # Servers end transactions that do nothing; this one does nothing on purpose.
    "idle_in_transaction_session_timeout": "0",
    "statement_timeout": "0",
}
_TRANSACTION_TIMEOUT_SINCE = 170000


class SnapshotKeeper:
    """Implements :class:`..core.ports.Keeper`. The snapshot is taken when the first statement runs: at once."""

    def __init__(self, endpoint: Endpoint, *, errors: Errors) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._connection = connect(endpoint, errors=errors, application_name=NAME, settings=_SETTINGS)
        with errors.translated(endpoint):
            if self._connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
                self._connection.execute("SET transaction_timeout = 0")
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
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

    def close(self) -> None:
        """See :meth:`..core.ports.Keeper.close`."""
        self._connection.close()

    def _one(self, query: str) -> object:
        row = self._connection.execute(query.encode()).fetchone()
        return row[0] if row else None
