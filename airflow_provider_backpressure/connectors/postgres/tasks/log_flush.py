"""Whether what a session of PostgreSQL has seen is safe on the server's disk."""

from collections.abc import Callable

import psycopg

from airflow_provider_backpressure.connectors.postgres.replication_slots import position
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.exceptions import SourceUnavailable

FLUSH_SECONDS = 60.0
"""Longest wait for the server to bring its log to its disk."""


def await_flushed(session: psycopg.Connection, write: Callable[[], None]) -> LogPosition:
    """Return the log's position, once everything before it is safe; ``SourceUnavailable`` where that takes too long.

    A commit that is seen may not be safe yet where it was not to be waited for (``synchronous_commit = off``). What a
    session has read is safe when this returns: a server that crashed before would have ended the session.

    ``write`` hurries the server, which takes its time over what no commit waits for, up to 15 seconds: see
    :func:`write_message`.
    """
    found = _read(session, "SELECT pg_current_wal_insert_lsn()::text")

    def is_safe() -> bool | None:
        return True if _read(session, "SELECT pg_current_wal_flush_lsn()::text") >= found else None

    if is_safe() is None:
        write()
    if PollPolicy().until(is_safe, timeout=FLUSH_SECONDS, clock=SystemClock()) is None:
        raise SourceUnavailable(f"The source did not bring its log up to {found.label} to its disk.")
    return found


def write_message(connection: psycopg.Connection) -> None:
    """Commit a message that changes nothing and nobody receives, and wait until it is on the server's disk."""
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")
        connection.execute("SELECT pg_logical_emit_message(true, 'backpressure', '')")


def _read(session: psycopg.Connection, query: str) -> LogPosition:
    row = session.execute(query.encode()).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    return position(str(row[0]))
