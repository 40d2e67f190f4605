"""The soak's servers and hydrations: what they read keeps changing, and in the end target and source are compared."""

import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.migration import migrate
from dev.services import Server, Services
from tests.soak.lane import END
from tests.soak.stream import FLOW
from tests.support import catching_up, lakes, mysql, mysql_catching_up, operator_flow
from tests.support.composed import ROOT, Composed, difference
from tests.support.kafka import ComposedKafka, Topic
from tests.support.kafka import endpoint_of as broker_of
from tests.support.operator_flow import OperatorFlow
from tests.support.postgres import connected, run
from tests.support.waiting import beside

SOURCE, SINK, LEDGER = "postgres", "postgres:sink", "postgres:ledger"
SERVERS = (SOURCE, SINK, LEDGER, "mysql", "kafka", "connect")
KEPT, KILLED = "kept", "killed"
"""The lane that lives from beginning to end, by which leaks are seen, and the one that faults kill."""
SHARED = "shared"
"""The lane of the tables that share a log. Faults kill it too."""
KEYS = 20_000
EVERY = 0.5
"""Seconds between two lots of messages, and of rows that are only added."""
LOT = 100
ACCOUNT = "soak"
"""The product's own in MySQL, by which its connections are known."""
HEAP = "512m"
SPARK = {
    "spark.python.daemon.module": "airflow_provider_backpressure.runners.daemon",
    "spark.driver.extraJavaOptions": f"-Xms{HEAP} -XX:+AlwaysPreTouch",
}
"""A heap is filled with what is over before any of it is cleaned, so its size says nothing while it is below its bound.
So it is small, and all taken from the start: what grows in it ends the server, and what grows beside it is seen."""


