"""Doing things to a real MySQL directly, past the product."""

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow
import pymysql
import sqlalchemy as sa

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.spark.readers_and_writers import reader

PASSWORD = "hunter2-is-secret"


def run(endpoint: Endpoint, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements one after the other and return the rows of the last."""
    link = pymysql.connect(
        host=endpoint.host,
        port=endpoint.port,
        user=endpoint.user,
        password=endpoint.password,
        database=endpoint.database,
        charset="utf8mb4",
        autocommit=True,
    )
    with closing(link), link.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def address(endpoint: Endpoint) -> sa.URL:
    """Return the URL of a database on MySQL."""
    return sa.URL.create(
        "mysql",
        username=endpoint.user,
        password=endpoint.password,
        host=endpoint.host,
        port=endpoint.port,
        database=endpoint.database,
    )


@contextmanager
def fresh_database(server: Endpoint) -> Iterator[Endpoint]:
    """Give a new database, dropped afterwards. Its collation is MySQL's own, which takes "A" and "a" for one."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    run(server, f"CREATE DATABASE {name}")
    yield replace(server, database=name)
    run(server, f"DROP DATABASE {name}")


@contextmanager
def new_role(database: Endpoint) -> Iterator[Endpoint]:
    """Give the database's endpoint as a new account that was granted nothing but to come in."""
    role = f"role_{uuid.uuid4().hex[:12]}"
    run(
        database,
        f"CREATE USER '{role}'@'%' IDENTIFIED BY '{PASSWORD}'",
        f"GRANT CREATE TEMPORARY TABLES ON `{database.database}`.* TO '{role}'@'%'",
    )
    yield replace(database, user=role, password=PASSWORD)
    run(database, f"DROP USER '{role}'@'%'")


def batches(source: Source, endpoint: Endpoint, **cut: int) -> list[pyarrow.RecordBatch]:
    """Read all ranges of a source as the tasks do, and return what they give."""
    snapshot = source.snapshot()
    read = source.read_spec(snapshot)
    found = []
    for piece in source.ranges(snapshot, **{"rows": 10**9, "bytes": 2**60, **cut}):
        found += list(reader("mysql").read(endpoint, read, source.slice(read, piece.bounds, f"{piece.seq}.0"), "test"))
    return found
