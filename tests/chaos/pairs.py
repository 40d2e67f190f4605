"""Every source with every target: which pairs the product takes, and a run of each in a process that may be killed."""

import logging
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pymysql

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.failpoints import ON, Action, Step
from airflow_provider_backpressure.exceptions import PlanOutdated, SnapshotLost
from dev.services import Server
from tests.support import kafka as on_kafka
from tests.support import lakes
from tests.support import mysql as on_mysql
from tests.support.composed import Composed, close_runners
from tests.support.local_runner import LocalRunner
from tests.support.postgres import run

ROWS, RANGE_ROWS, RANGES = 600, 100, 6
SEED = "CHAOS_PAIRS"
"""Environment variable: ``all`` runs every cell once; without it a sample is run, the next one each day."""
LIGHT_A_DAY, HEAVY_A_DAY = 3, 1
"""Cells in the sample of a day. A heavy cell runs Spark, or starts a server again."""
DONE, AGAIN, UNARMED = 0, 2, 9
"""Exit codes of a life: nothing is left, its plan was closed and made again, it was started without failpoints."""


class From(StrEnum):
    """A source and how it is read."""

    POSTGRES_STATIC = "postgres static"
    POSTGRES_SNAPSHOT = "postgres snapshot"
    POSTGRES_WINDOW = "postgres window"
    MYSQL_STATIC = "mysql static"
    MYSQL_WINDOW = "mysql window"
    KAFKA_APPEND = "kafka append"
    KAFKA_UPSERT = "kafka upsert"


class Into(StrEnum):
    """A target and how it is written."""

    POSTGRES = "postgres"
    REPLACED = "postgres replaced"
    TRANSFORMED = "postgres transformed"
    """The frame path with a transform in SQL: a real Spark runs the ranges."""
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Struck(StrEnum):
    """What is struck."""

    PROCESS = "process"
    """The lane's process by SIGKILL. Its tasks die with it, but those on Spark go on."""
    TASK = "task"
    """Spark's Python worker that runs the task, by SIGKILL."""
    SOURCE = "source"
    """Every connection to the source: the source's server ends it."""
    SERVER = "server"
    """The source's server with all its processes, by SIGKILL. It starts again with its data."""


_OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_OTHERS_OF_MYSQL = "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()"
WINDOWS = (From.POSTGRES_WINDOW, From.MYSQL_WINDOW)
KAFKA = (From.KAFKA_APPEND, From.KAFKA_UPSERT)
IN_TASK = (Step.IN_COPY, Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT)
"""Steps that the task passes. The lane passes the others."""
REFUSED: dict[tuple[From, Into], str] = {
    **{(source, Into.REPLACED): "needs mode='upsert'" for source in WINDOWS},
    **{(source, Into.REPLACED): "mode='replace' takes all rows again" for source in KAFKA},
    **{(source, Into.TRANSFORMED): "leave the transform out" for source in WINDOWS},
    **{(source, Into.PARQUET): "Parquet files take append only" for source in (*WINDOWS, From.KAFKA_UPSERT)},
    **{(source, into): "sink does not take deletes" for source in WINDOWS for into in (Into.DELTA, Into.ICEBERG)},
}
"""Pairs that are refused, and what the refusal says."""
PAIRS = [(source, into) for source in From for into in Into if (source, into) not in REFUSED]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A pair, struck at a step."""

    source: From
    into: Into
    struck: Struck
    step: Step

    def __str__(self) -> str:
        """Return the test's id."""
        return f"{self.source}-{self.into}-{self.struck}-{self.step}".replace(" ", "_")

    def number(self, day: int) -> int:
        """Return at which pass of the step; a log is replayed in one window."""
        return 1 if self.source in WINDOWS else random.Random(f"{self} {day}").randint(1, RANGES - 1)

    @property
    def system(self) -> str:
        """The kind of the source's server, as ``dev.services`` names it."""
        return self.source.partition(" ")[0]

    @property
    def on_spark(self) -> bool:
        """Whether Spark runs the tasks, and not threads of the lane's process."""
        return self.into is Into.TRANSFORMED

    @property
    def heavy(self) -> bool:
        """Whether it takes long."""
        return self.on_spark or self.struck is Struck.SERVER

    @property
    def exists(self) -> bool:
        """Whether there is something to strike at this step."""
        if self.struck is Struck.TASK:
            return self.on_spark and self.step in IN_TASK
        # A broker has no command that ends a connection.
        return self.struck is not Struck.SOURCE or self.source not in KAFKA

    @property
    def action(self) -> Action:
        """What the failpoint does: it kills the process that passes it, or holds it until something else is struck."""
        lane = self.struck is Struck.PROCESS and not (self.on_spark and self.step in IN_TASK)
        return Action.KILL if lane or self.struck is Struck.TASK else Action.WAIT


