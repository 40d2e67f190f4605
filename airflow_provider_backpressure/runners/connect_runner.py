"""Ranges as jobs on one warm Spark Connect session."""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pyspark import __version__ as CLIENT
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql.connect.session import SparkSession

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.ports import ExecutorEnvironment
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    SliceResult,
    Transform,
)
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    RunnerUnavailable,
    strip_frames,
)
from airflow_provider_backpressure.runners.code_shipping import (
    ABOARD,
    JOB,
    PROBE,
    cargo,
    module,
    package_cargo,
)
from airflow_provider_backpressure.runners.connect_session import Address, active, is_session_id, tag_jobs
from airflow_provider_backpressure.runners.executor_memory import ExecutorMemory
from airflow_provider_backpressure.runners.session_settings import CONNECT_SETTINGS, TIME_ZONE, UTC
from airflow_provider_backpressure.runners.shared_jobs import SharedJobs
from airflow_provider_backpressure.runners.spark_errors import translate
from airflow_provider_backpressure.runners.tried_versions import warn_untried

T = TypeVar("T")

log = logging.getLogger(__name__)

SLOTS_SECONDS = 15.0
"""Seconds after which the cluster's slots are counted again."""
MAX_JOBS = 256
"""Most jobs in flight from one process; the gate admits far fewer."""


class SharedRange(NamedTuple):
    """A range that may share its job."""

    spec: RangeSpec
    session_id: str
    """The session that is in the ledger for it: a job in any other one would not be found by who has to end it."""


