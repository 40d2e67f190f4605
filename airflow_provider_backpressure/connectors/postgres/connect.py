"""Opens connections to PostgreSQL: libpq's parameters, and the settings of each of our sessions."""

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.cursor import Cursor
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.error_codec import strip_frames

SESSION_SETTINGS: Mapping[str, str] = {
    # Values travel as text in boundaries, casts and filters: both sides have to print and read them alike.
    "client_encoding": "UTF8",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    "lc_monetary": "C",
    "standard_conforming_strings": "on",
    # Otherwise NULL within an array that is read as text becomes a text that says NULL.
    "array_nulls": "on",
    # A comparison with NULL means in our statements what it means in SQL.
    "transform_null_equals": "off",
    # Types are compared by how the server spells them.
    "quote_all_identifiers": "off",
    # Statements see what was committed before each of them; where one snapshot is needed, it is asked for.
    "default_transaction_isolation": "read committed",
}
Settings = Mapping[str, str | sql.Composable]
"""Values by the names of parameters; one that is SQL is worked out by the server."""
DURABLE: Settings = {
    # A marker that the ledger knows must survive a crash. Every other setting is as strong or stronger.
    "synchronous_commit": sql.SQL(
        "(SELECT CASE setting WHEN 'off' THEN 'on' ELSE setting END FROM pg_catalog.pg_settings"
        " WHERE name = 'synchronous_commit')"
    )
}
"""Of every session that commits in a target."""
EVERY_ROW: Mapping[str, str] = {"row_security": "off"}
"""Row security that would hide rows from our role is an error instead."""
READ_ONLY: Mapping[str, str] = {"default_transaction_read_only": "on"}
CONTROL = "backpressure control"
"""``application_name`` of the control side; ``bp:`` is kept for attempts, which may be ended."""

_LIBPQ: Mapping[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Without it a peer that went away in mid-send holds the socket for a quarter of an hour.
    "tcp_user_timeout": "60000",
}


def connect(
    endpoint: Endpoint,
    *,
    errors: Errors,
    application_name: str,
    settings: Settings | None = None,
) -> psycopg.Connection[tuple[Any, ...]]:
    """Return an open connection in autocommit, with :data:`SESSION_SETTINGS` and ``settings`` set for its session.

    Raises ``errors.refused`` where the server says no (password, database, unknown option), ``errors.unavailable``
    where it does not answer.
    """
    try:
        # Prepared statements would break behind a pooler, and are worth little for statements that run once.
        connection = psycopg.connect(
            autocommit=True, prepare_threshold=None, cursor_factory=Cursor, **_parameters(endpoint, application_name)
        )
    except psycopg.Error as error:
        raise errors.at_the_door(error, endpoint) from strip_frames(error)
    with errors.translate_errors(endpoint):
        connection.execute(_build_settings({**SESSION_SETTINGS, **(settings or {})}))
    return connection


def _parameters(endpoint: Endpoint, application_name: str) -> dict[str, Any]:
    """Return libpq's parameters. No variable of a frame that may fail holds it: see ``unframed``."""
    return {
        **_LIBPQ,
        **endpoint.options,
        "host": endpoint.host or None,
        "port": endpoint.port,
        "dbname": endpoint.database,
        "user": endpoint.user,
        "password": endpoint.password or None,
        "application_name": application_name,
    }


def _build_settings(settings: Settings) -> sql.Composed:
    """Return one statement for all settings: a round trip less each, and poolers know it, unlike start-up options."""
    calls = [
        sql.SQL("set_config({}, {}, false)").format(
            sql.Literal(name), value if isinstance(value, sql.Composable) else sql.Literal(value)
        )
        for name, value in settings.items()
    ]
    return sql.SQL("SELECT ") + sql.SQL(", ").join(calls)
