"""Ranges as jobs on one warm Spark Connect session."""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.error_codec import strip_frames
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.ports import ExecutorEnvironment
from airflow_provider_backpressure.core.snapshot.messages import (
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    SliceResult,
    Transform,
)
from airflow_provider_backpressure.exceptions import RunnerUnavailable
from airflow_provider_backpressure.runners.code_shipping import ABOARD, JOB, PROBE, SETTINGS, cargo, module
from airflow_provider_backpressure.runners.connect_session import Address, active, is_session_id, tag_jobs
from airflow_provider_backpressure.runners.errors import translate
from airflow_provider_backpressure.runners.executor_memory import ExecutorMemory

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_JOBS = 256
"""Most jobs in flight from one process; the gate admits far fewer."""
UNKEPT = {"spark.connect.session.planCache.enabled": "false"}
"""No plan is asked for twice, and each holds all of our code. Spark would keep sixteen of them for each session, for as
long as it lives, and that of a killed lane lives for another hour."""


class ConnectRunner:
    """The runner port over Spark Connect. May be shared by threads; the session opens with the first job.

    ``remote``: ``sc://host:port/;…``. ``endpoints``: logins by connection id; they reach the tasks inside the pickled
    function of a job only. ``transform``: the callable that a ``Transform`` without a reference means. ``ui_url``:
    where Spark's own page is, if not at the server's host.
    """

    overhead_seconds = 0.15

    def __init__(
        self,
        remote: str,
        endpoints: Mapping[str, Endpoint],
        *,
        session_id: str | None = None,
        transform: Callable[..., Any] | None = None,
        ui_url: str | None = None,
    ) -> None:
        """Check the address; nothing is opened yet."""
        self.session_id = session_id or str(uuid.uuid4())
        self._address = Address(remote)
        self._endpoints = endpoints
        self._transform = transform
        self._ui_url = ui_url
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._memory: ExecutorMemory | None = None
        self._pool = ThreadPoolExecutor(MAX_JOBS, thread_name_prefix="spark-connect")

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        """See :meth:`Runner.probe`. ``RunnerRefused`` for another Python minor version or without PyArrow there."""
        rows = self._on_session(lambda session: module(PROBE).probe_job(session, modules).collect())
        return ExecutorEnvironment(**json.loads(rows[0].result))

    def describe(self, read: ReadSpec, transform: Transform) -> tuple[Column, ...]:
        """See :meth:`Runner.describe`."""
        return self._on_session(lambda session: module(JOB).describe(session, read, transform, self._transform))

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See :meth:`Runner.run`."""
        return self._pool.submit(self._on_session, partial(self._run, spec))

    def checksum(self, spec: ChecksumSpec) -> "Future[SliceResult]":
        """See :meth:`Runner.checksum`."""
        return self._pool.submit(self._on_session, partial(self._checksum, spec))

    def interrupt(self, session_id: str, tag: str) -> None:
        """See :meth:`Runner.interrupt`. Another process's session is joined for the call and left as it is."""
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
        """See :meth:`Runner.memory`."""
        if self._memory is None:
            try:
                # Where the page is known it answers without a session: who only looks at the gate opens none.
                page = ExecutorMemory(urls=[self._ui_url]) if self._ui_url else None
                self._memory = page or self._on_session(self._executor_memory)
            except RunnerUnavailable as error:
                log.warning("The executors' memory is not known: %s", error)
                return None
        return self._memory.read()

    def close(self) -> None:
        """See :meth:`Runner.close`. Jobs of this session that still run are ended with it."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, spec: RangeSpec, session: SparkSession) -> RangeResult:
        job = module(JOB)
        with tag_jobs(session, spec.tag):
            rows = job.range_job(session, spec, self._endpoints, self._transform).collect()
        result: RangeResult = job.range_result(spec, rows)
        return result

    def _checksum(self, spec: ChecksumSpec, session: SparkSession) -> SliceResult:
        job = module(JOB)
        results: tuple[SliceResult, ...] = job.slice_results(
            job.checksum_job(session, [spec], self._endpoints).collect()
        )
        return results[0]

    def _executor_memory(self, session: SparkSession) -> ExecutorMemory:
        port = session.conf.get("spark.ui.port", "4040")
        hosts = (self._address.host, session.conf.get("spark.driver.host", self._address.host))
        return ExecutorMemory(urls=[f"http://{host}:{port}" for host in hosts], app_id=session.conf.get("spark.app.id"))

    def _on_session(self, work: Callable[[SparkSession], T]) -> T:
        """Return what ``work`` makes of the session; Spark's errors leave as ours.

        A session that the server no longer knows is given up: the next job opens another one.
        """
        session: SparkSession | None = None
        try:
            session = self._open()
            with active(session), module(ABOARD).carry_code(*cargo()):
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
                    for name, value in (SETTINGS | UNKEPT).items():
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
