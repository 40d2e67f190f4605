"""A side is killed in the middle of its work and run again: what becomes of the target."""

import os
import shutil
import signal
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_backpressure.ledger.migration import migrate
from benchmarks import accounting
from benchmarks.pg_to_pg import SOURCE, PgToPg
from benchmarks.sides.side import SCHEMA
from benchmarks.stage import LEDGER, SINK
from benchmarks.worker import SideFailed, Worker
from dev.services import Server, ServiceError

HALF = 0.5
LOOK = 0.01
"""Seconds between two looks at the target."""
PLACES = [SCHEMA, "public"]
"""Schemas where a target may be; one that goes by the source's name is in the second until its side is done."""
GONE = 60.0
"""Most seconds to wait for the system to bury what was killed."""
TRIES = 3
"""A side may be done before it is killed; then it is started again."""
PATIENCE = 900.0
"""Seconds within which a side has to be at half time, and its connections gone after its end."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one side; rows but for the seconds."""

    side: str
    rows: int
    """Of the source."""
    left: int = 0
    """In the target after the kill, as others see it; more than one of a row counts."""
    lost: int = 0
    """Of the source's, which are not in the target in the end."""
    doubled: int = 0
    """In the target in the end, beyond one of each."""
    read: int = 0
    """By PostgreSQL from the source's table, for both runs."""
    seconds: float = 0.0
    """That the second run took."""
    equal: bool = False
    error: str | None = None

    @property
    def again(self) -> int:
        """Rows that were read more than once."""
        return max(self.read - self.rows, 0)


