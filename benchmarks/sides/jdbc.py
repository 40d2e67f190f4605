"""Spark's own JDBC source and sink, as they come and as well tuned as we know."""

from typing import Any

from pyspark.sql.connect.session import SparkSession

from benchmarks.sides.side import SCHEMA, Order

DRIVER = "org.postgresql.Driver"
PARTITIONS = 8
"""Of the tuned read: twice the tasks that run at once, so that a slow one does not hold up the end."""
BATCH = "10000"


class Jdbc:
    """``read.jdbc`` then ``write.jdbc``. ``tuned``: bounds and partitions, fetch and batch size, rewritten inserts."""

    def __init__(self, order: Order, *, tuned: bool) -> None:
        self._order, self._tuned = order, tuned

    def open(self) -> None:
        """Open a session and run a first job."""
        self._session = SparkSession.builder.remote(self._order.remote).getOrCreate()
        self._session.range(1).collect()

    def run(self) -> dict[str, Any]:
        """Copy."""
        order = self._order
        login = {"user": order.user, "password": order.password, "driver": DRIVER}
        address = f"jdbc:postgresql://{order.host}:{order.port}"
        source, sink = f"{address}/{order.source}", f"{address}/{order.sink}"
        into = f"{SCHEMA}.{order.table}"
        if self._tuned:
            rows = self._session.read.jdbc(
                source,
                order.table,
                column="l_id",
                lowerBound=1,
                upperBound=order.rows + 1,
                numPartitions=PARTITIONS,
                properties={**login, "fetchsize": BATCH},
            )
            rewritten = f"{sink}?reWriteBatchedInserts=true"
            rows.write.jdbc(rewritten, into, mode="append", properties={**login, "batchsize": BATCH})
        else:
            rows = self._session.read.jdbc(source, order.table, properties=login)
            rows.write.jdbc(sink, into, mode="append", properties=login)
        return {}

    def close(self) -> None:
        """End the session."""
        self._session.stop()