@dataclass(kw_only=True)
class Lane:
    """A process that runs hydrations in turn."""

    folder: Path
    module: str = "tests.soak.lane"
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0

    def start(self) -> None:
        """Start it, or start it again."""
        with (self.folder / "lane.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, str(self.folder)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.starts += 1

    def kill(self) -> None:
        """Kill it where it stands; ``RuntimeError`` where it had ended by itself, which no kill is to hide."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.folder.name} ended by itself ({self.process.returncode}): see its lane.log.")
        self.process.kill()
        self.process.wait(30)

    def end(self, seconds: float) -> int:
        """Ask for the last turn, and return the exit code."""
        assert self.process is not None
        (self.folder / END).touch()
        return self.process.wait(seconds)

    @property
    def pid(self) -> int:
        """Its process; 0 where it has none."""
        return self.process.pid if self.process is not None and self.process.poll() is None else 0


@dataclass(kw_only=True)
class Stage:
    """Everything that runs."""

    services: Services
    folder: Path
    seed: int
    tables: int = 0
    """How many tables share a log, beside the other hydrations."""
    shared: OperatorFlow | None = None
    """Their task group."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    hydrations: dict[str, Composed] = field(default_factory=dict)
    """By title."""
    sent: int = 0
    """Messages that the broker has taken."""

    def server(self, name: str) -> Server:
        """Return a server as it is now."""
        return self.services.status()[name]

    def endpoint(self, name: str, database: str = "postgres") -> Endpoint:
        """Return where a database is."""
        server = self.server(name)
        login = {"user": server.user or "", "password": server.password or ""}
        return Endpoint(conn_id=name, host=server.host, port=server.port, database=database, **login)

    def prepare(self) -> None:
        """Start the servers, make the sources, and start the lanes."""
        self.services.up(*SERVERS, jars=(), driver_memory=HEAP, spark_conf=SPARK)
        shop, erp = self.endpoint(SOURCE), self.endpoint("mysql", "mysql")
        run(
            shop,
            catching_up.TABLE,
            catching_up.FILL.format(KEYS),
            "CREATE TABLE grown (id bigserial PRIMARY KEY, at timestamptz DEFAULT now(), note text)",
            f"INSERT INTO grown (note) SELECT md5(g::text) FROM generate_series(1, {KEYS}) g",
            "ANALYZE",
        )
        mysql.run(erp, "CREATE DATABASE soak")
        erp = replace(erp, database="soak")
        mysql.run(
            erp,
            f"CREATE USER {ACCOUNT}@'%' IDENTIFIED BY '{mysql.PASSWORD}'",
            f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, XA_RECOVER_ADMIN ON *.* TO {ACCOUNT}@'%'",
            f"SET SESSION cte_max_recursion_depth = {KEYS * 2}",
            mysql_catching_up.TABLE,
            mysql_catching_up.FILL.format(KEYS),
        )
        self.topic.create(3)
        ledger = self.server(LEDGER)
        migrate(self._ledger_url(ledger))
        self._compose(shop, erp, ledger)
        if self.tables:
            self._share(shop)
        for lane in self.lanes.values():
            lane.start()

    @property
    def topic(self) -> Topic:
        """The topic."""
        return Topic(servers=self.server("kafka").url, name="soak")

    def _ledger_url(self, ledger: Server) -> str:
        return f"postgresql+psycopg://{ledger.user}:{ledger.password}@{ledger.host}:{ledger.port}/postgres"

    def _compose(self, shop: Endpoint, erp: Endpoint, ledger: Server) -> None:
        spark, sink = self.server("connect"), self.endpoint(SINK)
        alike: dict[str, Any] = {
            "sink": sink,
            "ledger_url": self._ledger_url(ledger),
            "remote": spark.url,
            "ui_url": spark.ui_url,
            "budget": Budget(credits=2, range_rows=4_000),
        }
        replayed = {"mode": "upsert", "consistency": "catch_up"}
        lake = lakes.place("parquet", self.folder)
        self.hydrations = {
            "PostgreSQL to PostgreSQL": Composed(source=shop, target="raw.of_postgres", **replayed, **alike),
            "Kafka to PostgreSQL": ComposedKafka(
                source=broker_of(self.server("kafka")),
                kind="kafka",
                table="soak",
                target="raw.of_kafka",
                **alike,
            ),
            "MySQL to PostgreSQL": Composed(
                source=replace(erp, user=ACCOUNT, password=mysql.PASSWORD),
                kind="mysql",
                table="t",
                target="raw.of_mysql",
                **replayed,
                **alike,
            ),
            "PostgreSQL to Parquet": Composed(
                source=shop, table="public.grown", reading={"increment_column": "id"}, into=lake, **alike
            ),
        }
        for number, (title, composed) in enumerate(self.hydrations.items()):
            lane = self.lanes.setdefault((KEPT, KILLED)[number // 2], Lane(folder=self.folder / f"lane-{number // 2}"))
            lane.folder.mkdir(exist_ok=True)
            self.hydrations[title] = replace(composed, lane=f"hydration-{number}")
            self.hydrations[title].write(lane.folder)

    def _share(self, shop: Endpoint) -> None:
        """Make the tables that share a log, in a database of their own, and their lane."""
        run(shop, "CREATE DATABASE shared")
        lane = Lane(folder=self.folder / "lane-shared", module="tests.soak.stream")
        lane.folder.mkdir(exist_ok=True)
        self.shared = OperatorFlow.make(
            replace(shop, database="shared"),
            lane.folder,
            target=self.endpoint(SINK),
            names=tuple(f"s{number}" for number in range(self.tables)),
            spark=self.server("connect").port,
            range_rows=50,
        )
        self.shared.write(lane.folder / FLOW)
        self.lanes[SHARED] = lane

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let sources change until the block is left."""
        shop, erp = self.endpoint(SOURCE), self.endpoint("mysql", "soak")
        changes = catching_up.Writer(shop, self.seed, KEYS, every=0.05).writing()
        others = mysql_catching_up.MySQLWriter(erp, self.seed % 1_000, KEYS, every=0.05).writing()
        with ExitStack() as stack:
            if self.shared is not None:
                kept = operator_flow.writing(self.shared, self.seed, seconds=math.inf, every=0.05)
                stack.enter_context(kept)
            for each in (changes, others, beside(self._send), beside(self._grow)):
                stack.enter_context(each)
            yield

    def _send(self, over: threading.Event) -> None:
        topic = self.topic
        while not over.wait(EVERY):
            with topic.producing() as producer:
                topic.put(producer, self.sent // LOT % 3, *({"id": self.sent + number} for number in range(LOT)))
            self.sent += LOT

    def _grow(self, over: threading.Event) -> None:
        shop = self.hydrations["PostgreSQL to Parquet"].source
        with connected(shop) as connection:
            while not over.wait(EVERY):
                connection.execute("INSERT INTO grown (note) SELECT md5(g::text) FROM generate_series(1, %s) g", (LOT,))

    def differences(self) -> dict[str, str]:
        """Compare every target with its source; empty texts where they are equal."""
        found: dict[str, Callable[[Composed], str]] = {
            "PostgreSQL to PostgreSQL": _of_postgres,
            "Kafka to PostgreSQL": self._of_kafka,
            "MySQL to PostgreSQL": _of_mysql,
            "PostgreSQL to Parquet": _of_lake,
        }
        unequal = {title: compare(self.hydrations[title]) for title, compare in found.items()}
        if self.shared is not None:
            unequal[self.shared_title] = ", ".join(
                f"{name}: {missing} rows missing, {surplus} too many"
                for name, (missing, surplus) in self.shared.differs().items()
            )
        return unequal

    @property
    def shared_title(self) -> str:
        """What the tables that share a log are called."""
        return f"{self.tables} tables that share a log"

    def _of_kafka(self, composed: Composed) -> str:
        ((rows, places),) = run(
            composed.sink, f'SELECT count(*), count(DISTINCT ("partition", "offset")) FROM {composed.target}'
        )
        return "" if rows == places == self.sent else f"{self.sent} sent, {rows} rows of {places} offsets"


def _of_postgres(composed: Composed) -> str:
    missing, surplus = difference(composed.source, composed.table, composed.sink, composed.target)
    return f"{missing} rows missing, {surplus} too many" if missing or surplus else ""


def _of_mysql(composed: Composed) -> str:
    columns = "id, v, doc, note"
    ours = set(mysql.run(composed.source, f"SELECT {columns} FROM t"))
    theirs = run(composed.sink, f"SELECT {columns} FROM {composed.target}")
    missing, surplus = len(ours - set(theirs)), len(theirs) - len(ours & set(theirs))
    return f"{missing} rows missing, {surplus} too many" if missing or surplus else ""


def _of_lake(composed: Composed) -> str:
    ours = sorted(run(composed.source, "SELECT id, note FROM grown"))
    theirs = sorted((row[0], row[2]) for row in lakes.rows(composed.into))
    return "" if ours == theirs else f"{len(ours)} rows in the source, {len(theirs)} in the folder"