@dataclass(kw_only=True)
class Killing:
    """Sides between the same two databases. Target and ledger are created again for each."""

    stage: PgToPg
    home: Path

    def outcome(self, side: str) -> Outcome:
        """Kill a side at half time and run it again."""
        try:
            return self._outcome(side)
        finally:
            if side not in self.stage.sparkless:
                self.stage.services.down(f"connect:{side}")

    def _outcome(self, side: str) -> Outcome:
        nothing = Outcome(side=side, rows=self.stage.rows)
        try:
            for _ in range(TRIES):
                self._anew()
                before = self._read()
                if self._killed(side):
                    break
            else:
                return replace(nothing, error=f"it was done before it could be killed, {TRIES} times")
            self._settled()
            left = sum(self._held())
            seconds = self._again(side)
        except SideFailed as error:
            return replace(nothing, error=str(error))
        self._settled()
        held = self._held()
        return replace(
            nothing,
            left=left,
            lost=self.stage.rows - held[0],
            doubled=held[1],
            read=self._read() - before,
            seconds=seconds,
            equal=held == (self.stage.rows, 0),
        )

    def _anew(self) -> None:
        """Make target and ledger empty, and forget what an earlier side has kept."""
        stage = self.stage
        with stage.connected("postgres") as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE active_pid IS NULL"
            )
            for name in (SINK, LEDGER):
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
                connection.execute(f"CREATE DATABASE {name}")
        stage.create(stage.table)
        with stage.connected(SINK) as connection:
            connection.execute("CHECKPOINT")
        migrate(stage.url(LEDGER).replace("postgresql", "postgresql+psycopg", 1))
        shutil.rmtree(stage.folder, ignore_errors=True)

    def _killed(self, side: str) -> bool:
        """Run a side up to half time and kill it; ``False`` where it was done before."""
        worker, spark = self._begun(side)
        half_time = self._size() + HALF * self._size_of_source()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(worker.ask, "run")
            try:
                at_half_time = self._half(running, half_time)
            finally:
                kill([pid for pid in (spark.pid if spark else None, worker.pid) if pid])
                if spark:
                    with suppress(ServiceError):  # nothing is left of it
                        self.stage.services.kill(spark.name)
                # Its answer is read to the end by one thread only.
                running.exception(PATIENCE)
                worker.end()
        failure = running.exception()
        if failure and not at_half_time:
            raise SideFailed(f"it failed before it was killed: {failure}")
        return at_half_time and failure is not None

    def _half(self, running: "Future[dict[str, Any]]", size: float) -> bool:
        """Wait for the size of the target's database; ``False`` where the side ends first."""
        deadline = time.monotonic() + PATIENCE
        with self.stage.connected("postgres") as connection:
            while not running.done():
                if size_of(connection, SINK) >= size:
                    return True
                if time.monotonic() > deadline:
                    raise SideFailed(f"it was not at half time after {PATIENCE:.0f} s")
                time.sleep(LOOK)
        return False

    def _again(self, side: str) -> float:
        """Give the same command again and return how long it took."""
        worker, _ = self._begun(side)
        began = time.monotonic()
        try:
            worker.ask("run")
            worker.ask("close")
        finally:
            worker.end()
        return time.monotonic() - began

    def _begun(self, side: str) -> tuple[Worker, Server | None]:
        spark = self.stage.spark(side)
        order = replace(self.stage.order(self.stage.table, spark), resumes=True)
        worker = Worker(side, order, home=self.home)
        worker.ask("open")
        return worker, spark

    def _settled(self) -> None:
        """Wait until nobody else is at work on the databases: a server hears late that its client is gone."""
        deadline = time.monotonic() + PATIENCE
        others = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = ANY(%s) AND backend_type IN ('client backend', 'parallel worker')"
        )
        with self.stage.connected("postgres") as connection:
            while (connection.execute(others, [[SOURCE, SINK]]).fetchone() or (0,))[0]:
                if time.monotonic() > deadline:
                    raise SideFailed("its connections did not end")
                time.sleep(LOOK)

    def _held(self) -> tuple[int, int]:
        """Return how many of the source's rows the target holds, and how many there are beyond one of each."""
        with self.stage.connected(SINK) as connection:
            there = connection.execute(
                "SELECT schemaname FROM pg_tables WHERE tablename = %s AND schemaname = ANY(%s)",
                [self.stage.table, PLACES],
            ).fetchone()
            if there is None:
                return 0, 0
            statement = sql.SQL("SELECT count(DISTINCT l_id), count(*) - count(DISTINCT l_id) FROM {}")
            found = connection.execute(statement.format(sql.Identifier(there[0], self.stage.table))).fetchone()
        assert found is not None
        return int(found[0]), int(found[1])

    def _read(self) -> int:
        """Return how many rows of the source's table PostgreSQL has read so far, by scans and by its key."""
        statement = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = %s"
        with self.stage.connected(SOURCE) as connection:
            found = connection.execute(statement, [self.stage.table]).fetchone()
        assert found is not None
        return int(found[0])

    def _size(self) -> int:
        with self.stage.connected("postgres") as connection:
            return size_of(connection, SINK)

    def _size_of_source(self) -> int:
        with self.stage.connected(SOURCE) as connection:
            found = connection.execute("SELECT pg_relation_size(%s)", [f"public.{self.stage.table}"]).fetchone()
        assert found is not None
        return int(found[0])


def size_of(connection: "psycopg.Connection[Any]", database: str) -> int:
    """Return what a database takes on the disk, rows that were not committed yet included."""
    found = connection.execute("SELECT pg_database_size(%s)", [database]).fetchone()
    assert found is not None
    return int(found[0])


def kill(roots: Collection[int]) -> None:
    """End processes and all that came of them by SIGKILL, all at one moment: none sees another one's end.

    Waits until whatever they had started is gone, zombies too: a tool that finds its old pid takes itself for running.
    """
    every = accounting.processes()
    killed = {process.key for root in roots for process in accounting.descendants(every, root)}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid, _ in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    deadline = time.monotonic() + GONE
    orphans = {key for key in killed if key[0] not in roots}
    while orphans & {process.key for process in accounting.processes().values()} and time.monotonic() < deadline:
        time.sleep(LOOK)
