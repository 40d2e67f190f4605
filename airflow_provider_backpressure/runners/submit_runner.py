"""Ranges as applications by spark-submit."""

import hashlib
import json
import logging
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.ports import ExecutorEnvironment
from airflow_provider_backpressure.core.snapshot.application_request import CHECKSUMS, DESCRIBE, PROBE, RANGE, Request
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    SliceResult,
    Transform,
    columns_from_json,
)
from airflow_provider_backpressure.exceptions import BackpressureError, RangeFailed
from airflow_provider_backpressure.runners import code_shipping as shipment
from airflow_provider_backpressure.runners import driver_process_and_files as processes
from airflow_provider_backpressure.runners.code_shipping import to_reference
from airflow_provider_backpressure.runners.driver_process_and_files import (
    ANSWER,
    Folders,
    Submitter,
    prepare_application,
    private,
)
from airflow_provider_backpressure.runners.executor_memory import PYTHON, Target, safe
from airflow_provider_backpressure.runners.spark_errors import failure
from airflow_provider_backpressure.runners.tried_versions import warn_untried_submit

log = logging.getLogger(__name__)

MAX_APPLICATIONS = 64
"""Most applications in flight from one process; the gate admits far fewer."""
ON_THIS_HOST = "local[1]"
GATHER_SECONDS = 0.5
"""How long checksums are gathered before an application is begun for all of them."""
PROBED_SECONDS = 86_400.0
"""How long executors that had everything are taken to have it still."""
CANCEL_POLL = PollPolicy(initial=0.1, maximum=0.1)
CANCEL_SECONDS = 20.0


