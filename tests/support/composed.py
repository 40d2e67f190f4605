"""One hydration composed from the real parts without Airflow, to be run here or in a process that a test may kill."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_backpressure.connectors.postgres.tasks.exported_snapshot import import_snapshot
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import LaneResult
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.plan_result import Planned
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.ports import Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.verifier import Verifier, Verify
from airflow_provider_backpressure.exceptions import VerificationFailed
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import KafkaSource, LandedSource, MySQLSource, PostgresSource, SparkSource
from tests.support import lakes
from tests.support.local_runner import LocalRunner
from tests.support.postgres import connected, run

if TYPE_CHECKING:
    from airflow_provider_backpressure.hooks.hydration_session import SourceDeclaration

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES: dict[str, Any] = {"mysql": MySQLSource, "postgres": PostgresSource}


_idle: dict[str, list[tuple[ConnectRunner, dict[str, Endpoint], float]]] = {}
"""Runners that nobody uses, with their logins and when they were used last, by the address of their server."""
IDLE_SECONDS = 1_800.0
"""After which a runner is not used again: Spark ends a session of which it has heard nothing for an hour."""


IN_PROCESS = "in-process"
"""In place of the address of a Spark Connect server: threads carry the ranges out by the code of Spark's tasks."""


@contextmanager
def warm_runner(remote: str, ui_url: str | None, logins: dict[str, Endpoint]) -> Iterator[ConnectRunner]:
    """Give a runner to one user at a time, for opening a session takes seconds; after an error it is closed."""
    idle = _idle.setdefault(remote, [])
    while idle and time.monotonic() - idle[-1][2] > IDLE_SECONDS:
        idle.pop()[0].close()
    runner, known = idle.pop()[:2] if idle else opened_runner(remote, ui_url)
    known.clear()
    known.update(logins)
    try:
        yield runner
    except BaseException:
        runner.close()
        raise
    idle.append((runner, known, time.monotonic()))


def opened_runner(remote: str, ui_url: str | None) -> tuple[ConnectRunner, dict[str, Endpoint]]:
    """Return a new runner and the logins that it looks into."""
    logins: dict[str, Endpoint] = {}
    return ConnectRunner(remote, logins, ui_url=ui_url), logins


