"""What is asked of a Spark session in the same way over Spark Connect and in the driver of a submitted application."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASSIC = "pyspark.sql.session"
"""Module of the class of a session that is in a driver. Named, not imported: a client alone does not have all of it."""
TIME_ZONE, UTC = "spark.sql.session.timeZone", frozenset({"UTC", "Etc/UTC", "GMT", "Z"})
"""Setting of a session by which Spark makes texts of times, and its values that mean UTC."""
_without_cache: "weakref.WeakKeyDictionary[SparkSession, set[str]]" = weakref.WeakKeyDictionary()
"""Catalogs that cache nothing, by their session."""
_disabling = threading.Lock()


def _list_errors() -> tuple[type[Exception], ...]:
    try:
        return (PySparkException, import_module("py4j.protocol").Py4JJavaError)
    except ImportError:
        return (PySparkException,)


SPARK_ERRORS = _list_errors()
"""Errors of a statement. In a driver PySpark raises an error of the JVM that it does not know as it is; over Spark
Connect it raises one of its own."""


def is_classic(session: "SparkSession") -> bool:
    """Whether the session is in this process's driver, and no client of Spark Connect."""
    return type(session).__module__ == _CLASSIC


def ask(session: "SparkSession", query: str) -> list[Any]:
    """Return the rows of a query, or of a command that changes nothing, over Spark Connect by one request.

    There ``session.sql`` asks the server what it is at once, and once more for the rows.
    """
    if is_classic(session):
        found: list[Any] = session.sql(query).collect()
        return found
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import SQL

    rows: list[Any] = DataFrame(SQL(query), cast("Any", session)).collect()
    return rows


def disable_cache(session: "SparkSession", catalog: str) -> bool:
    """Let a catalog of Iceberg cache no table in this session; return whether it may do so all the same.

    Once a session has used a catalog, that takes no other setting.
    """
    with _disabling:
        without = _without_cache.setdefault(session, set())
        if catalog in without:
            return False
        if any(each.name == catalog for each in session.catalog.listCatalogs()):
            return True
        session.conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")
        without.add(catalog)
        return False


@contextmanager
def get_session_in_utc(session: "SparkSession") -> Iterator["SparkSession"]:
    """Give the session where its time zone is UTC, otherwise a copy of it in UTC: a transform may need the zone.

    Errors as those of :func:`clone_session`.
    """
    if session.conf.get(TIME_ZONE) in UTC:
        yield session
        return
    with clone_session(session) as clone:
        clone.conf.set(TIME_ZONE, "UTC")
        yield clone


@contextmanager
def clone_session(session: "SparkSession") -> Iterator["SparkSession"]:
    """Give a copy of a session, with its views and settings, to a commit that needs settings of its own.

    A statement that lives on in the server after its client has lost it keeps the settings that it began with, for
    nobody else ever sets any there. Raises ``SinkRefused`` where a server or client of Spark Connect is too old to make
    one (before 4.1), ``SinkUnavailable`` where the server does not answer.
    """
    if is_classic(session):
        inside: Any = session
        yield type(session)(inside.sparkContext, inside._jsparkSession.cloneSession())
        return
    from airflow_provider_backpressure.connectors.lake.spark.sql_session import clone_on_server

    with clone_on_server(session) as clone:
        yield clone
