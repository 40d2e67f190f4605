"""What the ledger needs of MySQL before its first statement: a driver, and a session with known settings."""

from importlib.util import find_spec
from typing import Any

from sqlalchemy.engine import URL

from airflow_provider_backpressure.exceptions import LedgerRefused

DIALECTS = ("mysql", "mariadb")
"""SQLAlchemy's names. MariaDB, which Airflow does not support, serves as well as it can."""
DRIVERS = {"pymysql": "pymysql", "mysqldb": "MySQLdb"}
"""Drivers and their Python packages; the first that is installed is taken where the address names neither."""


def normalize_url(url: URL) -> URL:
    """Return the URL with a driver that is installed; ``LedgerRefused`` where there is none."""
    named = url.drivername.partition("+")[2]
    wanted = {named: DRIVERS[named]} if named in DRIVERS else DRIVERS
    for driver, package in wanted.items():
        if find_spec(package) is not None:
            return url.set(drivername=f"mysql+{driver}")
    raise LedgerRefused(
        f"A ledger on MySQL needs the Python package {' or '.join(wanted.values())}: "
        "`pip install 'airflow-provider-backpressure[mysql]'`."
    )


def arguments(url: URL, *, connect_seconds: int, wait_seconds: int) -> dict[str, Any]:
    """Return the driver's connect arguments, as far as the URL does not give them itself."""
    found = {
        "connect_timeout": connect_seconds,
        # Without it mysqlclient would take whatever the client library was built with.
        "charset": "utf8mb4",
        # At the driver's own start, before SQLAlchemy looks at the SQL mode to learn how names are quoted.
        "init_command": session(wait_seconds),
    }
    return {name: value for name, value in found.items() if name not in url.query}


def session(wait_seconds: int) -> str:
    """Return the statement that sets a session up.

    The server may be set to cut what is too long without an error, and to wait for a lock for a year. A client that
    falls silent within a transaction loses it, and its row lock, when ``wait_timeout`` ends its session; the pool loses
    its idle connections by that too, and opens others.
    """
    settings = {
        "sql_mode": "'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
        "innodb_lock_wait_timeout": wait_seconds,
        "lock_wait_timeout": wait_seconds,
        "wait_timeout": wait_seconds,
    }
    return "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())