def close_runners() -> None:
    """Close all that are kept warm, while their servers are still there."""
    for idle in _idle.values():
        for runner, *_ in idle:
            runner.close()
    _idle.clear()


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Everything that names a hydration, as a value that another process can read."""

    source: Endpoint
    sink: Endpoint
    ledger_url: str
    remote: str
    ui_url: str | None = None
    table: str = "public.t"
    target: str = "raw.t"
    mode: str = "append"
    lane: str = "lane"
    budget: Budget = field(default_factory=Budget)
    restart: bool = False
    shares: bool = False
    """Whether small ranges share Spark jobs."""
    consistency: str = "static"
    transform: str | None = None
    """A SELECT over the view ``source``."""
    function: str | None = None
    """A transform in Python instead, as ``module:name``."""
    kind: str = "postgres"
    """Of the source: ``postgres``, ``mysql``, ``landed``, ``spark_catalog``, or ``kafka``.

    Of ``kafka`` the ``table`` is the topic."""
    reading: dict[str, Any] = field(default_factory=dict)
    """What else the source is declared with."""
    reads_again: bool = False
    """Whether the lane compares the source in its snapshot."""
    quarantine: int | None = None
    """Most rows that the target may keep aside."""
    key: tuple[str, ...] | None = None
    """Columns by which rows are upserted, where the source has no key."""
    into: dict[str, Any] = field(default_factory=dict)
    """A table of files instead of ``target``: its ``kind``, and what it is declared with."""

    @contextmanager
    def open(self, runner: Runner | None = None) -> Iterator["Ports"]:
        """Open the ports, and close them in the end; a runner that is given stays open, another is kept warm."""
        source_at, sink_at = replace(self.source, conn_id="source"), replace(self.sink, conn_id="sink")
        with ExitStack() as stack:
            ledger = stack.enter_context(closing(SqlLedger(self.ledger_url)))
            at = NOWHERE if self.kind == "landed" else source_at
            if self.kind == "spark_catalog":
                at = replace(NOWHERE, password=self.remote)
            source = stack.enter_context(closing(self.declared().open(at)))
            sink = stack.enter_context(closing(self._sink(sink_at)))
            if runner is None:
                logins = {"source": source_at, "sink": sink_at}
                runner = stack.enter_context(self._runner(logins))
            yield Ports(composed=self, ledger=ledger, source=source, sink=sink, runner=runner)

    def _runner(self, logins: dict[str, Endpoint]) -> AbstractContextManager[Runner]:
        if self.remote == IN_PROCESS:
            return closing(LocalRunner(logins=logins))
        if self.shares:
            return closing(ConnectRunner(self.remote, logins, ui_url=self.ui_url, shares=True))
        return warm_runner(self.remote, self.ui_url, logins)

    def declared(self) -> "SourceDeclaration":
        """Return the source's declaration."""
        if self.kind == "landed":
            return LandedSource(lake=lakes.declared(**self.reading))
        if self.kind == "spark_catalog":
            return SparkSource(spark_conn_id="source", table=self.table, **self.reading)
        if self.kind == "kafka":
            return KafkaSource(conn_id="source", topic=self.table, **self.reading)
        reading = self.reading
        if self.kind == "postgres" and self.consistency == Consistency.CATCH_UP:
            # A test that loses a slot says so; otherwise it would be hidden by a new one.
            reading = {"at_wal_limit": "stop_and_keep", **reading}
        declared: SourceDeclaration = SOURCES[self.kind](conn_id="source", table=self.table, **reading)
        return declared

    def declared_transform(self) -> Transform | None:
        """Return the transform's declaration."""
        if self.function is not None:
            return Transform(python=self.function)
        return None if self.transform is None else Transform(sql=self.transform)

    def _sink(self, at: Endpoint) -> Sink:
        if not self.into:
            return PostgresSink(conn_id="sink", table=self.target, key=self.key, quarantine=self.quarantine).open(at)
        if self.into["kind"] == lakes.SPARK_TABLE:
            at = replace(NOWHERE, password=self.remote)
        elif not self.into.get("conn_id"):
            at = NOWHERE
        sink: Sink = lakes.declared(**self.into).open(at)
        return sink

    def plan(self) -> Planned:
        """Plan, or resume."""
        with self.open() as ports:
            return ports.planner().plan(restart=self.restart)

    def run(self) -> LaneResult:
        """Drain the ranges as one lane."""
        with self.open() as ports:
            return ports.hydrator().run()

    def finish(self) -> None:
        """Verify, publish and end the hydration, as its last task does."""
        with self.open() as ports:
            plan, sink = ports.plan, ports.sink
            Completion(plan=plan, ledger=ports.ledger, sink=sink).check()
            sink.complete(plan)
            verifier = Verifier(plan=plan, source=ports.source, sink=sink, runner=ports.runner)
            report = verifier.verify(ports.ledger.ranges(plan.plan_id), Verify.TARGET)
            if not report.equal:
                raise VerificationFailed(report.mismatches[0].sentence)
            sink.publish(plan)
            ports.ledger.finish(ports.hydration.id)

    def write(self, folder: Path) -> Path:
        """Write it for :meth:`read`, for the owner's eyes."""
        config = folder / f"{self.lane}.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps(asdict(self)))
        return config

    def process(self, folder: Path, **environment: str) -> "subprocess.Popen[bytes]":
        """Plan where needed and run the lane in a process of its own, which a test may kill."""
        config = self.write(folder)
        with (folder / f"{self.lane}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.composed", str(config)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    @classmethod
    def read(cls, path: Path) -> "Composed":
        """Read what :meth:`write` wrote."""
        value: dict[str, Any] = json.loads(path.read_text())
        return cls(
            source=Endpoint(**value.pop("source")),
            sink=Endpoint(**value.pop("sink")),
            budget=Budget(**value.pop("budget")),
            **value,
        )


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The open ports of a composed hydration."""

    composed: Composed
    ledger: Ledger
    source: Source
    sink: Sink
    runner: Runner

    def planner(self) -> Planner:
        """Return the planner."""
        return Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.composed.budget,
            mode=Mode(self.composed.mode),
            consistency=Consistency(self.composed.consistency),
            transform=self.composed.declared_transform(),
            owner="test",
            cluster="spark",
        )

    @property
    def hydration(self) -> Hydration:
        """The hydration, which was planned before."""
        found = self.ledger.find(
            environment="default", source_identity=self.source.identity, sink_identity=self.sink.identity
        )
        assert found is not None
        return found

    @property
    def plan(self) -> Plan:
        """Its plan."""
        plan = self.hydration.plan
        assert plan is not None
        return plan

    def close_plan(self) -> Planned:
        """Close the plan, whose snapshot is gone, and make another."""
        return self.planner().close(self.hydration, self.plan)

    def verifier(self) -> Verifier:
        """Return the verifier of the plan."""
        return Verifier(
            plan=self.plan, source=self.source, sink=self.sink, runner=self.runner, hydration_id=self.hydration.id
        )

    def hydrator(self) -> Hydrator:
        """Return the lane."""
        hydration_id = self.hydration.id
        return Hydrator(
            hydration_id=hydration_id,
            plan=self.plan,
            lane=self.composed.lane,
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=Limiter(
                ledger=self.ledger, hydration_id=hydration_id, budget=self.composed.budget, memory=self.runner.memory
            ),
            budget=self.composed.budget,
            share=self.composed.budget.credits,
            reads_again=self.composed.reads_again,
        )


def difference(source: Endpoint, table: str, sink: Endpoint, target: str) -> tuple[int, int]:
    """Return how many rows only the source and only the target has, doubled ones counted: an oracle of its own."""
    rows = []
    for endpoint, name in ((source, table), (sink, target)):
        with connected(endpoint) as connection:
            rows.append(dict(connection.execute(f"SELECT x::text, count(*) FROM {name} x GROUP BY 1").fetchall()))
    ours, theirs = rows
    missing = sum(max(0, count - theirs.get(text, 0)) for text, count in ours.items())
    surplus = sum(max(0, count - ours.get(text, 0)) for text, count in theirs.items())
    return missing, surplus


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    composed = Composed.read(Path(sys.argv[1]))
    composed.plan()
    composed.run()
    close_runners()


def remember_snapshot(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``public.as_it_was`` be the table in the snapshot that is kept last: read by its name, as a task does."""
    keep = ports.source.keep

    def keeping(plan: Any) -> Any:
        keeper = keep(plan)
        run(ports.composed.source, "DROP TABLE IF EXISTS as_it_was", "CREATE TABLE as_it_was (LIKE t)")
        with connected(ports.composed.source, autocommit=False) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            import_snapshot(connection, keeper.snapshot)
            connection.execute("INSERT INTO as_it_was SELECT * FROM t")
        return keeper

    monkeypatch.setattr(ports.source, "keep", keeping)


def compare_with_snapshot(composed: Composed) -> tuple[int, int]:
    """How the target differs from what the last snapshot held."""
    return difference(composed.source, "public.as_it_was", composed.sink, "raw.t")