class ConnectRunner:
    """The runner port over Spark Connect. May be shared by threads; the session opens with the first job.

    ``remote``: ``sc://host:port/;…``. ``endpoints``: logins by connection id; they reach the tasks inside the pickled
    function of a job only. ``transform``: the callable that a ``Transform`` without a reference means. ``ui_url``:
    where Spark's own page is, if not at the server's host. ``shares``: whether small ranges share jobs, as those of
    many tables do. Implements ``Runner``.
    """

    overhead_seconds = 0.15
    returns_results = True

    def __init__(
        self,
        remote: str,
        endpoints: Mapping[str, Endpoint],
        *,
        session_id: str | None = None,
        transform: Callable[..., Any] | None = None,
        ui_url: str | None = None,
        shares: bool = False,
    ) -> None:
        """Check the address; nothing is opened yet."""
        self.session_id = session_id or str(uuid.uuid4())
        self._address = Address(remote)
        self._endpoints = endpoints
        self._transform = transform
        self._ui_url = ui_url
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._zone = self._server_zone = UTC
        """The session's time zone, and the one that it began with."""
        self._memory: ExecutorMemory | None = None
        self._profiles: dict[int, ResourceProfile] = {}
        self._counted: tuple[float, int | None] = (0.0, None)
        """Until when the number of slots is taken to be this one."""
        self._pool = ThreadPoolExecutor(MAX_JOBS, thread_name_prefix="spark-connect")
        self._checks: SharedJobs[ChecksumSpec, SliceResult] = SharedJobs(
            run=self._checksums, submit=self._pool.submit, slots=self._slots
        )
        self._shares = shares
        self._shared: dict[str, Future[RangeResult]] = {}
        """Of ranges that share jobs, by their tags."""
        self._ranges: SharedJobs[SharedRange, RangeResult] = SharedJobs(
            run=self._run_together,
            submit=self._pool.submit,
            slots=self._slots,
            repeats=lambda error: not isinstance(error, RunnerUnavailable),
        )

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        """See :meth:`Runner.probe`. ``RunnerRefused`` where Spark or the executors' Python cannot work with ours."""
        return self._on_session(partial(self._probe, modules))

    def describe(self, read: ReadSpec, transform: Transform) -> tuple[Column, ...]:
        return self._on_session(partial(self._describe, read, transform))

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See :meth:`Runner.run`. Small ranges that are asked for while every slot is taken share a job."""
        if self._shares and module(JOB).may_share(spec):
            future = self._shared[spec.tag] = self._ranges.ask(SharedRange(spec, self.session_id))
            future.add_done_callback(lambda _: self._shared.pop(spec.tag, None))
            return future
        return self._pool.submit(self._on_session, partial(self._run, spec), [spec.read])

    def checksum(self, spec: ChecksumSpec) -> "Future[SliceResult]":
        """See :meth:`Runner.checksum`. What is asked for while every slot is taken shares a job."""
        return self._checks.ask(spec)

    def interrupt(self, session_id: str, tag: str) -> None:
        """See :meth:`Runner.interrupt`. Another process's session is joined for the call and left as it is.

        Ranges that share the job of this one begin again, each in a job of its own.
        """
        if (shared := self._shared.get(tag)) is not None:
            self._ranges.end(shared)
        if not is_session_id(session_id):
            log.info("%s is no session of Spark Connect: relying on the sink's fence for %s.", session_id, tag)
            return
        own = self._session if session_id == self.session_id else None
        session = own or self._address.open(session_id)
        try:
            session.interruptTag(tag)
        except PySparkException as error:
            if "INVALID_HANDLE" not in (error.getCondition() or ""):
                raise translate(error, str(self._address)) from strip_frames(error)
            log.info("Session %s is gone and its jobs with it: nothing to interrupt for %s.", session_id, tag)
        finally:
            if session is not own:
                session.client.close()

    def memory(self) -> MemoryReading | None:
        found = self._find_memory()
        return None if found is None else found.read()

    def find_page(self) -> str | None:
        """Return where Spark's REST interface shows this application; ``None`` where no page answers."""
        found = self._find_memory()
        return None if found is None else found.find_page()

    def close(self) -> None:
        """See :meth:`Runner.close`. Jobs of this session that still run are ended with it."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.stop()
        self._checks.close()
        self._ranges.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _find_memory(self) -> ExecutorMemory | None:
        if self._memory is None:
            try:
                # Where the page is known it answers without a session: who only looks at the gate opens none.
                page = ExecutorMemory(urls=[self._ui_url]) if self._ui_url else None
                self._memory = page or self._on_session(self._executor_memory)
            except RunnerUnavailable as error:
                log.warning("The executors' memory is not known: %s", error)
        return self._memory

    def _describe(self, read: ReadSpec, transform: Transform, session: SparkSession) -> tuple[Column, ...]:
        self._set_zone(session, transform)
        columns: tuple[Column, ...] = module(JOB).describe(session, read, transform, self._transform)
        return columns

    def _probe(self, modules: Sequence[str], session: SparkSession) -> ExecutorEnvironment:
        spark = session.version
        rows = module(PROBE).probe_job(session, modules).collect()
        warn_untried(spark, client=CLIENT, where=str(self._address))
        return ExecutorEnvironment(**json.loads(rows[0].result), spark=spark)

    def _run(self, spec: RangeSpec, session: SparkSession) -> RangeResult:
        job = module(JOB)
        self._set_zone(session, spec.transform)
        with tag_jobs(session, spec.tag):
            profile = self._find_profile(spec.task_cpus)
            result: RangeResult = job.run_range(session, spec, self._endpoints, self._transform, profile)
        return result

    def _run_together(self, ranges: Sequence[SharedRange]) -> Sequence[RangeResult | BaseException]:
        now = self.session_id
        mine = [each.spec for each in ranges if each.session_id == now]
        if len(mine) == len(ranges) == 1:
            return [self._on_session(partial(self._run, mine[0]), [mine[0].read])]
        found = iter(self._on_session(partial(self._run_shared, mine), [spec.read for spec in mine]) if mine else [])
        gone = RunnerUnavailable(f"Spark Connect at {self._address} no longer knows the session of this range.")
        return [next(found) if each.session_id == now else gone for each in ranges]

    def _run_shared(
        self, specs: Sequence[RangeSpec], session: SparkSession
    ) -> Sequence[RangeResult | BackpressureError]:
        job, tasks = module(JOB), self._slots() or len(specs)
        log.info("%s small ranges share one Spark job.", len(specs))
        with ExitStack() as tags:
            for spec in specs:
                tags.enter_context(tag_jobs(session, spec.tag))
            profile = self._find_profile(max(spec.task_cpus for spec in specs))
            rows = job.joint_job(session, specs, self._endpoints, profile, tasks=tasks).collect()
        results: Sequence[RangeResult | BackpressureError] = job.joint_results(specs, rows)
        return results

    def _find_profile(self, task_cpus: int) -> ResourceProfile | None:
        """Return what makes tasks take so many cores, the same for all ranges: the server keeps each that it is given.

        PySpark makes it on the server of the thread's active session. ``None`` for one core, which tasks take anyway.
        """
        if task_cpus == 1:
            return None
        with self._lock:
            if task_cpus not in self._profiles:
                profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(task_cpus)).build
                log.info("Tasks take %s cores from now on, by the resource profile %s.", task_cpus, profile.id)
                self._profiles[task_cpus] = profile
            return self._profiles[task_cpus]

    def _checksums(self, specs: Sequence[ChecksumSpec]) -> Sequence[SliceResult]:
        def work(session: SparkSession) -> Sequence[SliceResult]:
            job = module(JOB)
            results: tuple[SliceResult, ...] = job.run_checksums(session, specs, self._endpoints)
            return results

        return self._on_session(work, [spec.read for spec in specs if spec.read is not None])

    def _slots(self) -> int | None:
        """Return how many slots the cluster has, as of a moment ago; ``None`` where its page does not say."""
        at, slots = self._counted
        if time.monotonic() >= at:
            reading = self.memory()
            slots = None if reading is None else reading.slots
            self._counted = (time.monotonic() + SLOTS_SECONDS, slots)
        return slots

    def _set_zone(self, session: SparkSession, transform: Transform | None) -> None:
        """Set the session's time zone to the transform's, once: a function in Python may set another one after that."""
        if transform is None:
            return
        with self._lock:
            zone = transform.zone or self._server_zone
            if self._zone != zone:
                session.conf.set(TIME_ZONE, zone)
                self._zone = zone

    def _executor_memory(self, session: SparkSession) -> ExecutorMemory:
        port = session.conf.get("spark.ui.port", "4040")
        hosts = (self._address.host, session.conf.get("spark.driver.host", self._address.host))
        return ExecutorMemory(urls=[f"http://{host}:{port}" for host in hosts], app_id=session.conf.get("spark.app.id"))

    def _on_session(self, work: Callable[[SparkSession], T], reads: Sequence[ReadSpec] = ()) -> T:
        """Return what ``work`` makes of the session; Spark's errors leave as ours. ``reads``: what its jobs read.

        A session that the server no longer knows is given up: the next job opens another one.
        """
        session: SparkSession | None = None
        packages = [package_cargo(name) for name in {each.package for read in reads for each in read.substitutes}]
        try:
            session = self._open()
            with active(session), module(ABOARD).carry_code(*cargo(), packages):
                return work(session)
        except (PySparkException, ValueError) as error:
            found = translate(error, str(self._address))
            if session is not None and isinstance(found, RunnerUnavailable):
                self._give_up(session)
            # Its frames hold the request, and that the function with the logins.
            raise found from strip_frames(error)

    def _open(self) -> SparkSession:
        """Return the session, opened where it is not yet."""
        with self._lock:
            if self._session is None:
                session = self._address.begin(self.session_id)
                try:
                    self._zone, self._server_zone = UTC, session.conf.get(TIME_ZONE) or UTC
                    for name, value in CONNECT_SETTINGS.items():
                        session.conf.set(name, value)
                except PySparkException:
                    session.client.close()
                    raise
                self._session = session
            return self._session

    def _give_up(self, session: SparkSession) -> None:
        with self._lock:
            if self._session is session:
                session.client.close()
                self._session, self.session_id = None, str(uuid.uuid4())
                self._profiles = {}
