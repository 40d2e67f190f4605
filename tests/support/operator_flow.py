"""The tasks of a group of followed tables, run as Airflow runs them, here or in a process that a test may kill.

Connections, ledger, databases and tasks are the real ones; ranges are carried out in this process, or by Spark.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_backpressure import base_operator
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.hooks import spark_and_yarn
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.operators import (
    HydrateOperator,
    PlanSnapshotOperator,
    VerifyHydrationOperator,
    shared_log_lane,
)
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from tests.support.composed import ROOT, difference
from tests.support.ledgers import new_ledger
from tests.support.local_runner import LocalRunner
from tests.support.postgres import connected, run
from tests.support.streaming import TABLE
from tests.support.waiting import beside
from tests.support.world import context

BUDGET = Budget(credits=2, range_rows=40)


@dataclass(frozen=True, kw_only=True)
class OperatorFlow:
    """One task group of tables of ``public`` into those of ``raw``, as a value that another process can read."""

    database: Endpoint
    ledger: str
    """File of the ledger."""
    target: Endpoint | None = None
    """Where the target's tables are, if not beside the source's."""
    names: tuple[str, ...] = ("a", "b", "c")
    tables: tuple[str, ...] = ()
    """Tables that are declared; those of ``public`` that are named where it is empty."""
    policy: str = "stop_and_keep"
    on_new_column: str = "stop"
    spark: int = 0
    """Port of a Spark Connect server of this host; 0: ranges are carried out here."""
    sink: dict[str, Any] = field(default_factory=dict)
    """What else the sink is declared with."""
    range_rows: int = BUDGET.range_rows
    turn_seconds: float = shared_log_lane.TURN_SECONDS
    """For how long ranges are begun before windows go in between."""
    group: str = "shop"
    dag_id: str = "follow"
    run_id: str = "run 1"
    conf: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, database: Endpoint, folder: Path, **values: Any) -> "OperatorFlow":
        """Make the tables, each with some rows, and a ledger."""
        new_ledger(folder / "ledger.db")
        made = cls(database=database, ledger=str(folder / "ledger.db"), **values)
        for name in made.names:
            made.make_table(name)
        return made

    def make_table(self, name: str) -> None:
        """Make a table."""
        self.do(*TABLE.format(name).split(";"))
        self.do(f"INSERT INTO {name} SELECT g, 0, repeat('x', 3000) FROM generate_series(1, 100) g", f"ANALYZE {name}")

    def do(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the source, or the target."""
        return run(self.database, *statements)

    def change(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the source."""
        return self.do(*statements)

    def declare_source(self) -> Any:
        """Return the declared source."""
        tables = self.tables or tuple(f"public.{name}" for name in self.names)
        return PostgresSource(conn_id="source", tables=tables, at_wal_limit=self.policy)

    @property
    def declared(self) -> dict[str, Any]:
        """Arguments of every operator."""
        return {
            "source": self.declare_source(),
            "sink": PostgresSink(**{"conn_id": "warehouse", "table": "raw.{table}", **self.sink}),
            "spark_conn_id": "spark",
            "budget": replace(BUDGET, range_rows=self.range_rows),
        }

    @contextmanager
    def airflow(self) -> Iterator[None]:
        """Let connections lead to these databases, and ranges be carried out here."""
        runners = {} if self.spark else {"spark_connect": lambda request: LocalRunner(logins=request.endpoints)}
        with (
            mock.patch.dict(os.environ, self._environment()),
            mock.patch.dict(spark_and_yarn.RUNNERS, runners),
            mock.patch.object(base_operator, "is_running", return_value=False),
            mock.patch.object(shared_log_lane, "TURN_SECONDS", self.turn_seconds),
        ):
            yield

    def plan(self, *, tries: int = 0) -> Any:
        """Plan; return what the other tasks get of it, ``None`` where nothing is to be done."""
        given = self._context("plan_snapshot", tries)
        consistency = {"mode": "upsert", "consistency": "catch_up", "on_new_column": self.on_new_column}
        with self.airflow():
            task = PlanSnapshotOperator(task_id=f"{self.group}.plan_snapshot", **self.declared, **consistency)
            try:
                task.execute(given)
            except AirflowSkipException:
                return None
            finally:
                self._keep(given["ti"].pushed.get("tables"))
        return given["ti"].pushed["tables"]

    def hydrate(self, tables: Any, *, tries: int = 0, **values: Any) -> Any:
        """Drain what was planned, and the log behind it."""
        with self.airflow():
            task = HydrateOperator(task_id=f"{self.group}.hydrate_ranges", tables=tables, **self.declared, **values)
            return task.execute(self._context("hydrate_ranges", tries))

    def verify(self, tables: Any, *, tries: int = 0, **values: Any) -> Any:
        """Verify it; return what the task does."""
        given = self._context("verify_hydration", tries)
        with self.airflow():
            name = f"{self.group}.verify_hydration"
            task = VerifyHydrationOperator(task_id=name, tables=tables, **self.declared, **values)
            return task.execute(given)

    def run(self) -> bool:
        """Do a whole run; whether anything was to be done."""
        tables = self.plan()
        if tables is None:
            return False
        self.hydrate(tables)
        self.verify(tables)
        return True

    def with_run(self, name: str, **conf: str) -> "OperatorFlow":
        """Return the flow of another run."""
        return replace(self, run_id=name, conf=conf)

    def process(self, folder: Path, **environment: str) -> "subprocess.Popen[bytes]":
        """Do the run in a process of its own."""
        config = folder / "flow.json"
        self.write(config)
        with (folder / "flow.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", type(self).__module__, str(config)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    def write(self, path: Path) -> None:
        """Write it down for another process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "OperatorFlow":
        """Read what :meth:`process` wrote."""
        value: dict[str, Any] = json.loads(path.read_text())
        places = {name: Endpoint(**value[name]) for name in ("database", "target") if value[name]}
        return cls(**{**value, **places, "names": tuple(value["names"]), "tables": ()})

    def hydrations(self) -> list[Hydration]:
        """Return what the ledger has."""
        with closing(SqlLedger(f"sqlite:///{self.ledger}")) as ledger:
            return ledger.hydrations()

    @property
    def stream(self) -> str:
        """The id of the log's hydration."""
        (found,) = {one.plan.stream for one in self.hydrations() if one.plan and one.plan.stream}
        return found

    def slots(self) -> list[str]:
        """Return the names of the database's slots."""
        query = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
        return [name for (name,) in self.do(query)]

    def published(self) -> list[tuple[str, str]]:
        """Return publications with their tables."""
        return [
            (pub, table) for pub, table in self.do("SELECT pubname, tablename FROM pg_publication_tables ORDER BY 2")
        ]

    def differs(self, *names: str) -> dict[str, tuple[int, int]]:
        """Return how many rows only the source and only the target has, of the tables that are not the same."""
        found = {
            name: difference(self.database, f"public.{name}", self.target or self.database, f"raw.{name}")
            for name in names or self.names
        }
        return {name: each for name, each in found.items() if each != (0, 0)}

    def close(self) -> None:
        """Let every log go."""
        for name in self.slots():
            self.do(f"SELECT pg_drop_replication_slot('{name}')")

    def _context(self, task_id: str, tries: int) -> Any:
        given = context(dag_id=self.dag_id, run_id=self.run_id, task_id=f"{self.group}.{task_id}", conf=self.conf)
        given["ti"].try_number, given["ti"].max_tries = 1, tries
        return given

    def _keep(self, tables: Any) -> None:
        """Keep what the planning task has pushed, as Airflow does: a process that is killed has not lost it."""
        Path(f"{self.ledger}.tables").write_text(json.dumps(tables))

    @property
    def pushed(self) -> Any:
        """What the planning task has pushed last."""
        return json.loads(Path(f"{self.ledger}.tables").read_text())

    def _environment(self) -> dict[str, str]:
        connections = {
            "source": _login(self.database),
            "warehouse": _login(self.target or self.database),
            "spark": {"conn_type": "spark_connect", "host": "127.0.0.1", "port": self.spark or 15002},
            "backpressure_default": {"conn_type": "backpressure", "extra": {"path": self.ledger}},
        }
        return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in connections.items()}