class SubmitRunner:
    """The runner port over spark-submit. May be shared by threads.

    ``endpoints``: logins by connection id; they travel in a file that only this account can read and that is removed
    once read. In cluster mode drivers read the target's ``secrets_file`` instead, and answer nothing: there the sink's
    marker alone shows the result. ``transform``: the callable that a ``Transform`` without a reference means.
    """

    overhead_seconds = 15.0

    def __init__(
        self,
        target: Target,
        submitter: Submitter,
        endpoints: Mapping[str, Endpoint],
        *,
        transform: Callable[..., Any] | None = None,
        root: Path | None = None,
    ) -> None:
        """Nothing is submitted yet. ``root``: folder of the applications' files."""
        self.session_id = f"submit:{socket.gethostname()}:{uuid.uuid4().hex}"
        self._target = target
        self._submitter = submitter
        self._endpoints = endpoints
        self._transform = transform
        self._folders = Folders(root)
        self._lock = threading.Lock()
        self._jobs: dict[str, Future[Any]] = {}
        self._ended: set[str] = set()
        self.returns_results = not target.cluster
        self._waiting: list[tuple[ChecksumSpec, Future[SliceResult]]] = []
        self._pool = ThreadPoolExecutor(MAX_APPLICATIONS, thread_name_prefix="spark-submit")

    def probe(self, modules: Sequence[str] = ()) -> ExecutorEnvironment:
        """See :meth:`Runner.probe`. No application for what this process sees itself, or has seen within a day.

        In cluster mode nothing answers, and every package counts as there until a range says otherwise.
        """
        if self._target.cluster:
            log.info("In cluster mode the executors' packages are not looked at before the first range.")
            looked = shipment.module(shipment.PROBE)
            return ExecutorEnvironment(
                python=looked.environment(())["python"], modules=dict.fromkeys(modules, "not looked at")
            )
        if self._target.local and self._target.own_python and PYTHON not in self._target.conf:
            return ExecutorEnvironment(**shipment.module(shipment.PROBE).environment(modules))
        kept = self._probe(modules)
        if kept.exists() and time.time() - kept.stat().st_mtime < PROBED_SECONDS:
            found = ExecutorEnvironment(**json.loads(kept.read_text()))
        else:
            found = ExecutorEnvironment(**self._ask(Request(kind=PROBE, modules=tuple(modules))))
            if all(found.modules.values()):
                private(kept.with_suffix(f".{uuid.uuid4().hex}"), json.dumps(asdict(found))).replace(kept)
        if found.spark:
            warn_untried_submit(found.spark, where=self._target.master)
        return found

    def describe(self, read: ReadSpec, transform: Transform) -> tuple[Column, ...]:
        """See :meth:`Runner.describe`. An application on this host: analysis needs no executors."""
        request = Request(
            kind=DESCRIBE, read=read, transform=to_reference(transform, self._transform), master=ON_THIS_HOST
        )
        return columns_from_json(self._ask(request)["columns"])

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        """See :meth:`Runner.run`. In cluster mode the result names no slices: the sink's markers do."""
        future = self._pool.submit(self._range, spec)
        with self._lock:
            self._jobs[spec.tag] = future
        future.add_done_callback(lambda _: self._jobs.pop(spec.tag, None))
        return future

    def checksum(self, spec: ChecksumSpec) -> "Future[SliceResult]":
        """See :meth:`Runner.checksum`. All that are asked for within a moment share one application."""
        future: Future[SliceResult] = Future()
        with self._lock:
            self._waiting.append((spec, future))
            first = len(self._waiting) == 1
        if first:
            self._pool.submit(self._checksums)
        return future

    def interrupt(self, session_id: str, tag: str) -> None:
        """See :meth:`Runner.interrupt`. By the cluster's own means, and by the processes of this host."""
        with self._lock:
            self._ended.add(tag)
            own = self._jobs.get(tag)
        if own is not None and own.cancel():
            return
        on_cluster = self._submitter.end(tag)
        found = 0
        # Between its thread and its process there is a moment in which an application of our own is not seen yet.
        for _ in CANCEL_POLL.tries(timeout=CANCEL_SECONDS, clock=SystemClock()):
            found += processes.end(safe(tag))
            if own is None or own.done():
                break
        self._folders.remove(tag)
        if not (on_cluster or found or own) and session_id.split(":")[1:2] != [socket.gethostname()]:
            log.warning("%s was submitted elsewhere (%s): the sink's fence keeps it out.", tag, session_id)

    def memory(self) -> MemoryReading | None:
        """See :meth:`Runner.memory`. Only the limit is known before a range runs: each has executors of its own."""
        limit = self._target.limit()
        return MemoryReading(used_bytes=0, limit_bytes=limit, age_seconds=0.0, executor="each", isolated=True)

    def close(self) -> None:
        """See :meth:`Runner.close`. Applications of this process that still run are ended."""
        for name in list(self._jobs):
            self.interrupt(self.session_id, name)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _range(self, spec: RangeSpec) -> RangeResult:
        sent = RangeSpec(**{**vars(spec), "transform": to_reference(spec.transform, self._transform)})
        answer = self._run_application(spec.tag, Request(kind=RANGE, spec=sent))
        return RangeResult(
            plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=_slices(answer.get("slices", ()))
        )

    def _checksums(self) -> None:
        """Answer every checksum that waits, by one application."""
        time.sleep(GATHER_SECONDS)
        with self._lock:
            batch, self._waiting = self._waiting, []
        # In cluster mode no answer comes back, so the counting is done from here.
        master = "local[*]" if self._target.cluster else None
        try:
            request = Request(kind=CHECKSUMS, checksums=tuple(spec for spec, _ in batch), master=master)
            results = _slices(self._ask(request)["slices"])
        except BackpressureError as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)

    def _ask(self, request: Request) -> dict[str, Any]:
        """Return the answer to a request that changes nothing."""
        name = f"bp-{request.kind}-{uuid.uuid4().hex}"
        future: Future[dict[str, Any]] = self._pool.submit(self._run_application, name, request, here=True)
        with self._lock:
            self._jobs[name] = future
        try:
            return future.result()
        finally:
            self._jobs.pop(name, None)

    def _run_application(self, name: str, request: Request, *, here: bool = False) -> dict[str, Any]:
        """Run an application and return its answer, empty where drivers run on the cluster. Errors as the port's."""
        here = here or not self._target.cluster
        if request.master is None:
            self._target.knock()
        self._folders.root()
        self._folders.sweep()
        with self._folders.open_folder(name) as folder:
            application = prepare_application(
                name, request, folder, target=self._target, endpoints=self._endpoints, here=here
            )
            if name in self._ended:
                raise RangeFailed("The Spark application was ended before it began.")
            output = self._submitter.submit(application)
            answer = _read(folder / ANSWER)
        if "error" not in answer and (answer or (output is None and not here)):
            return answer
        if name in self._ended:
            raise RangeFailed("The Spark application was ended.")
        raise failure(answer, output or "it ended without an answer", self._target.master)

    def _probe(self, modules: Sequence[str]) -> Path:
        text = json.dumps([self._target.master, sorted(self._target.conf.items()), sys.version, sorted(modules)])
        return self._folders.root() / f"probed-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _slices(values: Iterable[Mapping[str, Any]]) -> tuple[SliceResult, ...]:
    return tuple(SliceResult(**value) for value in values)


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}
