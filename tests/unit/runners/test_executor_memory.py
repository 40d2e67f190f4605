"""Live memory from Spark's monitoring interface, over what a real server (4.1.3, local mode) once answered."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import MEBIBYTE
from airflow_provider_backpressure.runners.executor_memory import (
    FRESH_SECONDS,
    ExecutorMemory,
    fetch_json,
    fullest,
    limit_bytes,
    may_set_cores,
    size_bytes,
    slots,
)

RECORDED = json.loads((Path(__file__).parent / "stages_active.json").read_text())
USED = 490016768 + 995581952
GIBIBYTE = 1024 * MEBIBYTE


class Page:
    """Answers like Spark's page, until it is told not to."""

    def __init__(self, stages: list[dict[str, Any]], app_id: str = "local-1") -> None:
        self.stages, self.app_id, self.down = stages, app_id, False
        self.asked: list[str] = []
        self.executors: list[dict[str, Any]] = [{"id": "driver", "totalCores": 4, "isActive": True}]
        self.properties = {"spark.master": "local[4]", "spark.driver.memory": "2g"}

    def fetch(self, url: str) -> Any:
        """One page."""
        self.asked.append(url)
        if self.down or not url.startswith("http://spark:4040/"):
            raise ConnectionRefusedError(url)
        if url.endswith("/applications"):
            return [{"id": self.app_id}]
        if url.endswith("/environment"):
            return {"sparkProperties": [[name, value] for name, value in self.properties.items()]}
        if url.endswith("/executors"):
            return self.executors
        assert url == f"http://spark:4040/api/v1/applications/{self.app_id}/stages?status=active&details=true"
        return self.stages


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.statement("T6")
def test_the_process_tree_within_running_stages_counts() -> None:
    """T6: JVM and Python together, against heap and overhead."""
    reading = ExecutorMemory(urls=["http://spark:4040/"], fetch=Page(RECORDED).fetch).read()
    assert reading is not None
    assert (reading.used_bytes, reading.executor, reading.age_seconds) == (USED, "driver", 0.0)
    assert reading.limit_bytes == 2 * GIBIBYTE + 384 * MEBIBYTE


def tree(jvm: int, python: int, other: int = 0) -> dict[str, Any]:
    """What a page says of an executor's processes."""
    names = ("ProcessTreeJVMRSSMemory", "ProcessTreePythonRSSMemory", "ProcessTreeOtherRSSMemory")
    return {"peakMemoryMetrics": dict(zip(names, (jvm, python, other), strict=True))}


def executor(name: str, jvm: int, *, cores: int = 2, active: bool = True) -> dict[str, Any]:
    """An executor as the page lists it, with the peak of its life."""
    return {"id": name, "totalCores": cores, "isActive": active, **tree(jvm, 0)}


@pytest.mark.statement("S3")
def test_the_largest_jvm_of_the_executors_is_seen() -> None:
    """S3: within running stages; over their lives before one runs."""
    page, clock = Page([]), Clock()
    page.properties = {"spark.master": "spark://master:7077", "spark.executor.memory": "1g"}
    page.executors = [executor("driver", 9_000, cores=0), executor("0", 500), executor("1", 400)]
    page.executors.append(executor("2", 8_000, active=False))
    memory = ExecutorMemory(urls=["http://spark:4040"], fetch=page.fetch, clock=clock)
    idle = memory.read()
    assert (idle.jvm_bytes, idle.cores) == (500, (2, 2))
    page.stages = [
        {"stageId": 1, "attemptId": 0, "executorSummary": {"0": tree(300, 100, 5), "1": tree(350, 50)}},
        {"stageId": 2, "attemptId": 0, "executorSummary": {"1": tree(360, 60)}},
        {"stageId": 3, "attemptId": 0, "executorSummary": {"1": {}}},
    ]
    clock.now += FRESH_SECONDS
    seen = memory.read()
    assert (seen.jvm_bytes, seen.used_bytes) == (360, 420)
    page.down, clock.now = True, clock.now + 9.0
    assert memory.read() == replace(seen, age_seconds=9.0)


