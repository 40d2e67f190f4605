"""Windows of a real log into a real target, in this process: what a task does, without Spark, plan and marker."""

from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.source.change_log import PostgresLog, window_slice
from airflow_provider_backpressure.connectors.postgres.tasks import changes as postgres_log
from airflow_provider_backpressure.connectors.postgres.tasks.change_apply import Fold
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import RowSum
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.replay_window import goal
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, WriteSpec
from tests.support.composed import difference
from tests.support.postgres import connected, run

SOURCE, TARGET = QualifiedName(schema="public", name="t"), QualifiedName(schema="raw", name="t")


@dataclass
class Replayed:
    """``public.t`` into ``raw.t``, which is made like it."""

    database: Endpoint
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ("id",)

    def __post_init__(self) -> None:
        self.database = replace(self.database, conn_id="source")
        run(self.database, "CREATE SCHEMA raw", "CREATE TABLE raw.t (LIKE public.t INCLUDING INDEXES)")
        self.log = PostgresLog(self.database, SOURCE, f"{abs(hash(self.database.database)):032x}"[:32])
        self.at = self.log.begin()
        self.goal = self.at
        self.asked = 0
        """Rows that were read again."""

    def source(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the source, or the target."""
        return run(self.database, *statements)

    def window(self, *, bytes: int = 2**40) -> list[LogBounds]:
        """Return what is to be replayed next."""
        return self.log.windows(self.at, bytes=bytes)

    def replay(self, *, bytes: int = 2**40, release: bool = True) -> int:
        """Replay everything that was committed; return how many changes there were."""
        total = 0
        for bounds in self.window(bytes=bytes):
            total += self.one(bounds)
            self.at = bounds.end
            if release:
                self.log.release(self.at)
        return total

    def one(self, bounds: LogBounds) -> int:
        """Replay one window."""
        read = ReadSpec(kind="postgres_log", conn_id="source", columns=self.columns)
        piece = window_slice(bounds, SOURCE, "0.0")
        changes = postgres_log.changes(self.database, read, piece, self.key, "bp:plan:0.0:1")
        write = WriteSpec(
            kind="postgres",
            conn_id="sink",
            target=TARGET.sql,
            columns=self.columns,
            mode="upsert",
            key=self.key,
            plan_table="",
            commit_table="",
            fence="raw.t",
        )
        total = RowSum()
        with connected(self.database) as connection, connection.transaction():
            fold = Fold(connection, write, trusted=self.goal <= bounds.start)
            fold.make()
            fold.load(changes, total)
            if total.rows:
                fold.apply(changes)
        self.asked += bool(changes.read_at)
        self.goal = goal(self.goal, [changes.read_at])
        return total.rows

    def copy(self, condition: str) -> LogPosition:
        """Read a range of the source, as it is now, into the target."""
        names = ", ".join(column.name for column in self.columns)
        rest = ", ".join(f"{each.name} = excluded.{each.name}" for each in self.columns if each.name not in self.key)
        run(
            self.database,
            f"INSERT INTO raw.t ({names}) SELECT {names} FROM public.t WHERE {condition}"
            f" ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {rest}",
        )
        self.goal = goal(self.goal, [postgres_log.position(self.database, "bp:plan:0.0:1")])
        return self.goal

    def differs(self) -> tuple[int, int]:
        """How many rows only the source and only the target has."""
        return difference(self.database, "public.t", self.database, "raw.t")

    def close(self) -> None:
        """Let the log go."""
        self.log.drop()
        self.log.close()
