"""Versions of MySQL and MariaDB that can be read, and which of the two a server is."""

import re
from typing import Any

from airflow_provider_backpressure.connectors.mysql.errors import Errors
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.endpoints import Endpoint

OLDEST = (8, 0)
OLDEST_MARIADB = (10, 6)


def version(connection: Any) -> tuple[int, ...]:
    """Return the server's version by its greeting: ``(8, 0, 31)``."""
    text = str(connection.get_server_info()).removeprefix("5.5.5-")
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in match.groups(default="0")) if match else (0, 0, 0)


def is_mariadb(connection: Any) -> bool:
    """Whether it is MariaDB in MySQL's place."""
    return "MariaDB" in str(connection.get_server_info())


def check_version(connection: Any, endpoint: Endpoint, errors: Errors) -> None:
    """Raise ``errors.refused`` for a server that is too old."""
    product, oldest = ("MariaDB", OLDEST_MARIADB) if is_mariadb(connection) else ("MySQL", OLDEST)
    found = version(connection)
    if found[:2] < oldest:
        raise errors.refused(
            f"{product} at {where(endpoint)} is of version {found[0]}.{found[1]}; a source needs "
            f"{oldest[0]}.{oldest[1]} or later."
        )
