"""A session for questions where ranges run by spark-submit: one application on this host for each process."""

import fcntl
import json
import logging
import os
import secrets
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from airflow_provider_backpressure.core.endpoints import SessionServer
from airflow_provider_backpressure.core.snapshot.application_request import HELD, SESSION, Request
from airflow_provider_backpressure.exceptions import BackpressureError, RangeFailed, RunnerUnavailable
from airflow_provider_backpressure.runners import driver_process_and_files as processes
from airflow_provider_backpressure.runners.driver_process_and_files import (
    ANSWER,
    Application,
    Folders,
    Submitter,
    prepare_application,
    private,
)
from airflow_provider_backpressure.runners.executor_memory import Target, safe
from airflow_provider_backpressure.runners.spark_errors import failure

log = logging.getLogger(__name__)

ON_THIS_HOST = "local[2]"
"""Master of the application. On the cluster it would keep executors for as long as a lane lives."""
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105
"""Variable with what callers have to say; Spark reads it."""
START_SECONDS = 300.0
"""Most that its start may take: Spark may have to fetch packages first."""
END_SECONDS = 20.0
LOOK_SECONDS = 0.05

_applications: dict[str, "SessionApplication"] = {}
_opening = threading.Lock()


def open_server(target: Target, submitter: Submitter, root: Path | None = None) -> SessionServer:
    """Begin to use this process's application of a cluster; it is started by the first question."""
    key = repr((target, root))
    with _opening:
        application = _applications.get(key)
        if application is None:
            application = _applications[key] = SessionApplication(target, submitter, root)
        return Use(application)


class Use:
    """One user of an application. Implements ``SessionServer``."""

    def __init__(self, application: "SessionApplication") -> None:
        """Be one of its users."""
        self._application = application
        application.users.add(self)

    def find_address(self) -> str:
        return self._application.find_address()

    def close(self) -> None:
        with _opening:
            self._application.users.discard(self)
            idle = not self._application.users
        if idle:
            self._application.end()


class SessionApplication:
    """Runs at most once at a time."""

    def __init__(self, target: Target, submitter: Submitter, root: Path | None = None) -> None:
        """Submit nothing yet."""
        self.users: set[Use] = set()
        self._target = target
        self._submitter = submitter
        self._folders = Folders(root)
        self._lock = threading.Lock()
        self._running: _Run | None = None
        self._held = ExitStack()

    def find_address(self) -> str:
        """Return where it is, started where it does not run. Errors as those of ``SessionServer``."""
        with self._lock:
            if self._running is None or self._running.is_over():
                self._held.close()
                self._running = self._start()
            return self._running.address

    def end(self) -> None:
        """End it, unless somebody uses it again. Idempotent."""
        with self._lock:
            if self.users:
                return
            self._held.close()
            self._running = None

    def _start(self) -> "_Run":
        name, began = f"bp-{SESSION}-{uuid.uuid4().hex}", time.monotonic()
        self._folders.root()
        self._folders.sweep()
        with ExitStack() as held:
            folder = held.enter_context(self._folders.open_folder(name))
            held.callback(processes.end, safe(name))
            request = Request(kind=SESSION, master=ON_THIS_HOST)
            application = prepare_application(name, request, folder, target=self._target, endpoints={}, here=True)
            token = secrets.token_urlsafe(32)
            run = _Run(replace(application, environment={TOKEN_VARIABLE: token}), self._submitter, token)
            held.callback(run.wait, END_SECONDS)
            held.enter_context(hold(folder / HELD))
            run.start(self._target.master)
            self._held = held.pop_all()
        log.info("A session for questions to the catalog is served here after %.1f s.", time.monotonic() - began)
        return run


class _Run:
    """One application, from its start to its end."""

    def __init__(self, application: Application, submitter: Submitter, token: str) -> None:
        self._application = application
        self._submitter = submitter
        self._token = token
        self._output = ""
        self._error: BackpressureError | None = None
        # A daemon: where this process ends without a word, the application does so too.
        self._thread = threading.Thread(target=self._submit, name="spark-session", daemon=True)
        self.address = ""

    def start(self, master: str) -> None:
        """Submit it, and wait until it serves. Errors as those of an application."""
        self._thread.start()
        answer, deadline = self._application.folder / ANSWER, time.monotonic() + START_SECONDS
        while not answer.exists() and not self.is_over() and time.monotonic() < deadline:
            self._thread.join(LOOK_SECONDS)
        said = json.loads(answer.read_text()) if answer.exists() else {}
        if "port" in said:
            self.address = f"sc://localhost:{said['port']}/;token={self._token}"
            return
        if not said and not self.is_over():
            raise RunnerUnavailable(f"The Spark application for questions did not start in {START_SECONDS:.0f} s.")
        self._thread.join(END_SECONDS)
        found = self._error or failure(said, self._output or "it ended without an answer", master)
        # No range has failed: what is asked is asked again.
        raise RunnerUnavailable(str(found)) if isinstance(found, RangeFailed) else found

    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _submit(self) -> None:
        try:
            self._output = self._submitter.submit(self._application) or ""
        except BackpressureError as error:
            self._error = error


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold a file until the end: the application that waits for it ends then. No child of this process holds it."""
    private(path, "")
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