def day() -> int:
    """Return the number of the day, from which its sample and its passes follow."""
    return int(time.time() // 86_400)


def all_cells() -> list[Cell]:
    """Return every cell."""
    found = [
        Cell(source=source, into=into, struck=struck, step=step)
        for source, into in PAIRS
        for struck in Struck
        for step in Step
    ]
    return [cell for cell in found if cell.exists]


def cells() -> list[Cell]:
    """Return every cell, or those of the day."""
    if os.environ.get(SEED):
        # In the days' order: a run that is stopped has seen something of everything.
        return sample(all_cells(), len(all_cells()), 0)
    light = [cell for cell in all_cells() if not cell.heavy]
    heavy = [cell for cell in all_cells() if cell.heavy]
    return [*sample(light, LIGHT_A_DAY, day()), *sample(heavy, HEAVY_A_DAY, day())]


def sample(cells: list[Cell], number: int, day: int) -> list[Cell]:
    """Return so many cells of a day. The days go through all of them in a fixed order, and then begin again."""
    order = random.Random(0).sample(cells, len(cells))
    return [order[(day * number + index) % len(order)] for index in range(number)]


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Where everything is."""

    source: Endpoint
    """A database, or a broker."""
    target: Endpoint
    spark: Server | None = None
    """For tasks that do not run in the lane's process."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair that is ready to be planned."""

    composed: Composed
    wanted: Callable[[], list[tuple[Any, ...]]]
    found: Callable[[], list[tuple[Any, ...]]]
    change: Callable[[], object]
    """Change what a window is to bring."""
    end_connections: Callable[[], object]
    """End every connection to the source."""

    def differs(self) -> int:
        """Return how many rows are only on one side, or there twice."""
        wanted, found = self.wanted(), self.found()
        return len(set(wanted) ^ set(found)) + len(found) - len(set(found))


def pair(source: From, into: Into, servers: Servers, ledger_url: str, folder: Path) -> Pair:
    """Make source and target."""
    spark = servers.spark if into is Into.TRANSFORMED else None
    base = Composed(
        source=servers.source,
        sink=servers.target,
        ledger_url=ledger_url,
        remote=spark.url if spark else "",
        ui_url=spark.ui_url if spark else None,
        mode="replace" if into is Into.REPLACED else "append",
        budget=Budget(range_rows=RANGE_ROWS, credits=2),
        into={} if into.startswith("postgres") else lakes.place(into.value, folder),
    )
    if source in KAFKA:
        return _topic(base, upserts=source is From.KAFKA_UPSERT, transformed=into is Into.TRANSFORMED)
    window = source in WINDOWS
    consistency = "catch_up" if window else "snapshot" if source is From.POSTGRES_SNAPSHOT else "static"
    base = replace(base, consistency=consistency, mode=_mode(base.mode, into, upserts=window))
    if into is Into.TRANSFORMED:
        base = replace(base, transform="SELECT id, concat(upper(name), '!') AS name FROM source")
    if source in (From.MYSQL_STATIC, From.MYSQL_WINDOW):
        return _table(replace(base, kind="mysql", table="t"), on_mysql.run)
    return _table(base, run)


def _mode(mode: str, into: Into, *, upserts: bool) -> str:
    return "upsert" if upserts and into is not Into.REPLACED else mode


def _table(composed: Composed, ask: Callable[..., list[tuple[Any, ...]]]) -> Pair:
    ask(composed.source, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))")
    ask(composed.source, "INSERT INTO t VALUES " + ", ".join(f"({n}, 'row {n}')" for n in range(ROWS)))

    def end_connections() -> None:
        if composed.kind == "postgres":
            ask(composed.source, f"SELECT pg_terminate_backend(pid) {_OTHERS}")
            return
        for (number,) in ask(composed.source, _OTHERS_OF_MYSQL):
            with suppress(pymysql.OperationalError):  # It has ended by itself.
                ask(composed.source, f"KILL {number}")

    def wanted() -> list[tuple[Any, ...]]:
        rows = sorted((int(number), name) for number, name in ask(composed.source, "SELECT id, name FROM t"))
        return [(number, f"{name.upper()}!") for number, name in rows] if composed.transform else rows

    return Pair(
        composed=composed,
        wanted=wanted,
        found=lambda: _rows(composed, "id", "name"),
        change=lambda: ask(
            composed.source,
            "UPDATE t SET name = 'changed' WHERE id < 50",
            "DELETE FROM t WHERE id BETWEEN 50 AND 60",
            "INSERT INTO t VALUES (-1, 'new')",
            "UPDATE t SET id = -id WHERE id BETWEEN 100 AND 120",
        ),
        end_connections=end_connections,
    )


