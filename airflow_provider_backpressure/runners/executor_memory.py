"""Live memory of the executors, from Spark's own monitoring interface (JSON over HTTP, below ``/api/v1``).

What counts is the resident memory of an executor's whole process tree, JVM and Python workers, while stages run on it,
against what the cluster gave it: heap and overhead. Spark reports peaks: those of a stage end with the stage, those of
an executor's life are not looked at. The figures move with heartbeats, so a cluster wants
``spark.executor.processTreeMetrics.enabled=true`` and a heartbeat of a few seconds.
"""

import json
import math
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from typing import Any

from airflow_provider_backpressure.core.config import MEBIBYTE
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RunnerRefused, RunnerUnavailable

HTTP_SECONDS = 3.0
FRESH_SECONDS = 1.0
"""How long a reading is valid: Spark's own figures move with its heartbeats, seconds apart."""
DRIVER = "driver"

_UNITS = {"": 1, "b": 1, "k": 1024, "m": MEBIBYTE, "g": 1024 * MEBIBYTE, "t": 1024 * 1024 * MEBIBYTE}
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)(b?)\s*", re.IGNORECASE)
_TREE = ("ProcessTreeJVMRSSMemory", "ProcessTreePythonRSSMemory", "ProcessTreeOtherRSSMemory")
_JVM = ("JVMHeapMemory", "JVMOffHeapMemory")
_SETTABLE = ("spark://", "yarn", "k8s://")
"""Clusters on which a stage may set the cores of its tasks, seen on Spark 4.1."""

Fetch = Callable[[str], Any]


def size_bytes(text: str, *, unit: str = "b") -> int:
    """Return a size as Spark writes them (``1g``, ``512m``, ``2048`` in ``unit``) in bytes; ``ValueError`` if none."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size.")
    number, given, suffix = match.groups()
    return int(number) * _UNITS[given.lower() if given or suffix else unit]


def limit_bytes(properties: Mapping[str, str]) -> int:
    """Return what one executor may take: heap, overhead, off-heap and Python's own share where they are set.

    In local mode the driver is the executor.
    """
    role = DRIVER if properties.get("spark.master", "").startswith("local") else "executor"
    heap = size_bytes(properties.get(f"spark.{role}.memory", "1g"), unit="m")
    factor = float(properties.get(f"spark.{role}.memoryOverheadFactor", "0.1"))
    smallest = size_bytes(properties.get(f"spark.{role}.minMemoryOverhead", "384m"), unit="m")
    overhead = properties.get(f"spark.{role}.memoryOverhead")
    total = heap + (size_bytes(overhead, unit="m") if overhead else max(smallest, int(heap * factor)))
    if properties.get("spark.memory.offHeap.enabled", "false") == "true":
        total += size_bytes(properties.get("spark.memory.offHeap.size", "0"))
    return total + size_bytes(properties.get("spark.executor.pyspark.memory", "0"), unit="m")


def fullest(stages: Iterable[Mapping[str, Any]]) -> tuple[str, int | None]:
    """Return the executor with most resident memory within these running stages, and its bytes.

    Until the first heartbeat of a stage Spark answers 0 or nothing, which is no figure. Without process-tree figures
    heap and off-heap replace them. ``("driver", None)`` where no stage has a figure.
    """
    used: dict[str, int] = {}
    for stage in stages:
        for executor, summary in (stage.get("executorSummary") or {}).items():
            peaks = summary.get("peakMemoryMetrics") or {}
            resident = sum(peaks.get(name, 0) for name in _TREE) or sum(peaks.get(name, 0) for name in _JVM)
            if resident:
                used[executor] = max(used.get(executor, 0), resident)
    return max(used.items(), key=lambda entry: entry[1], default=(DRIVER, None))


def largest_jvm(stages: Iterable[Mapping[str, Any]], executors: Iterable[Mapping[str, Any]]) -> int:
    """Return the bytes of the largest JVM of an executor within these running stages, and over its life without one.

    0 where there is none, and where the driver is the executor: its JVM is the server's as well.
    """
    there = [one for one in executors if one.get("id") != DRIVER and one.get("isActive", True)]
    life = [one.get("peakMemoryMetrics") or {} for one in there]
    return _most(_peaks(stages), _jvm_bytes) or _most(life, _jvm_bytes)


def _peaks(stages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, int]]:
    """Return the peaks of each executor that is not the driver, by stage."""
    summaries = [entry for stage in stages for entry in (stage.get("executorSummary") or {}).items()]
    return [summary.get("peakMemoryMetrics") or {} for executor, summary in summaries if executor != DRIVER]


def _most(peaks: Iterable[Mapping[str, int]], count: Callable[[Mapping[str, int]], int]) -> int:
    return max(map(count, peaks), default=0)


def _jvm_bytes(peaks: Mapping[str, int]) -> int:
    return peaks.get(_TREE[0], 0) or sum(peaks.get(name, 0) for name in _JVM)


def may_set_cores(properties: Mapping[str, str]) -> bool:
    """Whether a range's task may take more cores than one, on the executors that are there.

    Spark allows it on clusters. With dynamic allocation it would start other executors for such tasks. Where a task
    takes several cores anyway, they are left as they are.
    """
    dynamic = properties.get("spark.dynamicAllocation.enabled", "false") == "true"
    on_cluster = properties.get("spark.master", "").startswith(_SETTABLE)
    return on_cluster and not dynamic and properties.get("spark.task.cpus", "1") == "1"


def cores_to_share(executors: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the cores of each executor where there are several; the memory of one alone needs no sharing."""
    cores = tuple(int(one.get("totalCores", 0)) for one in executors if one.get("isActive", True))
    found = tuple(each for each in cores if each)
    return found if len(found) > 1 else ()


