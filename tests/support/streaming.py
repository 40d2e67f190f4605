"""Several tables that share a slot, replayed window by window in this process: what a task does, without Spark."""

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.source.change_log import PostgresLog, window_slice
from airflow_provider_backpressure.connectors.postgres.tasks import changes as postgres_log
from airflow_provider_backpressure.connectors.postgres.tasks.change_apply import replay_slice
from airflow_provider_backpressure.core.config import Consistency, Log, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag, slice_id
from airflow_provider_backpressure.core.snapshot.replay_window import COLUMN, ReplayWindow, goal
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    Column,
    RangeSpec,
    ReadSpec,
    SliceResult,
    StreamTable,
    WriteSpec,
)
from airflow_provider_backpressure.sinks import PostgresSink
from tests.support.composed import difference
from tests.support.postgres import connected, run
from tests.support.waiting import beside

COLUMNS = tuple(
    Column(name=name, type=type_) for name, type_ in {"id": "integer", "v": "integer", "doc": "text"}.items()
)
TABLE = "CREATE TABLE {0} (id int PRIMARY KEY, v int, doc text); ALTER TABLE {0} ALTER doc SET STORAGE EXTERNAL"


@dataclass
class Stream:
    """Tables of ``public`` into those of ``raw``."""

    database: Endpoint
    names: tuple[str, ...] = ("a", "b", "c")
    tables: dict[str, StreamTable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source, self.sink = (replace(self.database, conn_id=name) for name in ("source", "sink"))
        for name in self.names:
            run(self.database, *TABLE.format(name).split(";"))
        qualified = [QualifiedName(schema="public", name=name) for name in self.names]
        self.log = PostgresLog(self.source, qualified, uuid.uuid4().hex)
        self.at = self.goal = self.log.begin()
        self._windows = 0
        for name in self.names:
            self.hold(name)

    def hold(self, name: str) -> None:
        """Let a plan of a table's own hydration take its target."""
        with self.target(name) as target:
            write = replace(target.fit(COLUMNS, mode="upsert", key=("id",), log=Log.CHANGES), ordered=True)
            target.prepare(write)
            read = ReadSpec(kind="postgres", conn_id="source", columns=COLUMNS)
            plan = self._plan(name, read, write)
            table = QualifiedName(schema="public", name=name)
            query = window_slice(LogBounds(stream=self.log.stream, start=self.at, end=after(self.at)), table, "").query
            epoch = target.begin(plan)
        self.tables[name] = StreamTable(plan_id=plan.plan_id, epoch=epoch, query=query, read=read, write=write)

    @contextmanager
    def target(self, name: str) -> Iterator[Sink]:
        """Open a target."""
        with closing(PostgresSink(conn_id="sink", table=f"raw.{name}").open(self.sink)) as target:
            yield target

    def _plan(self, name: str, read: ReadSpec, write: WriteSpec) -> Plan:
        return Plan(
            plan_id=uuid.uuid4().hex,
            epoch=0,
            source_identity=f"source {name}",
            sink_identity=f"sink {name}",
            consistency=Consistency.CATCH_UP,
            mode=Mode.UPSERT,
            frontier={},
            fingerprint="",
            total=None,
            total_exact=False,
            path="replay",
            read=read,
            write=write,
        )

    def plan(self, *, bytes: int = 2**40) -> list[RangeSpec]:
        """Plan what was committed since, as attempts that can be submitted."""
        windows = self.log.windows(self.at, bytes=bytes)
        if not windows:
            return []
        replayed = ReplayWindow(
            stream=self.log.stream, start=self.at, end=windows[-1].end, goal=self.goal, first=not self._windows
        )
        self._windows += 1
        tables = tuple(self.tables.values())
        write = replace(tables[0].write, target="", columns=(), key=(), fence=f"raw.{self.log.stream}")
        read = ReadSpec(
            kind="postgres_log", conn_id="source", columns=(), window=replayed.window(None if replayed.first else "")
        )
        assert read.window is not None
        assert read.window.column == COLUMN
        plan = self._plan(self.log.stream, read, write)
        with self.target(self.log.stream) as target:
            epoch = target.begin(plan)
        return [self._spec(replace(plan, epoch=epoch), seq, bounds, tables) for seq, bounds in enumerate(windows)]

    def _spec(self, plan: Plan, seq: int, bounds: LogBounds, tables: tuple[StreamTable, ...]) -> RangeSpec:
        piece = window_slice(bounds, QualifiedName(schema="public", name=""), slice_id(seq, 0))
        spec = RangeSpec(
            hydration_id="",
            plan_id=plan.plan_id,
            epoch=plan.epoch,
            seq=seq,
            attempt=1,
            tag=attempt_tag(plan.plan_id, piece.slice_id, 1),
            path="replay",
            read=plan.read,
            write=plan.write,
            slices=(piece,),
            tables=tables,
        )
        return RangeSpec.from_json(spec.to_json())

    def attempt(self, spec: RangeSpec) -> SliceResult:
        """Make an attempt, and go on behind it."""
        result = replay_slice(spec, spec.slices[0], self.source, self.sink)
        self.goal = goal(self.goal, [result.read_at])
        bounds = postgres_log.bounds_from_json(dict(spec.slices[0].bounds))
        assert isinstance(bounds, LogBounds)
        self.at = bounds.end
        self.log.release(self.at)
        return result

    def replay(self, *, bytes: int = 2**40) -> int:
        """Replay everything that was committed by now; return how many changes there were."""
        return sum(self.attempt(spec).rows for spec in self.plan(bytes=bytes))

    def catch_up(self) -> None:
        """Replay until the tables are those of the source, which nobody changes meanwhile."""
        while self.replay() or self.at < self.goal:
            pass

    def copy(self, name: str, condition: str = "true") -> None:
        """Read a range of a table, as it is now, into its target."""
        run(
            self.database,
            f"INSERT INTO raw.{name} SELECT * FROM public.{name} WHERE {condition}"
            " ON CONFLICT (id) DO UPDATE SET v = excluded.v, doc = excluded.doc",
        )
        self.goal = goal(self.goal, [postgres_log.position(self.source, "bp:plan:0.0:1")])

    def do(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the source, or the target."""
        return run(self.database, *statements)

    def differs(self) -> dict[str, tuple[int, int]]:
        """How many rows only the source and only the target has, of the tables that are not the same."""
        found = {name: difference(self.database, f"public.{name}", self.database, f"raw.{name}") for name in self.names}
        return {name: each for name, each in found.items() if each != (0, 0)}

    def close(self) -> None:
        """Let the log go."""
        self.log.drop()
        self.log.close()


def after(position: Any) -> Any:
    """Return a position behind another one."""
    return replace(position, at=position.at + 1)


@dataclass
class Writer:
    """Writes transactions over several tables, by a seed: savepoints, changed keys, long values, truncates."""

    stream: Stream
    seed: int
    keys: int = 60
    transactions: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write until the block is left; two sessions, so that transactions overlap."""
        with beside(self._write), beside(self._write):
            yield

    def _write(self, over: threading.Event) -> None:
        draw = random.Random(self._draw.random())
        with connected(self.stream.database, autocommit=False) as connection:
            connection.execute("SET deadlock_timeout = '50ms'")
            connection.commit()
            while not over.wait(0.01):
                try:
                    for _ in range(draw.randint(1, 8)):
                        self._change(connection, draw)
                    connection.commit() if draw.random() < 0.85 else connection.rollback()
                    self.transactions += 1
                except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    connection.rollback()

    def _change(self, connection: psycopg.Connection[Any], draw: random.Random) -> None:
        name, key, other = draw.choice(self.stream.names), draw.randint(1, self.keys), draw.randint(1, self.keys)
        long = f"repeat('{draw.choice('abcdef')}', {draw.choice((3, 3000))})"
        match draw.randint(0, 40):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                connection.execute(f"DELETE FROM {name} WHERE id = {key}")
            case 7 | 8 | 9 | 10 | 11 | 12:
                connection.execute(
                    f"UPDATE {name} SET id = {other} WHERE id = {key}"
                    f" AND NOT EXISTS (SELECT FROM {name} WHERE id = {other})"
                )
            case 13:
                connection.execute(f"TRUNCATE {', '.join(draw.sample(self.stream.names, 2))}")
            case 14 | 15 | 16:
                connection.execute("SAVEPOINT s")
                connection.execute(f"UPDATE {name} SET v = -1, doc = {long} WHERE id = {key}")
                connection.execute(f"{draw.choice(('ROLLBACK TO', 'RELEASE'))} s")
            case number if number < 27:
                connection.execute(f"UPDATE {name} SET v = v + 1 WHERE id IN ({key}, {other})")
            case _:
                connection.execute(
                    f"INSERT INTO {name} VALUES ({key}, 0, {long}) ON CONFLICT (id) DO UPDATE SET doc = excluded.doc"
                )
