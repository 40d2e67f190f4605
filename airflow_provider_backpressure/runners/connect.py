"""Ranges as jobs on one warm Spark Connect session."""

import atexit
import json
import logging
import os
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc
from pyspark import __version__ as CLIENT
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from airflow_provider_backpressure.core.endpoints import Endpoint
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
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RunnerUnavailable, strip_frames
from airflow_provider_backpressure.runners.code_shipping import (
    ABOARD,
    JOB,
    PROBE,
    SETTINGS,
    TIME_ZONE,
    cargo,
    module,
    package_cargo,
)
from airflow_provider_backpressure.runners.errors import translate
from airflow_provider_backpressure.runners.executor_memory import ExecutorMemory
from airflow_provider_backpressure.runners.shared_jobs import SharedJobs
from airflow_provider_backpressure.runners.versions import check_server, warn_untried

USER = "backpressure"
"""User id where the address names none: with the session's id it is all that another process needs."""
SHARED = {"spark.sql.artifact.isolation.enabled": "false"}
"""Of a session that shares the existing Python workers. It must get no files: all sessions would see them."""
AT_EXIT = ("_cleanup_ml", "_cleanup_ml_cache", "_on_exit")
"""What a client of PySpark 4.0, 4.1, and from 4.2 on does when the interpreter ends."""
CONNECT_SECONDS = 5.0
# Spark's own policy tries for ten minutes, silently; this one gives up after about twelve seconds.
_RETRIES: dict[str, Any] = {"max_retries": 6, "initial_backoff": 100, "max_backoff": 5000, "jitter": 0}


class _Session(SparkSession):
    def __del__(self) -> None:
        """Close nothing: its owner closes it.

        PySpark's own closes the client, and that ends a pool which all clients of the process share; collected in a
        thread that is just handing work to that pool, it waits for itself for ever (seen on 4.1.3).
        """


