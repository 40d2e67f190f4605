"""Endpoints, from Airflow connections of the types that sources and sinks go by."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.endpoints import kafka
from airflow_provider_backpressure.hooks.endpoints.connection import connection, port
from airflow_provider_backpressure.hooks.endpoints.iceberg import from_iceberg
from airflow_provider_backpressure.hooks.endpoints.mysql import mysql_endpoint
from airflow_provider_backpressure.hooks.endpoints.s3 import from_aws

log = logging.getLogger(__name__)

OPTIONS = (
    "connect_timeout",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
)
"""Extras that are handed to libpq."""
ADDRESS = ("executor_host", "executor_port")
"""Extras that say where executors find the same database."""


def endpoint(conn_id: str, *types: str) -> Endpoint:
    """Return where a connection of one of these types leads to (``postgres`` where none is named).

    Of its extras only those that have a meaning are read, each by its name.
    """
    found = connection(conn_id, *(types or ("postgres",)))
    return BUILDERS[str(found.conn_type)](found, found.extra_dejson)


def from_connection(found: Connection, extra: Mapping[str, Any]) -> Endpoint:
    """Build the endpoint; :class:`InvalidDeclaration` names the field that is missing or cannot be meant."""
    for field, value in (("host", found.host), ("database (schema)", found.schema), ("login", found.login)):
        if not value:
            raise InvalidDeclaration(f"The Airflow connection {found.conn_id!r} names no {field}.")
    ignored = sorted(set(extra) - {*OPTIONS, *ADDRESS})
    if ignored:
        log.info("Extras of connection %s that have no meaning here: %s", found.conn_id, ", ".join(ignored))
    return Endpoint(
        conn_id=found.conn_id,
        host=found.host or "",
        port=found.port or 5432,
        database=found.schema or "",
        user=found.login or "",
        password=found.password or "",
        options={name: str(extra[name]) for name in OPTIONS if extra.get(name) not in (None, "")},
        executor_host=extra.get("executor_host") or None,
        executor_port=port(found.conn_id, extra.get("executor_port")),
    )


BUILDERS: dict[str, Callable[[Connection, Mapping[str, Any]], Endpoint]] = {
    "aws": from_aws,
    "kafka": kafka.from_connection,
    "mysql": mysql_endpoint,
    "postgres": from_connection,
    "iceberg": from_iceberg,
}
"""How to read a connection, by its type."""
