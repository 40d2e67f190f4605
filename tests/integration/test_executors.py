"""Ranges on a standalone cluster of three executors with two slots each: how many run where, and what they take."""

import json
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from typing import Any

import psutil
import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.cluster_queue import Change
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.executor_memory import ExecutorMemory
from dev.services import Server, Services
from tests.support.composed import Composed
from tests.support.postgres import connected, run
from tests.support.waiting import beside, until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(560)]

CREDITS, MIB = 12, 2**20
LIMIT = (512 + 1024) * MIB
"""Of an executor: heap and overhead."""
CONF = {"spark.executor.memory": "512m", "spark.executor.memoryOverhead": "1g"}
SLOW = """
CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END'
"""
SECONDS = 3.0
"""That a range takes at least."""
HANDOVER = 0.5
"""Seconds of them that may be missing in what Spark writes down."""


@dataclass(kw_only=True)
class Seen:
    """What was seen of the executors meanwhile."""

    services: Services
    memory: ExecutorMemory
    page: str
    before: frozenset[int]
    """Spark's stages of before."""
    resident: dict[int, int] = field(default_factory=dict)
    """The most that the processes of an executor took together, by its process."""
    ran: list[tuple[str, float, float]] = field(default_factory=list)
    """See :meth:`tasks`."""
    readings: list[MemoryReading] = field(default_factory=list)

    def look(self) -> None:
        """Look once at Spark's page and at the processes."""
        if (reading := self.memory.read()) is not None:
            self.readings.append(reading)
        for executor in executors(self.services):
            held = [shares(process) for process in (executor, *children(executor))]
            self.resident[executor.pid] = max(self.resident.get(executor.pid, 0), sum(held))

    def tasks(self) -> list[tuple[str, float, float]]:
        """Return the executor of each task since, when it began and when it ended, in seconds.

        Spark gives a core on before it writes down that a task has ended.
        """
        stages = [one for one in get(f"{self.page}/stages?details=true") if one["stageId"] not in self.before]
        every = [task for one in stages for task in (one.get("tasks") or {}).values()]
        began = [datetime.fromisoformat(one["launchTime"].replace("GMT", "+00:00")).timestamp() for one in every]
        return [
            (one["executorId"], at, at + one["duration"] / 1000 - HANDOVER)
            for one, at in zip(every, began, strict=True)
        ]

    def until_told(self, over: threading.Event) -> None:
        """Look again and again."""
        while not over.wait(0.1):
            self.look()


def most_at_once(tasks: Iterable[tuple[str, float, float]]) -> int:
    """Return how many of these ran at once."""
    steps = sorted(step for _, began, ended in tasks for step in ((began, 1), (ended, -1)))
    return max(accumulate((step for _, step in steps), initial=0))


