"""Endpoints, from Airflow connections of the types that sources and sinks go by."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow.sdk import Connection

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.hooks.connection_types_and_fields import connection
from airflow_provider_backpressure.hooks.database_connections import from_connection, mysql_endpoint
from airflow_provider_backpressure.hooks.kafka_connection import from_kafka, from_registry
from airflow_provider_backpressure.hooks.lake_connections import (
    from_aws,
    from_iceberg,
    from_spark_connect,
    from_spark_submit,
)


def with_related(found: Endpoint, declared: object) -> Endpoint:
    """Return a source's endpoint with those of the further connections that its planning side needs."""
    related: Mapping[str, tuple[str, ...]] = getattr(declared, "related", {})
    return replace(found, related={conn_id: endpoint(conn_id, *types) for conn_id, types in related.items()})


def endpoint(conn_id: str, *types: str) -> Endpoint:
    """Return where a connection of one of these types leads to (``postgres`` where none is named).

    Of its extras only those that have a meaning are read, each by its name.
    """
    found = connection(conn_id, *(types or ("postgres",)))
    return BUILDERS[str(found.conn_type)](found, found.extra_dejson)


BUILDERS: dict[str, Callable[[Connection, Mapping[str, Any]], Endpoint]] = {
    "aws": from_aws,
    "http": from_registry,
    "kafka": from_kafka,
    "mysql": mysql_endpoint,
    "postgres": from_connection,
    "iceberg": from_iceberg,
    "spark": from_spark_submit,
    "spark_connect": from_spark_connect,
}
"""How to read a connection, by its type."""
