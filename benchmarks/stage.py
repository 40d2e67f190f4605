"""The servers between which the sides of a benchmark copy, alike for all of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from psycopg import sql

from benchmarks.sides.side import SCHEMA, Login, Order
from dev.fingerprints import Fingerprint
from dev.services import Server, Services

SINK, LEDGER = "sink", "ledger"
# Nothing happens in the background that one side would pay for and another not; commits wait for the disk.
SETTINGS = {"postgres": {"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB"}}

WORKERS = {"spark.python.daemon.module": "airflow_provider_backpressure.runners.daemon"}
"""As is advised for servers whose executors have this package. Sides without Python workers have no daemon either."""
LIGHT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""As is advised where rows go through Python workers alone; where the JVM handles them it costs more than it saves."""


@dataclass(kw_only=True)
class Stage(ABC):
    """A PostgreSQL with the ledger and most targets, what holds the source, and a Spark server for each side."""

    table: ClassVar[str] = "lineitem"
    warm: ClassVar[str] = "lineitem_warm"
    small: ClassVar[str] = "lineitem_small"
    beside: ClassVar[tuple[str, ...]] = ()
    """Servers beside PostgreSQL."""
    settings: ClassVar[Mapping[str, Mapping[str, str]]] = SETTINGS
    """Of the servers, by their kind."""
    jars: ClassVar[tuple[str, ...]] = ("postgres",)
    """Connectors of the Spark servers."""
    sparkless: ClassVar[tuple[str, ...]] = ()
    """Sides without Spark."""

    services: Services
    rows: int
    warm_rows: int
    """Rows of the small source with which servers are warmed; 0: they are not."""
    small_rows: int = 0
    """Rows of the source beside the main one, by which the steady cost of a row is found; 0: there is none."""
    heap: str
    """Heap of every Spark Connect server, as Java spells it."""
    heap_from_start: bool = False
    """Whether all of the heap is resident from the start: otherwise it fills with garbage before that is
    collected, and a longer run seems to need more."""
    credits: int
    range_rows: int
    ours: tuple[str, ...] = ()
    """Sides that are this product."""
    sink_at: Login | None = None
    """Another way to the server of the targets, for those sides that take it."""
    servers: dict[str, Server] = field(init=False)
    """By kind, without Spark's."""
    _expected: dict[str, Fingerprint] = field(default_factory=dict)

    @abstractmethod
    def fill(self, table: str, rows: int) -> Fingerprint:
        """Make a source of so many rows and return its fingerprint: the one look at all, by which it is warm too."""

    @abstractmethod
    def create(self, table: str) -> None:
        """Make an empty target in the place of the one that is there."""

    @abstractmethod
    def fingerprint(self, table: str) -> Fingerprint:
        """Return the target's fingerprint, by means that are none of the sides'."""

    @abstractmethod
    def order(self, table: str, spark: Server | None) -> Order:
        """Return the order of a side."""

    def prepare(self, sides: Iterable[str]) -> None:
        """Start the servers, those of Spark for these sides, fill the sources, and migrate the ledger."""
        from airflow_provider_backpressure.ledger.migration import migrate

        self.servers = self.services.up("postgres", *self.beside, fsync=True, settings=self.settings)
        self._start(*(side for side in sides if side not in self.sparkless))
        with self.connected("postgres") as connection:
            for name in (SINK, LEDGER):
                connection.execute(f"CREATE DATABASE {name}")
        with self.connected(SINK) as connection:
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
        for table, rows in self._tables.items():
            self._expected[table] = self.fill(table, rows)
            if self._expected[table][0] != rows:
                raise RuntimeError(f"{table} was to have {rows} rows and has {self._expected[table][0]}.")
        migrate(self.url(LEDGER).replace("postgresql", "postgresql+psycopg", 1))

    def spark(self, side: str) -> Server | None:
        """Return a side's own server, started again where it has ended: one side's heap is not the other's."""
        return None if side in self.sparkless else self._start(side)[f"connect:{side}"]

    def clear(self, table: str) -> None:
        """Give an empty target, and let the server write out all that it has not yet."""
        self.create(table)
        with self.connected(SINK) as connection:
            connection.execute("CHECKPOINT")

    def equal(self, table: str) -> bool:
        """Whether count and checksum of the target are the source's."""
        return self.fingerprint(table) == self._expected[table]

    def connected(self, database: str) -> "psycopg.Connection[Any]":
        """Open a database of PostgreSQL."""
        return psycopg.connect(self.url(database), autocommit=True)

    def create_table(self, table: str, columns: str) -> None:
        """Make an empty target in PostgreSQL, without a key."""
        with self.connected(SINK) as connection:
            name = sql.Identifier(SCHEMA, table)
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
            connection.execute(sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(columns)))

    def told(self, table: str, spark: Server | None) -> dict[str, Any]:
        """Return the part of an order that is alike for all."""
        return {
            "postgres": login(self.servers["postgres"]),
            "sink_at": self.sink_at,
            "sink": SINK,
            "ledger": LEDGER,
            "folder": str(self.folder),
            "table": table,
            "rows": self._tables[table],
            "remote": spark.url if spark else "",
            "ui_url": spark.ui_url if spark else "",
            "credits": self.credits,
            "range_rows": self.range_rows,
        }

    @property
    def folder(self) -> Path:
        """A folder for targets of files and for what sides keep; it is not there when a turn begins."""
        return self.services.home.parent / "files"

    def _start(self, *sides: str) -> dict[str, Server]:
        started: dict[str, Server] = {}
        for side in sides:
            words = [LIGHT] if side in self.ours else []
            if self.heap_from_start:
                words += [f"-Xms{self.heap}", "-XX:+AlwaysPreTouch"]
            conf = WORKERS | ({"spark.driver.extraJavaOptions": " ".join(words)} if words else {})
            started |= self.services.up(f"connect:{side}", driver_memory=self.heap, jars=self.jars, spark_conf=conf)
        return started

    @property
    def _tables(self) -> dict[str, int]:
        beside = {self.warm: self.warm_rows, self.small: self.small_rows}
        return {self.table: self.rows} | {table: rows for table, rows in beside.items() if rows}

    def url(self, database: str) -> str:
        return f"{self.servers['postgres'].url.rpartition('/')[0]}/{database}"


def login(server: Server) -> Login:
    """Return how a server is reached."""
    return Login(host=server.host, port=server.port, user=server.user or "", password=server.password or "")
