"""Doing things to a real PostgreSQL directly, past the product."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from airflow_provider_backpressure.core.endpoints import Endpoint

PASSWORD = "hunter2-is-secret"


def connected(endpoint: Endpoint, **parameters: Any) -> psycopg.Connection[tuple[Any, ...]]:
    """Return a connection in autocommit, in UTC unless told otherwise."""
    connection = psycopg.connect(
        **{
            "host": endpoint.host,
            "port": endpoint.port,
            "dbname": endpoint.database,
            "user": endpoint.user,
            "password": endpoint.password,
            "options": "-c timezone=UTC",
            "autocommit": True,
            **parameters,
        }
    )
    for type_ in ("date", "timestamp", "timestamptz"):  # Python knows neither infinity nor what came before Christ
        connection.adapters.register_loader(type_, TextLoader)
    return connection


def run(endpoint: Endpoint, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements one after the other and return the rows of the last."""
    with connected(endpoint) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def new_role(database: Endpoint) -> Iterator[Endpoint]:
    """Give the database's endpoint as a new role that was granted nothing."""
    role = f"role_{uuid.uuid4().hex[:12]}"
    run(database, f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    yield replace(database, user=role, password=PASSWORD)
    run(
        database,
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'",
        f"DROP OWNED BY {role}",
        f"DROP ROLE {role}",
    )


def numbered_rows(number: int) -> tuple[str, ...]:
    """Return the statements that make a table ``t`` of so many rows, numbered from 1."""
    return (
        f"CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1::bigint, {number}) i",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "ANALYZE t",
    )
