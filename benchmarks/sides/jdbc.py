"""Spark's own JDBC source and sink, as they come and as well tuned as we know."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession

from benchmarks.sides.side import SCHEMA, Login, Order

POSTGRES, MYSQL = "org.postgresql.Driver", "com.mysql.cj.jdbc.Driver"
PARTITIONS = 8
"""Of the tuned read: twice the tasks that run at once, so that a slow one does not hold up the end."""
BATCH = "10000"


class Jdbc(ABC):
    """A job of Spark's own. Its session is opened as ours is: not part of the turn."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def open(self) -> None:
        """Open a session and run a first job."""
        self._session = SparkSession.builder.remote(self._order.remote).getOrCreate()
        self._session.range(1).collect()

    def run(self) -> dict[str, Any]:
        """Copy."""
        self.copy(self._session, self._order)
        return {}

    def close(self) -> None:
        """End the session."""
        self._session.stop()

    @abstractmethod
    def copy(self, session: SparkSession, order: Order) -> None:
        """Copy the whole table."""


class Default(Jdbc):
    """``read.jdbc`` then ``write.jdbc``, both as they come."""

    def copy(self, session: SparkSession, order: Order) -> None:
        """One connection reads, one writes."""
        login = account(order.postgres, POSTGRES)
        rows = session.read.jdbc(postgres_url(order, order.source), order.table, properties=login)
        rows.write.jdbc(postgres_url(order, order.sink), f"{SCHEMA}.{order.table}", mode="append", properties=login)


class Tuned(Jdbc):
    """Between tables of PostgreSQL: bounds and partitions, fetch and batch size, rewritten inserts."""

    def copy(self, session: SparkSession, order: Order) -> None:
        """As many connections at once as Spark has cores."""
        from_postgres(session, order).write.jdbc(**target(order))


class Overwriting(Jdbc):
    """The tuned one, of which each run empties the target first."""

    def copy(self, session: SparkSession, order: Order) -> None:
        """As many connections at once as Spark has cores."""
        into = {**target(order), "mode": "overwrite"}
        into["properties"] = {**into["properties"], "truncate": "true"}
        from_postgres(session, order).write.jdbc(**into)


class FromMysql(Jdbc):
    """From MySQL, tuned alike: the driver fetches in batches only where its URL and Spark both say so."""

    def copy(self, session: SparkSession, order: Order) -> None:
        """As many connections at once as Spark has cores."""
        assert order.mysql is not None
        url = f"jdbc:mysql://{order.mysql.host}:{order.mysql.port}/{order.source}?useCursorFetch=true"
        partitioned(session, url, order, account(order.mysql, MYSQL)).write.jdbc(**target(order))


class ToParquet(Jdbc):
    """The tuned read, and Spark's own writer of Parquet as it comes: a file for each partition, snappy."""

    compression = "snappy"

    def copy(self, session: SparkSession, order: Order) -> None:
        """As many connections at once as Spark has cores."""
        from_postgres(session, order).write.parquet(order.folder, compression=self.compression)


class ToZstd(ToParquet):
    """The same in files that are compressed as ours."""

    compression = "zstd"


SIDES: dict[str, Callable[[Order], Jdbc]] = {
    "jdbc-default": Default,
    "jdbc-tuned": Tuned,
    "jdbc-overwrite": Overwriting,
    "mysql-jdbc": FromMysql,
    "parquet-jdbc": ToParquet,
    "parquet-jdbc-zstd": ToZstd,
}


def from_postgres(session: SparkSession, order: Order) -> DataFrame:
    """Return the rows of the order's table in PostgreSQL."""
    return partitioned(session, postgres_url(order, order.source), order, account(order.postgres, POSTGRES))


def partitioned(session: SparkSession, url: str, order: Order, login: dict[str, str]) -> DataFrame:
    """Return a table's rows, read in parts of the same number of key values."""
    return session.read.jdbc(
        url,
        order.table,
        column="l_id",
        lowerBound=1,
        upperBound=order.rows + 1,
        numPartitions=PARTITIONS,
        properties={**login, "fetchsize": BATCH},
    )


def target(order: Order, **options: str) -> dict[str, Any]:
    """Return how the tuned ``write.jdbc`` is called for the order's target. ``options``: further ones of the URL."""
    options = {"reWriteBatchedInserts": "true", **options}
    return {
        "url": f"{postgres_url(order, order.sink)}?{'&'.join(f'{name}={value}' for name, value in options.items())}",
        "table": f"{SCHEMA}.{order.table}",
        "mode": "append",
        "properties": {**account(order.postgres, POSTGRES), "batchsize": BATCH},
    }


def postgres_url(order: Order, database: str) -> str:
    """Return the address of a database of PostgreSQL."""
    return f"jdbc:postgresql://{order.postgres.host}:{order.postgres.port}/{database}"


def account(login: Login, driver: str) -> dict[str, str]:
    """Return the properties that every connection takes."""
    return {"user": login.user, "password": login.password, "driver": driver}