def _login(at: Endpoint) -> dict[str, Any]:
    names = {"conn_type": "postgres", "host": at.host, "port": at.port, "schema": at.database}
    return {**names, "login": at.user, "password": at.password}


def write_at_random(connection: "psycopg.Connection[Any]", names: tuple[str, ...], draw: Any) -> None:
    """Change a row or two of one of these tables."""
    name, key, other = draw.choice(names), draw.randint(1, 150), draw.randint(1, 150)
    match draw.randint(0, 9):
        case 0 | 1:
            connection.execute(f"DELETE FROM {name} WHERE id = {key}")
        case 2 | 3:
            connection.execute(
                f"UPDATE {name} SET id = {other} WHERE id = {key}"
                f" AND NOT EXISTS (SELECT FROM {name} WHERE id = {other})"
            )
        case 4 | 5 | 6:
            connection.execute(f"UPDATE {name} SET v = v + 1 WHERE id IN ({key}, {other})")
        case _:
            connection.execute(
                f"INSERT INTO {name} VALUES ({key}, 0, repeat('y', {draw.choice((3, 3000))}))"
                " ON CONFLICT (id) DO UPDATE SET doc = excluded.doc"
            )


@contextmanager
def writing(flow: OperatorFlow, seed: int = 0, *, seconds: float = 3.0, every: float = 0.005) -> Iterator[None]:
    """Write transactions over several tables until the block is left, or for so long; ``every``: seconds.

    Keys that move with values that are not logged are read again, which may keep a target from catching up for long.
    """

    def write(over: threading.Event) -> None:
        draw, end = random.Random(seed), time.monotonic() + seconds
        with connected(flow.database, autocommit=False) as connection:
            while not over.wait(every) and time.monotonic() < end:
                try:
                    for _ in range(draw.randint(1, 6)):
                        write_at_random(connection, flow.names, draw)
                    connection.commit() if draw.random() < 0.9 else connection.rollback()
                except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    connection.rollback()

    with beside(write):
        yield


if __name__ == "__main__":
    OperatorFlow.read(Path(sys.argv[1])).run()
