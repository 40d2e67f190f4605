"""A table that is hydrated under ``catch_up``, run after run, and what changes it meanwhile."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from airflow_provider_backpressure.core.config import Budget, NewColumn
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import LaneResult
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.catch_up_windows import check_caught_up
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.exceptions import SourceRefused
from tests.support.composed import Composed, Ports, difference
from tests.support.ledgers import new_ledger
from tests.support.postgres import connected, run
from tests.support.waiting import beside

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v int, doc text, note varchar(20))"
FILL = "INSERT INTO t SELECT g, 0, repeat(md5(g::text), 2), 'n' || g FROM generate_series(1, {}) g"


@dataclass(frozen=True, kw_only=True)
class Followed:
    """One hydration of ``public.t`` into ``raw.t``."""

    composed: Composed
    runner: Runner
    """One warm session for all tests of a module."""

    def plan(self, *, restart: bool = False) -> Planned:
        """Plan the next run."""
        with self.ports() as ports:
            return ports.planner().plan(restart=restart)

    def drain(self) -> list[LaneResult]:
        """Drain what is planned, and what follows it, as the lane's task does."""
        with self.ports() as ports:
            results = [ports.hydrator().run()]
            while ports.planner().follow():
                results.append(ports.hydrator().run())
            return results

    def stopped(self, commits: int) -> None:
        """Drain so many ranges, one after another, and no more."""
        left = commits

        def stop() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt

        with self.ports() as ports:
            hydrator = ports.hydrator()
            hydrator.share, hydrator.on_commit = 1, stop
            with pytest.raises(KeyboardInterrupt):
                hydrator.run()
            hydrator.cancel()

    def without_ledger(self, folder: Path) -> Self:
        """Return the hydration with a ledger that knows nothing."""
        return replace(self, composed=replace(self.composed, ledger_url=new_ledger(folder / "fresh.db")))

    def finish(self) -> Hydration:
        """End the run, as its last task does."""
        with self.ports() as ports:
            check_caught_up(ports.plan, ports.sink)
            return ports.ledger.finish(ports.hydration.id)

    def go(self) -> Planned:
        """Run once from beginning to end."""
        planned = self.plan()
        self.drain()
        self.finish()
        return planned

    def differs(self) -> tuple[int, int]:
        """How many rows only the source and only the target has."""
        return difference(self.composed.source, "public.t", self.composed.sink, "raw.t")

    def source(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the source."""
        return run(self.composed.source, *statements)

    def sink(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the sink."""
        return run(self.composed.sink, *statements)

    def sums(self) -> tuple[Any, Any]:
        """Return count and sum of hashes of source and target."""
        query = "SELECT count(*), sum(hashtextextended(x::text, 0)) FROM {} x"
        return self.source(query.format("public.t"))[0], self.sink(query.format("raw.t"))[0]

    @contextmanager
    def ports(self) -> Iterator[Ports]:
        """Open the ports."""
        with self.composed.open(self.runner) as ports:
            yield ports

    def slots(self) -> list[tuple[Any, ...]]:
        """Return the slots of the source's database."""
        return self.source(
            "SELECT slot_name::text, confirmed_flush_lsn - '0/0' FROM pg_replication_slots"
            " WHERE database = current_database()"
        )


def follow(hydration: Composed, runner: Runner, logins: dict[str, Endpoint], budget: Budget | None = None) -> Followed:
    """Let a hydration follow its source, run by a session that logs in by these."""
    logins.update({name: replace(getattr(hydration, name), conn_id=name) for name in ("source", "sink")})
    budget = budget or Budget(credits=2, range_rows=2000)
    composed = replace(hydration, mode="upsert", consistency="catch_up", budget=budget)
    return Followed(composed=composed, runner=runner)


def check_added_column(followed: Followed, *filled: str) -> None:
    """Fail unless a column that comes is followed by policy, and none with a default. ``filled`` makes it."""
    followed.source(*filled)
    followed.go()
    followed.source("UPDATE t SET v = 5 WHERE id = 1", "ALTER TABLE t ADD COLUMN more varchar(9)")
    followed.source("UPDATE t SET more = 'x' WHERE id = 2", "INSERT INTO t VALUES (9000, 1, NULL, 'n', 'y')")
    with pytest.raises(SourceRefused, match="column more was added"):
        followed.plan()
    with followed.ports() as ports:
        assert replace(ports.planner(), on_new_column=NewColumn.ADD).plan().verdict is Verdict.PLANNED
    followed.drain()
    followed.finish()
    assert followed.sink("SELECT id, more FROM raw.t WHERE more IS NOT NULL ORDER BY 1") == [(2, "x"), (9000, "y")]
    followed.source("UPDATE t SET more = 'z' WHERE id < 9", "UPDATE t SET id = -id WHERE id = 20")
    assert followed.go().verdict is Verdict.PLANNED
    assert followed.differs() == (0, 0)
    followed.source("ALTER TABLE t ADD COLUMN d int DEFAULT 7")
    with followed.ports() as ports, pytest.raises(SourceRefused, match="column d was added with a default"):
        replace(ports.planner(), on_new_column=NewColumn.ADD).plan()


def beats(stop: threading.Event, every: float) -> Iterator[None]:
    """Give a beat every so many seconds until told to stop; those missed within the last second are made up for."""
    due = time.monotonic()
    while not stop.wait(max(0.0, due - time.monotonic())):
        yield
        due = max(due + every, time.monotonic() - 1)


@dataclass
class Writer:
    """Writes at random, by a seed: inserts, updates, deletes, key updates, long transactions and rollbacks."""

    endpoint: Endpoint
    seed: int
    keys: int
    every: float = 0.002
    """Seconds from one change to the next; the long transactions' come on top."""
    changes: int = 0
    seconds: float = 0.0
    """In which it wrote, without its pauses."""

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._next = self.keys * 10
        self._turns = threading.Lock(), threading.Lock()

    @contextmanager
    def writing(self) -> Iterator["Writer"]:
        """Write until the block is left."""
        with beside(self._long), beside(self._short):
            self.seconds -= time.monotonic()
            try:
                yield self
            finally:
                self.seconds += time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let nothing be changed, and no transaction be open, until the block is left."""
        short, long = self._turns
        with short, long:
            self.seconds += time.monotonic()
            yield
            self.seconds -= time.monotonic()

    def _short(self, over: threading.Event) -> None:
        with connected(self.endpoint) as connection:
            for _ in beats(over, self.every):
                with self._turns[0]:
                    self._change(connection)

    def _long(self, over: threading.Event) -> None:
        """Change much in transactions that stay open for a while, half of which are rolled back."""
        draw = random.Random(self.seed + 1)
        with connected(self.endpoint, autocommit=False) as connection:
            while not over.wait(0.01):
                with self._turns[1]:
                    self._transaction(connection, draw, over)

    def _transaction(self, connection: psycopg.Connection[Any], draw: random.Random, over: threading.Event) -> None:
        first = draw.randint(1, self.keys)
        try:
            connection.execute("UPDATE t SET v = v + 1000 WHERE id BETWEEN %s AND %s", (first, first + 50))
            connection.execute("DELETE FROM t WHERE id BETWEEN %s AND %s", (first + 60, first + 63))
            over.wait(draw.uniform(0.05, 0.5))
            connection.commit() if draw.random() < 0.5 else connection.rollback()
        except psycopg.errors.DeadlockDetected:
            connection.rollback()

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        draw, key = self._draw, self._draw.randint(1, self.keys)
        self._next += 1
        self.changes += 1
        try:
            match draw.randint(0, 9):
                case 0 | 1:
                    big = "".join(draw.choices("abcdefghij", k=12_000)) if draw.random() < 0.3 else f"d{key}"
                    connection.execute("INSERT INTO t VALUES (%s, 1, %s, 'new')", (self._next, big))
                case 2:
                    connection.execute("DELETE FROM t WHERE id = %s", (key,))
                case 3 | 4:
                    connection.execute("UPDATE t SET id = %s WHERE id = %s", (self._next, key))
                case 5:
                    back = (key, draw.randint(self.keys * 10, self._next))
                    connection.execute(
                        "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)", (*back, key)
                    )
                case 6:
                    connection.execute("UPDATE t SET doc = NULL, note = 'x\ty\\z' WHERE id = %s", (key,))
                case _:
                    connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", (draw.choice((key, self._next - 5)),))
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            return


@dataclass
class Watch:
    """Sees how long the product's transactions in a source take, how old their snapshots are, and what they lock."""

    endpoint: Endpoint
    longest: float = 0.0
    """Seconds of the longest transaction."""
    snapshot: int = 0
    """Transactions that have begun since the oldest snapshot."""
    locks: int = 0
    """Locks of ``public.t`` for which a writer would have to wait."""

    @contextmanager
    def watching(self) -> Iterator["Watch"]:
        """Look until the block is left."""

        def look(over: threading.Event) -> None:
            with connected(self.endpoint) as connection:
                while not over.wait(0.1):
                    row = connection.execute(_OURS).fetchone()
                    assert row is not None
                    self.longest, self.snapshot = max(self.longest, float(row[0])), max(self.snapshot, row[1])
                    self.locks = max(self.locks, row[2])

        with beside(look):
            yield self

    def check(self, *, seconds: float) -> None:
        """Fail unless every transaction was shorter, and no lock stood in a writer's way."""
        assert 0 < self.longest < seconds
        assert self.locks == 0

    def __str__(self) -> str:
        """Return what was seen."""
        return f"our longest transaction {self.longest:.2f} s, oldest snapshot {self.snapshot} xids"


_OURS = """
    SELECT coalesce(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0),
           coalesce(max(age(a.backend_xmin)), 0),
           count(*) FILTER (WHERE EXISTS (
               SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = to_regclass('public.t')
                 AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')))
    FROM pg_stat_activity a
    WHERE (a.application_name LIKE 'bp-read:%' OR a.application_name LIKE 'backpressure%')
      AND a.datname = current_database()
"""