def by_executor(tasks: Iterable[tuple[str, float, float]]) -> dict[str, int]:
    """Return how many ran at once on each executor."""
    every = list(tasks)
    return {name: most_at_once(one for one in every if one[0] == name) for name in {one[0] for one in every}}


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def shares(process: psutil.Process) -> int:
    """Return what a process takes; pages that several have are divided among them, unlike in Spark's figures."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def executors(services: Services) -> list[psutil.Process]:
    """Return the executors' JVMs."""
    workers = [server.pid for name, server in services.status().items() if name.startswith("worker:") and server.pid]
    below = [one for pid in workers for one in children(psutil.Process(pid))]
    return [one for one in below if "CoarseGrainedExecutorBackend" in " ".join(cmdline(one))]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def cluster(services: Services) -> Iterator[Server]:
    """Three workers; each has one executor with both of its cores."""
    options = {"master": "standalone", "workers": 3, "worker_cores": 2, "worker_memory": "640m"}
    connect = services.up("connect:executors", spark_conf=CONF, jars=(), driver_memory="512m", **options)
    yield connect["connect:executors"]
    services.down("connect:executors", "standalone")


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of so many ranges of so many rows, each of so many bytes."""

    composed: Composed
    services: Services
    ranges: int
    rows: int = 1
    width: int = 32

    def learn(self) -> tuple[int, int]:
        """Plan, commit one range, and return the bytes that it took, and those of the largest JVM."""
        source, plan = self.composed.source, f"SELECT i, repeat('x', {self.width}) FROM generate_series(1, %s) i"
        run(
            source,
            "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
            f"INSERT INTO t {plan % (self.ranges * self.rows)}",
            "ANALYZE t",
            SLOW.format(seconds=SECONDS / self.rows),
        )
        found = self.declared(0.8).plan()
        assert found.ranges == self.ranges
        run(source, "CREATE TRIGGER linger BEFORE INSERT ON raw.t FOR EACH ROW EXECUTE FUNCTION linger()")
        with closing(SqlLedger(self.composed.ledger_url)) as ledger:
            ledger.steer(found.hydration.id, Change(credits=1), who="test")
            lane = threading.Thread(target=self.declared(0.8).run)
            lane.start()
            until(lambda: ledger.counts(found.plan.plan_id).committed, 240)
            ledger.pause(found.hydration.id, who="test")
            lane.join(120)
            ledger.resume(found.hydration.id, who="test")
            ledger.steer(found.hydration.id, Change(credits=CREDITS), who="test")
            learned = ledger.gate(found.hydration.id).range_memory_bytes
        reading = ExecutorMemory(urls=[self.composed.ui_url or ""]).read()
        assert learned is not None
        assert reading is not None
        return learned, reading.jvm_bytes

    def drain(self, share: float) -> Seen:
        """Drain the other ranges, which may take this share of an executor, and return what was seen meanwhile."""
        page = f"{self.composed.ui_url}/api/v1/applications"
        page = f"{page}/{get(page)[0]['id']}"
        before = frozenset(one["stageId"] for one in get(f"{page}/stages"))
        memory = ExecutorMemory(urls=[self.composed.ui_url or ""])
        seen = Seen(services=self.services, memory=memory, page=page, before=before)
        with beside(seen.until_told):
            self.declared(share).run()
        seen.ran = seen.tasks()
        self.composed.finish()
        with connected(self.composed.source) as connection:
            for one, other in (("public.t", "raw.t"), ("raw.t", "public.t")):
                query = f"SELECT count(*) FROM (TABLE {one} EXCEPT ALL TABLE {other}) x"
                assert connection.execute(query).fetchone() == (0,)
        return seen

    def declared(self, share: float) -> Composed:
        """Return the hydration with a budget of this share of an executor."""
        marks = {"executor_memory": share, "executor_memory_low": share - 0.05}
        return replace(self.composed, budget=Budget(credits=CREDITS, range_rows=self.rows, law="fixed", **marks))


@pytest.fixture
def composed(database: Endpoint, ledger_url: str, cluster: Server) -> Composed:
    """A hydration within one database, on the cluster."""
    return Composed(source=database, sink=database, ledger_url=ledger_url, remote=cluster.url, ui_url=cluster.ui_url)


@pytest.mark.statement("S1", "S3")
def test_as_many_ranges_run_as_slots_are_free(composed: Composed, services: Services) -> None:
    """S1, S3: six at once where memory allows two on each; what is read is an executor's, not the driver's."""
    copy = Copy(composed=composed, services=services, ranges=16, rows=50)
    copy.learn()
    seen = copy.drain(0.8)
    assert (most_at_once(seen.ran), by_executor(seen.ran)) == (6, {"0": 2, "1": 2, "2": 2})
    figures = [reading for reading in seen.readings if reading.used_bytes is not None]
    assert {reading.executor for reading in figures} <= {"0", "1", "2"}
    assert {(reading.limit_bytes, reading.cores) for reading in figures} == {(LIMIT, (2, 2, 2))}


@pytest.mark.statement("S1", "S3")
def test_with_memory_for_one_range_no_executor_has_two(composed: Composed, services: Services) -> None:
    """S1, S3: three at once, one on each, by what was learned of JVM and Python; so the executors' processes show."""
    copy = Copy(composed=composed, services=services, ranges=10, width=80 * MIB)
    learned, jvm = copy.learn()
    budget = jvm + learned + learned // 2
    seen = copy.drain(budget / LIMIT)
    found = f"learned {learned / MIB:.0f} and {jvm / MIB:.0f}, seen {[held // MIB for held in seen.resident.values()]}"
    assert (most_at_once(seen.ran), by_executor(seen.ran)) == (3, {"0": 1, "1": 1, "2": 1}), found
    most = max(seen.resident.values())
    assert 0.8 * most < jvm + learned, found
    assert most < budget, found