def test_where_the_driver_is_the_executor_its_jvm_counts_as_used_only() -> None:
    """It is the server's as well."""
    page = Page(RECORDED)
    page.executors = [executor("driver", 400, cores=4)]
    reading = ExecutorMemory(urls=["http://spark:4040"], fetch=page.fetch).read()
    assert (reading.used_bytes, reading.jvm_bytes, reading.cores) == (USED, 0, ())


@pytest.mark.parametrize(
    ("properties", "settable"),
    [
        ({"spark.master": "spark://master:7077"}, True),
        ({"spark.master": "yarn"}, True),
        ({"spark.master": "k8s://https://host"}, True),
        ({"spark.master": "local[4]"}, False),
        ({"spark.master": "local-cluster[2,1,1024]"}, False),
        ({"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}, False),
        ({"spark.master": "yarn", "spark.task.cpus": "2"}, False),
        ({}, False),
    ],
)
def test_cores_are_set_where_spark_allows_it(properties: dict[str, str], settable: bool) -> None:
    """On clusters whose executors are there to stay."""
    assert may_set_cores(properties) is settable


def test_the_cores_of_one_executor_are_not_shared() -> None:
    """Its memory is counted as a whole."""
    page = Page([])
    page.properties = {"spark.master": "spark://master:7077"}
    page.executors = [executor("driver", 0, cores=0), executor("0", 0)]
    assert ExecutorMemory(urls=["http://spark:4040"], fetch=page.fetch).read().cores == ()


@pytest.mark.statement("T6")
def test_an_idle_cluster_that_answers_has_no_figure() -> None:
    """T6: neither 0 nor the past peak; it says how old that is."""
    page = Page(RECORDED)
    clock = Clock()
    memory = ExecutorMemory(urls=["http://spark:4040"], fetch=page.fetch, clock=clock)
    assert memory.read().used_bytes == USED
    page.stages = []
    clock.now += FRESH_SECONDS
    assert (memory.read().used_bytes, memory.read().idle, memory.read().age_seconds) == (None, True, FRESH_SECONDS)


@pytest.mark.statement("T6")
def test_a_stage_without_a_heartbeat_has_no_figure_and_ages_while_it_runs() -> None:
    """T6: missing is not 0; one after another is young each time, one that stays without a figure grows old."""
    blind = {"ProcessTreeJVMRSSMemory": 0, "JVMHeapMemory": 0}
    page, clock = Page([]), Clock()
    memory = ExecutorMemory(urls=["http://spark:4040"], fetch=page.fetch, clock=clock)
    for number, age in ((1, 0.0), (1, 9.0), (2, 0.0), (2, 9.0), (2, 18.0)):
        page.stages = [{"stageId": number, "attemptId": 0, "executorSummary": {"1": {"peakMemoryMetrics": blind}}}]
        reading = memory.read()
        assert (reading.used_bytes, reading.idle, reading.age_seconds) == (None, False, age)
        clock.now += 9
    page.stages += RECORDED
    assert (memory.read().used_bytes, memory.read().age_seconds) == (USED, 0.0)


def test_a_stage_that_waits_for_a_slot_is_no_running_one() -> None:
    """It cannot have a figure, however long it waits."""
    page, clock = Page([{"stageId": 1, "attemptId": 0, "executorSummary": {}}]), Clock()
    memory = ExecutorMemory(urls=["http://spark:4040"], fetch=page.fetch, clock=clock)
    assert (memory.read().used_bytes, memory.read().idle) == (None, True)


@pytest.mark.statement("T11")
def test_the_slots_of_the_executors_that_are_there_count() -> None:
    """T11: a driver without cores of its own counts nothing, nor do executors that are gone."""
    page, clock = Page(RECORDED), Clock()
    memory = ExecutorMemory(urls=["http://spark:4040"], fetch=page.fetch, clock=clock)
    assert memory.read().slots == 4
    page.executors = [
        {"id": "driver", "totalCores": 0, "isActive": True},
        {"id": "0", "totalCores": 2, "isActive": True},
        {"id": "1", "totalCores": 2, "isActive": False},
        {"id": "2", "totalCores": 3, "isActive": True},
    ]
    clock.now += FRESH_SECONDS
    assert memory.read().slots == 5
    assert slots(page.executors, task_cpus=2) == 2
    assert slots([]) is None


@pytest.mark.statement("T6")
def test_a_page_that_falls_silent_ages() -> None:
    """T6: the last reading with its age, so that the gate closes after its deadline; nothing before the first."""
    page, clock = Page(RECORDED), Clock()
    memory = ExecutorMemory(urls=["http://spark:4040"], fetch=page.fetch, clock=clock)
    page.down = True
    assert memory.read() is None
    page.down = False
    assert memory.read().age_seconds == 0.0
    page.down, clock.now = True, 112.5
    assert (memory.read().used_bytes, memory.read().age_seconds) == (USED, 12.5)
    page.down = False
    assert memory.read().age_seconds == 0.0


def test_while_one_thread_asks_a_slow_page_the_others_take_what_is_known() -> None:
    """A page takes tenths of a second, and many tables are drained at once."""
    page, clock, asked, answers = Page(RECORDED), Clock(), threading.Event(), threading.Event()

    def fetch(url: str) -> Any:
        if clock.now > 100:
            asked.set()
            assert answers.wait(10)
        return page.fetch(url)

    memory = ExecutorMemory(urls=["http://spark:4040"], fetch=fetch, clock=clock)
    assert memory.read().used_bytes == USED
    clock.now += FRESH_SECONDS
    asking = threading.Thread(target=memory.read)
    asking.start()
    assert asked.wait(10)
    before = len(page.asked)
    assert (memory.read().used_bytes, memory.read().age_seconds) == (USED, FRESH_SECONDS)
    assert len(page.asked) == before
    answers.set()
    asking.join(10)
    assert memory.read().age_seconds == 0.0


def test_the_application_is_looked_for() -> None:
    """At each address; a page of another application is not ours."""
    page = Page(RECORDED)
    urls = ["http://elsewhere:4040", "http://spark:4040"]
    assert ExecutorMemory(urls=urls, app_id="local-1", fetch=page.fetch).read() is not None
    assert ExecutorMemory(urls=urls, app_id="local-2", fetch=page.fetch).read() is None


def test_the_fullest_executor_is_found() -> None:
    """Over all running stages; a stage without figures yet, or without the process tree's, is no error."""
    stages = [
        {"executorSummary": {"1": {"peakMemoryMetrics": {"ProcessTreeJVMRSSMemory": 5}}, "2": {}}},
        {"executorSummary": {"2": {"peakMemoryMetrics": {"JVMHeapMemory": 7, "JVMOffHeapMemory": 1}}}},
        {"status": "ACTIVE"},
    ]
    assert fullest(stages) == ("2", 8)
    assert fullest([]) == ("driver", None)


@pytest.mark.parametrize(
    ("properties", "mebibytes"),
    [
        ({"spark.master": "local[2]"}, 1024 + 384),
        ({"spark.master": "local[2]", "spark.driver.memory": "8g"}, 8192 + 819),
        ({"spark.master": "local[2]", "spark.executor.memory": "8g", "spark.driver.memoryOverhead": "1g"}, 2048),
        ({"spark.master": "spark://x:7077", "spark.executor.memory": "512"}, 512 + 384),
        ({"spark.master": "yarn", "spark.executor.memory": "10g", "spark.executor.memoryOverheadFactor": "0.2"}, 12288),
        ({"spark.master": "yarn", "spark.executor.memoryOverhead": "500"}, 1524),
        ({"spark.master": "yarn", "spark.executor.pyspark.memory": "600m"}, 1024 + 384 + 600),
        (
            {"spark.master": "yarn", "spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "1048576"},
            1024 + 384 + 1,
        ),
    ],
)
def test_the_limit_is_what_the_cluster_gave(properties: dict[str, str], mebibytes: int) -> None:
    """Heap, overhead, off-heap and Python's own share."""
    assert limit_bytes(properties) // MEBIBYTE == mebibytes


def test_sizes_as_spark_writes_them() -> None:
    """A bare number is in the setting's own unit."""
    assert [size_bytes(text, unit="m") for text in ("1g", "1GB", "2", "3k", "4b")] == [
        GIBIBYTE,
        GIBIBYTE,
        2 * MEBIBYTE,
        3072,
        4,
    ]
    with pytest.raises(ValueError, match="not a size"):
        size_bytes("1.5g")


def test_only_pages_are_fetched() -> None:
    """No file of this machine."""
    with pytest.raises(ValueError, match="no address"):
        fetch_json("file:///etc/hostname")