def find_working_stages(stages: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the attempts of stages that have begun a task; one that waits for a slot has no memory to report."""
    return frozenset(
        f"{stage.get('stageId')}.{stage.get('attemptId')}" for stage in stages if stage.get("executorSummary")
    )


def slots(executors: Iterable[Mapping[str, Any]], task_cpus: int = 1) -> int | None:
    """Return how many tasks these executors run at once; ``None`` where none of them does.

    The driver counts where it is the executor: its page gives it no cores elsewhere.
    """
    cores = sum(int(executor.get("totalCores", 0)) for executor in executors if executor.get("isActive", True))
    return cores // task_cpus or None


def fetch_text(url: str, *, seconds: float = HTTP_SECONDS) -> str:
    """Return the text of a page; ``OSError``, ``ValueError`` or ``HTTPException`` where there is none."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is no address of a page.")
    with urllib.request.urlopen(url, timeout=seconds) as response:
        return str(response.read(), "utf-8")


def fetch_json(url: str) -> Any:
    """Return the JSON of a page; errors as those of :func:`fetch_text`."""
    return json.loads(fetch_text(url))


class ExecutorMemory:
    """Reads the fullest executor of one application. ``urls``: where its page may be, the likeliest first."""

    def __init__(
        self,
        *,
        urls: Iterable[str],
        app_id: str | None = None,
        fetch: Fetch = fetch_json,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked yet. Without ``app_id`` the first application of the page is meant."""
        self._urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        self._app_id = app_id
        self._fetch = fetch
        self._clock = clock
        self._asking = threading.Lock()
        self._page: str | None = None
        self._limit = 0
        self._task_cpus = 1
        self._sets_cores = False
        self._last: tuple[float, MemoryReading] | None = None
        self._figure_at: float | None = None
        self._begun: dict[str, float] = {}

    def read(self) -> MemoryReading | None:
        """Return the memory now; the last reading with its age where the page does not answer; ``None`` before one.

        A page that answers without a figure gives a reading without one: an idle cluster holds no gate closed, and a
        stage that has just begun is no stage without memory. Threads may ask at once: one asks the page, and the others
        take what is known, as a page takes tenths of a second.
        """
        now = self._clock()
        if self._last is not None and now - self._last[0] < FRESH_SECONDS:
            return self._last[1]
        last = self._last
        if not self._asking.acquire(blocking=last is None):
            assert last is not None, "one is waited for"
            return replace(last[1], age_seconds=last[1].age_seconds + now - last[0])
        try:
            if self._last is not None and self._clock() - self._last[0] < FRESH_SECONDS:
                return self._last[1]
            return self._ask(now)
        finally:
            self._asking.release()

    def find_page(self) -> str | None:
        """Return where the application's figures are, below Spark's REST interface; ``None`` where nothing answers."""
        try:
            return self._found()
        except (OSError, ValueError, LookupError, HTTPException):
            return None

    def _ask(self, now: float) -> MemoryReading | None:
        try:
            page = self._found()
            stages = self._fetch(f"{page}/stages?status=active&details=true")
            executors = self._fetch(f"{page}/executors")
        except (OSError, ValueError, LookupError, HTTPException):
            self._page = None
            if self._last is None:
                return None
            at, last = self._last
            return replace(last, age_seconds=now - at, idle=False)
        executor, used = fullest(stages)
        running = find_working_stages(stages)
        reading = MemoryReading(
            used_bytes=used,
            limit_bytes=self._limit,
            age_seconds=self._age(now, running, seen=used is not None),
            executor=executor,
            slots=slots(executors, self._task_cpus),
            slots_each=max((slots([one], self._task_cpus) or 0 for one in executors), default=0) or None,
            jvm_bytes=largest_jvm(stages, executors),
            cores=cores_to_share(executors) if self._sets_cores else (),
            idle=used is None and not running,
        )
        self._last = (now, reading)
        return reading

    def _age(self, now: float, running: frozenset[str], *, seen: bool) -> float:
        """Return how long ago a figure was seen; while stages run without one, how long the oldest of them has."""
        self._begun = {stage: self._begun.get(stage, now) for stage in running}
        if seen:
            self._figure_at = now
            return 0.0
        if running:
            return now - min(self._begun.values())
        return math.inf if self._figure_at is None else now - self._figure_at

    def _found(self) -> str:
        """Return the address of the application's page, found again after it was lost."""
        if self._page is None:
            self._page = self._search()
            properties = dict(self._fetch(f"{self._page}/environment")["sparkProperties"])
            self._limit = limit_bytes(properties)
            self._task_cpus = max(1, int(properties.get("spark.task.cpus", "1")))
            self._sets_cores = may_set_cores(properties)
        return self._page

    def _search(self) -> str:
        failure: Exception = ValueError("No address of a Spark page is known.")
        for url in self._urls:
            try:
                ids = [application["id"] for application in self._fetch(f"{url}/api/v1/applications")]
            except (OSError, ValueError, HTTPException) as error:
                failure = error
                continue
            if ids and self._app_id in (None, *ids):
                return f"{url}/api/v1/applications/{self._app_id or ids[0]}"
        raise failure


CONNECT_SECONDS = 5.0
PYTHON, DRIVER_PYTHON = "spark.pyspark.python", "spark.pyspark.driver.python"
CLIENT, CLUSTER = "client", "cluster"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A master with its deploy mode. ``RunnerRefused`` where ranges cannot be run that way."""

    master: str
    """``local[2]``, ``spark://host:port``, ``yarn``, ``k8s://…``."""
    deploy_mode: str = CLIENT
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's properties as the connection has them; shown by Spark, so never a secret."""
    namespace: str = "default"
    """Of Kubernetes."""
    secrets_file: str | None = None
    """File with the logins where the driver runs, in cluster mode."""

    def __post_init__(self) -> None:
        """Refuse what could only fail later."""
        if self.deploy_mode not in (CLIENT, CLUSTER):
            raise InvalidDeclaration(f"The deploy mode must be {CLIENT} or {CLUSTER}, not {self.deploy_mode!r}.")
        if self.cluster and not (self.yarn or self.kubernetes):
            raise RunnerRefused(
                f"Spark runs no Python application in cluster mode on {self.master}: use deploy-mode {CLIENT}."
            )
        if self.cluster and not self.secrets_file:
            raise RunnerRefused(
                f"In cluster mode on {self.master} there is no way to pass a password to the driver: use deploy-mode "
                f"{CLIENT}, or name by the extra secrets_file a file with the logins that is mounted where it runs."
            )
        try:
            self.limit()
        except ValueError as error:
            raise InvalidDeclaration(f"Spark's memory settings cannot be read: {error}") from error

    @property
    def local(self) -> bool:
        """Whether driver and tasks are one process tree on this host."""
        return self.master.startswith("local")

    @property
    def yarn(self) -> bool:
        """Whether YARN runs them."""
        return self.master.startswith("yarn")

    @property
    def kubernetes(self) -> bool:
        """Whether Kubernetes runs them."""
        return self.master.startswith("k8s")

    @property
    def cluster(self) -> bool:
        """Whether drivers run on the cluster, where no file of this host is seen."""
        return self.deploy_mode == CLUSTER

    @property
    def own_python(self) -> bool:
        """Whether drivers run by this very Python; executors may run by another of the same minor version."""
        return not self.cluster and DRIVER_PYTHON not in self.conf

    def limit(self) -> int:
        """Return what one executor may take, in bytes."""
        return limit_bytes({"spark.master": self.master, **self.conf})

    def marks(self, name: str) -> dict[str, str]:
        """Return the properties by which an application can be found again on its cluster, beside its name."""
        if self.yarn:
            return {"spark.yarn.tags": ",".join(filter(None, [self.conf.get("spark.yarn.tags"), name]))}
        if self.kubernetes:
            label = safe(name)
            pod = {"spark.kubernetes.driver.pod.name": pod_name(name)} if self.cluster else {}
            return {
                "spark.kubernetes.driver.label.backpressure-attempt": label,
                "spark.kubernetes.executor.label.backpressure-attempt": label,
                **pod,
            }
        return {}

    def knock(self) -> None:
        """Raise ``RunnerUnavailable`` where no standalone master listens: Spark itself would try for a minute."""
        if not self.master.startswith("spark://"):
            return
        reasons = [_knock(address) for address in self.master.removeprefix("spark://").split(",")]
        if all(reasons):
            raise RunnerUnavailable(f"The Spark master at {self.master} cannot be reached: {reasons[0]}.")


def safe(name: str) -> str:
    """Return an attempt's tag as a folder or a label may be called."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", name)


def pod_name(name: str) -> str:
    """Return the name of an attempt's driver pod."""
    return f"{safe(name).lower().replace('.', '-')}-driver"


def _knock(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ""
