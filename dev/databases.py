"""Opening a database of a server that this project started."""

from typing import Any

import psycopg

from dev.services import Server


def open_database(server: Server, name: str) -> "psycopg.Connection[Any]":
    """Connect to a database of a PostgreSQL server."""
    return psycopg.connect(
        host=server.host, port=server.port, user=server.user, password=server.password, dbname=name, autocommit=True
    )
