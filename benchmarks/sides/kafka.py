"""Spark's own Kafka source into its own JDBC sink: as one batch, and as a stream that ends where the log ends now."""

from collections.abc import Callable
from typing import Any

from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession

from benchmarks.sides.jdbc import Jdbc, target
from benchmarks.sides.side import CORES, Order

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "CAST(value AS STRING) AS value")
UNTYPED = {"stringtype": "unspecified"}
"""Texts go into the target's column of type json."""


class Batch(Jdbc):
    """``read.format("kafka")`` then ``write.jdbc``."""

    def copy(self, session: SparkSession, order: Order) -> None:
        """One task for each partition of the topic; there are as many as Spark has cores."""
        reader = session.read.format("kafka").options(**_log(order), endingOffsets="latest")
        reader.load().selectExpr(*COLUMNS).write.jdbc(**target(order, **UNTYPED))


class Stream(Jdbc):
    """Structured Streaming with the trigger AvailableNow, whose batches are written by ``foreachBatch``."""

    def copy(self, session: SparkSession, order: Order) -> None:
        """All that is there is one batch."""
        rows = session.readStream.format("kafka").options(**_log(order)).load().selectExpr(*COLUMNS)
        writer = rows.writeStream.foreachBatch(_inserting(order)).trigger(availableNow=True)
        query = writer.option("checkpointLocation", order.folder).start()
        query.awaitTermination()
        if error := query.exception():
            raise error


SIDES: dict[str, Callable[[Order], Jdbc]] = {"kafka-batch": Batch, "kafka-stream": Stream}


def _log(order: Order) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": order.brokers,
        "kafka.isolation.level": "read_committed",
        "subscribe": order.table,
        "startingOffsets": "earliest",
        "minPartitions": str(CORES),
    }


def _inserting(order: Order) -> Callable[[Any, int], None]:
    """Return the function that Spark runs for each batch, in a process of its own that knows none of our modules."""
    into = target(order, **UNTYPED)

    def insert(batch: DataFrame, _: int) -> None:
        batch.write.jdbc(**into)

    return insert
