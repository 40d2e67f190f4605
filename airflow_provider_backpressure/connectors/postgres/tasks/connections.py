"""Connections from inside a task to the source and to the sink."""

from collections.abc import Mapping
from dataclasses import replace

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import AS_LOGIN, DURABLE, EVERY_ROW, READ_ONLY, Settings
from airflow_provider_backpressure.connectors.postgres.connect import connect as connect_postgres
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.ranges import FIRST_ATTEMPT
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable, SourceRefused, SourceUnavailable

SOURCE = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
SINK = Errors(refused=SinkRefused, unavailable=SinkUnavailable)

LOCK_WAIT = 600
"""Seconds for which a statement on the data waits for a lock: a locked target holds the job back, it is no failure."""
MARKER_WAIT = 10
"""Seconds for which plan row and marker wait for a lock: both are held by others only for the length of a commit."""

# The kernel counts a full window against this time even while the peer answers every probe (seen), so it must be longer
# than any wait for a lock: a sink that stands still is pressure, not loss.
_USER_TIMEOUT_MS = (LOCK_WAIT + 60) * 1000

_SETTINGS: Mapping[str, str] = {
    "lock_timeout": f"{LOCK_WAIT}s",
    "idle_in_transaction_session_timeout": f"{LOCK_WAIT + 60}s",
}


def connect_source(endpoint: Endpoint, *, name: str, every_row: bool = False) -> psycopg.Connection:
    """Return a read-only connection; ``SourceRefused`` or ``SourceUnavailable`` where there is none.

    ``every_row``: row security that would hide rows is an error, as for a table whose log shows them all.
    """
    return _connect(endpoint, SOURCE, name, {**_SETTINGS, **READ_ONLY, **(EVERY_ROW if every_row else {})})


def connect_sink(endpoint: Endpoint, *, name: str) -> psycopg.Connection:
    """Return a connection whose commits are durable; ``SinkRefused`` or ``SinkUnavailable`` where there is none."""
    return _connect(endpoint, SINK, name, {**_SETTINGS, **DURABLE, **EVERY_ROW})


def end_attempts(connection: psycopg.Connection, name: str, *, below: int) -> None:
    """End the connections whose name is ``name`` but for a lower attempt number; their locks are not waited for."""
    if below <= FIRST_ATTEMPT:
        return  # Not one statement over all sessions of the server for each range that is tried once.
    query = sql.SQL(
        "SELECT pg_terminate_backend(pid) FROM {}, pg_stat_activity"
        " WHERE starts_with(application_name, %s) AND usename = session_user AND pid <> pg_backend_pid()"
        " AND substring(application_name FROM '[0-9]+$')::bigint < %s"
    )
    connection.execute(query.format(AS_LOGIN), (name[: name.rindex(":") + 1], below))


def set_local(connection: psycopg.Connection, setting: str, value: str) -> None:
    """Set a parameter for the rest of the running transaction."""
    connection.execute(sql.SQL("SELECT set_config(%s, %s, true)"), (setting, value))


def _connect(endpoint: Endpoint, errors: Errors, name: str, settings: Settings) -> psycopg.Connection:
    seen = endpoint.for_executors()
    patient = replace(seen, options={"tcp_user_timeout": str(_USER_TIMEOUT_MS), **seen.options})
    return connect_postgres(patient, errors=errors, application_name=name, settings=settings)
