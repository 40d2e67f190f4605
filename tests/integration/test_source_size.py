"""T4: the memory of Spark's executor does not depend on how many rows the source has."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from benchmarks.accounting import descendants, held_bytes, processes
from dev.services import Server, Services
from tests.support import kafka as on_kafka
from tests.support.composed import Composed
from tests.support.kafka import Topic
from tests.support.postgres import run
from tests.support.waiting import beside

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.statement("T4"), pytest.mark.timeout(900)]

ROWS, TIMES, RANGE_ROWS = 30_000, 10, 6_000
SLACK = 1.1
"""How much more memory the source of ten times as many rows may take."""
HEAP = "512m"
WORKER, CONNECT = "worker:1", "connect:sized"
PERIOD = 0.1
"""Seconds between two looks at the executor's memory."""


@dataclass(kw_only=True)
class Peak:
    """The most memory at any look, in bytes."""

    executor: int = 0
    """The executor's process with all that it started."""
    tasks: int = 0
    """Of that, the Python workers, which read, transform and write the rows."""

    def look(self, worker: int) -> None:
        """Look once at the processes below a Spark worker."""
        every = processes()
        held = {one.key[0]: held_bytes(one) for one in descendants(every, worker)}
        self.executor = max(self.executor, sum(held.values()))
        self.tasks = max(self.tasks, sum(size for pid, size in held.items() if is_python(pid)))

    def within(self, other: "Peak") -> bool:
        """Whether nothing is more than a tenth above another peak."""
        return self.executor <= SLACK * other.executor and self.tasks <= SLACK * other.tasks

    def __str__(self) -> str:
        """Return it in MiB."""
        return f"{self.executor / 2**20:.0f} MiB, of which tasks {self.tasks / 2**20:.0f} MiB"


def is_python(pid: int) -> bool:
    """Whether a process runs Python."""
    with suppress(OSError):
        return "python" in Path(os.readlink(f"/proc/{pid}/exe")).name
    return False


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Spark with one executor, which is a process of its own."""

    services: Services
    connect: Server

    def peak_of(self, composed: Composed) -> Peak:
        """Plan a hydration, run its lane, and return the most memory meanwhile."""
        worker = self.services.status()[WORKER].pid
        assert worker is not None
        peak = Peak()

        def look(over: threading.Event) -> None:
            while not over.wait(PERIOD):
                peak.look(worker)

        composed.plan()
        with beside(look):
            composed.run()
        return peak


@pytest.fixture(scope="module")
def cluster(services: Services) -> Iterator[Cluster]:
    """One worker with two cores. The executor's heap is resident as a whole from the start.

    What a JVM takes of its heap tells when it last collected garbage; that it may not take more is its own limit.
    """
    conf = {
        "spark.executor.memory": HEAP,
        "spark.executor.extraJavaOptions": f"-Xms{HEAP} -XX:+AlwaysPreTouch -XX:+UseSerialGC",
    }
    options = {"master": "standalone", "workers": 1, "worker_cores": 2, "worker_memory": "1g"}
    connect = services.up(CONNECT, spark_conf=conf, jars=(), driver_memory="512m", **options)[CONNECT]
    yield Cluster(services=services, connect=connect)
    services.down(CONNECT, "standalone")


@pytest.fixture
def composed(database: Endpoint, ledger_url: str, cluster: Cluster) -> Composed:
    """A hydration within one database, on the cluster."""
    return Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote=cluster.connect.url,
        ui_url=cluster.connect.ui_url,
        budget=Budget(credits=3, range_rows=RANGE_ROWS),
    )


def check_memory(cluster: Cluster, small: Composed, large: Composed) -> None:
    """Compare the peaks of both. The runs before them start the executor and its workers, which grow at first."""
    for number in range(3):
        cluster.peak_of(replace(small, target=f"raw.before_{number}"))
    once = cluster.peak_of(replace(small, target="raw.small"))
    tenfold = cluster.peak_of(replace(large, target="raw.large"))
    print(f"{ROWS} rows: {once}; {TIMES * ROWS} rows: {tenfold}")
    assert tenfold.within(once), f"{once} became {tenfold}"


def test_a_topic_of_ten_times_as_many_records(composed: Composed, cluster: Cluster, kafka: Server) -> None:
    """T4: from Kafka into PostgreSQL."""
    topics = []
    for records in (ROWS, TIMES * ROWS):
        topic = Topic(servers=kafka.url).create(2)
        with topic.producing() as producer:
            for partition in range(2):
                topic.put(producer, partition, *(b'{"n": %d, "text": "%0200d"}' % (n, n) for n in range(records // 2)))
        topics.append(topic)
    of_topic = replace(composed, source=on_kafka.endpoint_of(kafka), kind="kafka", consistency="offsets")
    small, large = (replace(of_topic, table=topic.name) for topic in topics)
    check_memory(cluster, small, large)
    for target, records in (("raw.small", ROWS), ("raw.large", TIMES * ROWS)):
        query = f'SELECT count(*), count(DISTINCT ("partition", "offset")) FROM {target}'
        assert run(composed.sink, query) == [(records, records)]


def test_a_table_of_ten_times_as_many_rows_through_a_transform(composed: Composed, cluster: Cluster) -> None:
    """T4: from PostgreSQL through a function in Python into PostgreSQL."""
    sizes = {"small": ROWS, "large": TIMES * ROWS}
    for name, rows in sizes.items():
        run(
            composed.source,
            f"CREATE TABLE {name} AS SELECT i AS id, repeat(md5(i::text), 6) AS code FROM generate_series(1, {rows}) i",
            f"ALTER TABLE {name} ADD PRIMARY KEY (id)",
            f"ANALYZE {name}",
        )
    through = replace(composed, function="tests.integration.transforms:loud")
    small, large = (replace(through, table=f"public.{name}") for name in sizes)
    check_memory(cluster, small, large)
    for name, rows in sizes.items():
        differing = f"SELECT count(*), count(*) FILTER (WHERE t.code = upper(s.code) || '!') FROM raw.{name} t"
        assert run(composed.sink, f"{differing} JOIN public.{name} s USING (id)") == [(rows, rows)]
