"""Kafka to PostgreSQL: this product, a plain client, and Spark's own Kafka source as a batch and as a stream.

``python -m benchmarks.kafka_to_pg --rows 2000000 --rounds 3``. Every round gives each side one turn, in another order;
the table shows medians over the rounds.
"""

import sys
from dataclasses import dataclass

from benchmarks.command import main
from benchmarks.comparison import Comparison
from benchmarks.results import Goal, wall
from benchmarks.sides.side import SCHEMA, Order
from benchmarks.stage import SINK, Stage
from dev import events
from dev.fingerprints import Fingerprint
from dev.services import Server

BYTES = 200
"""Size of a message's value."""


@dataclass(kw_only=True)
class KafkaToPg(Stage):
    """The source is a topic of four partitions, the target a database of PostgreSQL."""

    table = "orders"
    warm = "orders_warm"
    small = "orders_small"
    beside = ("kafka",)
    jars = ("postgres", "kafka")
    sparkless = ("kafka-raw",)

    def fill(self, table: str, rows: int) -> Fingerprint:
        """Write a topic."""
        events.fill(self.servers["kafka"].url, records=rows, topic=table, bytes=BYTES)
        return events.fingerprint(self.servers["kafka"].url, topic=table)

    def create(self, table: str) -> None:
        """Make a table of the columns that a topic has."""
        self.create_table(table, events.COPIED)

    def fingerprint(self, table: str) -> Fingerprint:
        """Ask PostgreSQL."""
        with self.connected(SINK) as connection:
            return events.copied(connection, f"{SCHEMA}.{table}")

    def order(self, table: str, spark: Server | None) -> Order:
        """Say where the broker is."""
        return Order(**self.told(table, spark), brokers=self.servers["kafka"].url)


COMPARISON = Comparison(
    module="kafka_to_pg",
    heading="Kafka to PostgreSQL",
    moved=f"messages of {BYTES} bytes go from a topic into PostgreSQL",
    stage=KafkaToPg,
    rows=2_000_000,
    sides={
        "kafka-raw": "raw client, COPY",
        "kafka": "ours",
        "kafka-batch": "Spark, batch",
        "kafka-stream": "Spark, streaming",
    },
    ours=("kafka",),
    parts={"spark": "Spark", "kafka": "Kafka", "postgres": "PostgreSQL", "client": "client"},
    steady=("kafka-raw", "kafka", "kafka-batch"),
    speed_against="kafka-batch",
    cpu_against="kafka-raw",
    goals=(
        Goal(
            sentence="ours: at least 2 times as fast as Spark's own batch",
            figure=wall,
            over="kafka-batch",
            under="kafka",
            least=2,
        ),
    ),
    target="a new, empty table without a key",
    check="a plain client of the topic and a query, which belong to none of the sides (MD5 of each message)",
    ways="""
- **raw client, COPY**: one consumer (confluent-kafka) reads all partitions, and one client (asyncpg) passes its
  messages to a binary COPY, without headers. The floor.
- **ours**: `KafkaSource` as it comes: every value is one JSON text. It writes headers too; the others leave them out.
- **Spark, batch**: `read.format("kafka")` from `earliest` to `latest`, `kafka.isolation.level=read_committed`, one task
  for each of the four partitions; `write.jdbc` with `reWriteBatchedInserts=true` and `batchsize` 10,000.
- **Spark, streaming**: Structured Streaming with the trigger AvailableNow from the same source; its one batch is
  written by the same `write.jdbc` in `foreachBatch`.
""",
    jars=("postgres", "kafka"),
    packages=("confluent-kafka",),
)

if __name__ == "__main__":
    sys.exit(main(COMPARISON))