def _topic(composed: Composed, *, upserts: bool, transformed: bool) -> Pair:
    topic = on_kafka.Topic(servers=composed.source.host).create(2)
    last: dict[str, str] = {}
    with topic.producing(enable_idempotence=True) as producer:  # A retry keeps the order of records.
        for number in range(ROWS):
            key = f"key {number % 2} {number % 140}" if upserts else f"key {number % 2} {number}"
            last[key] = f'{{"n": {number}}}'
            producer.produce(topic.name, last[key].encode(), key.encode(), number % 2)
    composed = replace(
        composed,
        kind="kafka",
        table=topic.name,
        consistency="offsets",
        mode="upsert" if upserts and composed.mode != "replace" else composed.mode,
        reading={"key": "text"},
        transform="SELECT *, concat('<', key, '>') AS marked FROM source" if transformed else None,
    )
    return Pair(
        composed=composed,
        wanted=lambda: sorted((f"<{key}>" if transformed else key, value) for key, value in last.items()),
        found=lambda: _rows(composed, "marked" if transformed else "key", "value"),
        change=lambda: None,
        end_connections=lambda: None,
    )


def _rows(composed: Composed, *names: str) -> list[tuple[Any, ...]]:
    if composed.into:
        table = lakes.table(**composed.into).select(names)
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
    texts = ", ".join("value::text" if name == "value" else name for name in names)
    return sorted(run(composed.sink, f"SELECT {texts} FROM {composed.target}"))


def runner_of(composed: Composed) -> LocalRunner | None:
    """Return a runner for both sides; ``None`` where ``Composed`` itself opens one on Spark."""
    if composed.remote:
        return None
    return LocalRunner(logins={name: replace(getattr(composed, name), conn_id=name) for name in ("source", "sink")})


def live(config: str, log: str) -> None:
    """Drain what is planned as the lane's task does, with its tasks in threads or on Spark, and end."""
    if not ON:
        os._exit(UNARMED)
    with Path(log).open("ab", buffering=0) as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    logging.basicConfig(level=logging.INFO, format="%(process)d %(name)s %(message)s")
    composed = Composed.read(Path(config))
    code = 1
    try:
        with composed.open(runner_of(composed)) as ports:
            try:
                code = DONE if ports.hydrator().run().outcome is Outcome.DONE else 1
                while code == DONE and ports.planner().follow():
                    ports.hydrator().run()
            except SnapshotLost as error:
                if isinstance(error, PlanOutdated) or not ports.plan.survives:
                    ports.close_plan()
                code = AGAIN
        close_runners()
    except Exception:
        logging.exception("this life ended")
    sys.stderr.flush()
    os._exit(code)


def begun(config: Path, log: Path) -> Any:
    """Return the process of a lane that has just begun."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.chaos.lane", "pandas", "pyarrow", "airflow_provider_backpressure.spark.job"])
    process = context.Process(target=live, args=(str(config), str(log)))
    process.start()
    return process
