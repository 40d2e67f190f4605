"""The servers and databases between which the sides copy, alike for all of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from benchmarks.sides.side import SCHEMA, Order
from dev import tpch
from dev.services import Server, Services

SOURCE, SINK, LEDGER = "source", "sink", "ledger"
TABLE, WARM = "lineitem", "lineitem_warm"
# Nothing happens in the background that one side would pay for and another not; commits wait for the disk.
SETTINGS = {"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB"}


@dataclass(kw_only=True)
class Stage:
    """One PostgreSQL with source, sink and ledger, and a Spark Connect server for each side that asks."""

    services: Services
    rows: int
    warm_rows: int
    """Rows of the small source with which servers are warmed; 0: they are not."""
    heap: str
    """Heap of every Spark Connect server, as Java spells it."""
    credits: int
    range_rows: int
    postgres: Server = field(init=False)
    _fingerprints: dict[str, tuple[int, int]] = field(default_factory=dict)

    def prepare(self, sides: Iterable[str]) -> None:
        """Start PostgreSQL and the Spark servers of these sides, fill the sources, and migrate the ledger."""
        from airflow_provider_backpressure.ledger.migration import migrate

        self.postgres = self.services.up("postgres", fsync=True, settings=SETTINGS)["postgres"]
        self._start(*sides)
        with self.connected("postgres") as connection:
            for name in (SOURCE, SINK, LEDGER):
                connection.execute(f"CREATE DATABASE {name}")
        with self.connected(SOURCE) as connection:
            for table, rows in self._tables.items():
                tpch.fill(connection, table, rows=rows)
                # The one look at all rows, by which the source is warm too.
                self._fingerprints[table] = tpch.fingerprint(connection, "public", table)
        migrate(self._url(LEDGER).replace("postgresql", "postgresql+psycopg", 1))

    def spark(self, side: str) -> Server:
        """Return a side's own server, started again where it has ended: one side's heap is not the other's."""
        return self._start(side)[f"connect:{side}"]

    def order(self, table: str, spark: Server | None) -> Order:
        """Return what a side is told."""
        server = self.postgres
        return Order(
            host=server.host,
            port=server.port,
            user=server.user or "",
            password=server.password or "",
            source=SOURCE,
            sink=SINK,
            ledger=LEDGER,
            table=table,
            rows=self._tables[table],
            remote=spark.url if spark else "",
            ui_url=spark.ui_url if spark else "",
            credits=self.credits,
            range_rows=self.range_rows,
        )

    def clear(self, table: str) -> None:
        """Give an empty target, and let the server write out all that it has not yet."""
        with self.connected(SINK) as connection:
            tpch.create_empty(connection, SCHEMA, table)
            connection.execute("CHECKPOINT")

    def equal(self, table: str) -> bool:
        """Whether count and checksum of the target are the source's, by a query that is none of the sides'."""
        with self.connected(SINK) as connection:
            return tpch.fingerprint(connection, SCHEMA, table) == self._fingerprints[table]

    def connected(self, database: str) -> "psycopg.Connection[Any]":
        """Open a database."""
        return psycopg.connect(self._url(database), autocommit=True)

    def _start(self, *sides: str) -> dict[str, Server]:
        names = [f"connect:{side}" for side in sides]
        return self.services.up(*names, driver_memory=self.heap, jars=("postgres",))

    @property
    def _tables(self) -> dict[str, int]:
        return {TABLE: self.rows} | ({WARM: self.warm_rows} if self.warm_rows else {})

    def _url(self, database: str) -> str:
        return f"{self.postgres.url.rpartition('/')[0]}/{database}"