def is_session_id(text: str) -> bool:
    """Whether Spark Connect may know a session of this id: it takes UUIDs only."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


class Address:
    """Where a Spark Connect server is, ``sc://host:port/;token=…``. ``str()`` leaves the parameters out."""

    def __init__(self, remote: str) -> None:
        """Read the address; ``InvalidDeclaration`` where it is none."""
        self._remote = remote
        try:
            self.host = self._channel().host.strip("[]")
            self.port = int(self._channel().endpoint.rpartition(":")[2])
        except (PySparkException, ValueError):
            # Their errors quote the address with its token, so the cause is not kept.
            raise InvalidDeclaration(
                f"{self} is not the address of a Spark Connect server: it must read sc://host:port."
            ) from None

    def __str__(self) -> str:
        """Return scheme, host and port."""
        return self._remote.partition(";")[0].rstrip("/")

    def begin(self, session_id: str) -> SparkSession:
        """Return a new session of this id (a UUID), which shares its Python workers with all others begun so.

        Spark would else start a daemon of workers for it, and keep that when the session is over, for as long as the
        executor lives (SPARK-54055, seen on 4.1.3). Whether it does so is settled before a session takes its first
        setting; a clone is settled by what was set before. Where client (before 4.1) or server makes no clones the
        session is as any other.
        Raises ``RunnerUnavailable`` where nothing listens, ``RunnerRefused`` where the server is too old.
        """
        clones = hasattr(SparkConnectClient, "clone")
        model = self.open(str(uuid.uuid4()) if clones else session_id)
        try:
            # First: a server of Spark 3 lacks what follows, and answers with errors that do not say so.
            check_server(model.version, client=CLIENT, where=str(self))
            if not clones:
                return model
            for name, value in SHARED.items():
                model.conf.set(name, value)
            try:
                clone = model.client.clone(session_id)
                _let_go(clone)
                _hang_up(clone)
            except grpc.RpcError as error:
                reason = error.code().name if isinstance(error, grpc.Call) else type(error).__name__
                log.warning("Spark Connect at %s makes no clone of a session (%s): workers will stay.", self, reason)
            model.client.release_session()
        except BaseException:
            _hang_up(model.client)
            raise
        _hang_up(model.client)
        return self.open(session_id)

    def open(self, session_id: str) -> SparkSession:
        """Return a session of this id (a UUID), also one that another process began.

        Raises ``RunnerUnavailable`` where nothing listens; nothing is asked of the server yet.
        """
        if not is_session_id(session_id):
            raise InvalidDeclaration(f"The session id {session_id!r} is not a UUID.")
        self._knock()
        channel = self._channel()
        channel.set(channel.PARAM_SESSION_ID, session_id)
        channel.set(channel.PARAM_USER_ID, channel.userId or USER)
        # As PySpark's own builder does: functions and types that a transform uses are then those of Spark Connect.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        # Given up trying, PySpark both warns and raises; the error is enough.
        warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
        session = _Session(channel)
        _let_go(session.client)
        session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
        return session

    def _channel(self) -> DefaultChannelBuilder:
        return DefaultChannelBuilder(self._remote)

    def _knock(self) -> None:
        try:
            socket.create_connection((self.host, self.port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise RunnerUnavailable(f"Spark Connect at {self} cannot be reached: {reason}.") from error


def _let_go(client: SparkConnectClient) -> None:
    """Have nothing done for it when the interpreter ends: PySpark keeps every client until then."""
    for name in AT_EXIT:
        if hasattr(client, name):
            atexit.unregister(getattr(client, name))


def _hang_up(client: SparkConnectClient) -> None:
    """Close the channel alone: a client's own ``close`` ends the pool that the clients of other sessions work with."""
    client._channel.close()


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Let this be the thread's session: PySpark asks for it where a transform names a type by its text.

    PySpark sets it in the thread that opens a session only, keeps one there that was closed, and has no public setter.
    """
    local = SparkSession._active_session
    before = getattr(local, "session", None)
    local.session = session
    try:
        yield
    finally:
        local.session = before


@contextmanager
def tag_jobs(session: SparkSession, tag: str) -> Iterator[None]:
    """Give what this thread submits the tag by which it can be interrupted."""
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)


T = TypeVar("T")

log = logging.getLogger(__name__)

SLOTS_SECONDS = 15.0
"""Seconds after which the cluster's slots are counted again."""
MAX_JOBS = 256
"""Most jobs in flight from one process; the gate admits far fewer."""
UNKEPT = {"spark.connect.session.planCache.enabled": "false"}
"""No plan is asked for twice, and each holds all of our code. Spark would keep sixteen of them for each session, for as
long as it lives, and that of a killed lane lives for another hour."""


class ConnectRunner:
    """The runner port over Spark Connect. May be shared by threads; the session opens with the first job.

    ``remote``: ``sc://host:port/;…``. ``endpoints``: logins by connection id; they reach the tasks inside the pickled
    function of a job only. ``transform``: the callable that a ``Transform`` without a reference means. ``ui_url``:
    where Spark's own page is, if not at the server's host. Implements ``Runner``.
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
    ) -> None:
        """Check the address; nothing is opened yet."""
        self.session_id = session_id or str(uuid.uuid4())
        self._address = Address(remote)
        self._endpoints = endpoints
        self._transform = transform
        self._ui_url = ui_url
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._zone: str | None = None
        self._memory: ExecutorMemory | None = None
        self._profiles: dict[int, ResourceProfile] = {}
        self._counted: tuple[float, int | None] = (0.0, None)
        """Until when the number of slots is taken to be this one."""
        self._pool = ThreadPoolExecutor(MAX_JOBS, thread_name_prefix="spark-connect")
        self._checks: SharedJobs[ChecksumSpec, SliceResult] = SharedJobs(
            run=self._checksums, submit=self._pool.submit, slots=self._slots
        )

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        """See :meth:`Runner.probe`. ``RunnerRefused`` where Spark or the executors' Python cannot work with ours."""
        return self._on_session(partial(self._probe, modules))

    def describe(self, read: ReadSpec, transform: Transform) -> tuple[Column, ...]:
        return self._on_session(partial(self._describe, read, transform))

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        return self._pool.submit(self._on_session, partial(self._run, spec), [spec.read])

    def checksum(self, spec: ChecksumSpec) -> "Future[SliceResult]":
        """See :meth:`Runner.checksum`. What is asked for while every slot is taken shares a job."""
        return self._checks.ask(spec)

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
        self._checks.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

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
            rows = job.range_job(session, spec, self._endpoints, self._transform, profile).collect()
        result: RangeResult = job.range_result(spec, rows)
        return result

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
            results: tuple[SliceResult, ...] = job.slice_results(
                job.checksum_job(session, specs, self._endpoints).collect()
            )
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
        if transform is None or transform.zone is None:
            return
        with self._lock:
            if self._zone != transform.zone:
                session.conf.set(TIME_ZONE, transform.zone)
                self._zone = transform.zone

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
                self._session, self._zone, self.session_id = None, None, str(uuid.uuid4())
                self._profiles = {}
