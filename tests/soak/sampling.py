"""What is measured every other second."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil
import psycopg
import pymysql

from benchmarks.accounting import descendants, held_bytes, processes
from tests.soak.stage import ACCOUNT, KEPT, KILLED, LEDGER, SHARED, SINK, SOURCE, Stage
from tests.soak.verdict import Series
from tests.support import mysql
from tests.support.postgres import connected
from tests.support.waiting import beside

PERIOD = 2.0
MEBIBYTE = 1024 * 1024
_OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^(bp|backpressure)'"
_SLOTS = """
    SELECT count(*), coalesce(sum(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0) FROM pg_replication_slots
"""
_ON_MYSQL = f"SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = '{ACCOUNT}'"


@dataclass(kw_only=True)
class Samples:
    """All series, by the picture in which they are drawn."""

    stage: Stage
    memory: tuple[Series, ...] = field(
        default_factory=lambda: (
            Series(name="the lane that is kept", unit="MiB", allowed_share=0.05),
            Series(name="the lane that is killed", unit="MiB", allowed_share=0.10),
            Series(name="Spark with its Python workers", unit="MiB", allowed_share=0.10),
            Series(name="the lane of the shared log", unit="MiB", allowed_share=0.10),
        )
    )
    connections: tuple[Series, ...] = field(
        default_factory=lambda: tuple(
            Series(name=name, unit="connections", allowed=2.0)
            for name in ("PostgreSQL, source", "PostgreSQL, sink", "PostgreSQL, ledger", "MySQL")
        )
    )
    slots: tuple[Series, ...] = field(
        default_factory=lambda: (
            Series(name="replication slots", unit="slots", allowed=0.0),
            Series(name="log that slots hold", unit="MiB", allowed=32.0),
        )
    )
    handles: tuple[Series, ...] = field(
        default_factory=lambda: (
            # A client of Kafka has four for as long as it is open.
            Series(name="threads of the kept lane", unit="number", allowed=4.0),
            Series(name="file handles of the kept lane", unit="number", allowed=3.0),
            Series(name="Python workers of Spark", unit="number", allowed=3.0),
        )
    )

    def __post_init__(self) -> None:
        """Leave out what is not there: a figure without samples would not be flat."""
        if not self.stage.tables:
            self.memory = self.memory[:-1]

    @property
    def every(self) -> tuple[Series, ...]:
        """All of them."""
        return (*self.memory, *self.connections, *self.slots, *self.handles)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take samples until the block is left."""
        with beside(self._take):
            yield

    def _take(self, over: threading.Event) -> None:
        began = time.monotonic()
        while not over.wait(PERIOD):
            at = time.monotonic() - began
            self._look_at_processes(at)
            self._look_at_servers(at)

    def _look_at_processes(self, at: float) -> None:
        every, lanes = processes(), self.stage.lanes
        spark = self.stage.server("connect").pid or 0
        pids = [lanes[KEPT].pid, lanes[KILLED].pid, spark, *(lanes[SHARED].pid for _ in self.memory[3:])]
        for series, pid in zip(self.memory, pids, strict=True):
            tree = descendants(every, pid) if pid else []
            if tree:
                series.add(at, sum(held_bytes(one, "Pss_Anon") for one in tree) / MEBIBYTE, pid)
        with suppress(psutil.NoSuchProcess):
            kept = psutil.Process(lanes[KEPT].pid)
            self.handles[0].add(at, kept.num_threads())
            self.handles[1].add(at, kept.num_fds())
            workers = [one for one in psutil.Process(spark).children(recursive=True) if "python" in one.name()]
            self.handles[2].add(at, len(workers), spark)

    def _look_at_servers(self, at: float) -> None:
        """Count what is ours; a server that has just been killed is not counted."""
        for series, name in zip(self.connections, (SOURCE, SINK, LEDGER), strict=False):
            with suppress(psycopg.Error), connected(self.stage.endpoint(name), connect_timeout=2) as link:
                series.add(at, float(link.execute(_OURS).fetchall()[0][0]))
                if name == SOURCE:
                    number, held = link.execute(_SLOTS).fetchall()[0]
                    self.slots[0].add(at, float(number))
                    self.slots[1].add(at, float(held) / MEBIBYTE)
        with suppress(pymysql.Error):
            self.connections[3].add(at, float(mysql.run(self.stage.endpoint("mysql", "mysql"), _ON_MYSQL)[0][0]))
