"""An application as spark-submit is handed it, with its files in a folder of its own."""

import importlib.util
import os
import select
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from airflow_provider_backpressure.core.endpoints import Endpoint, endpoints_to_json
from airflow_provider_backpressure.core.snapshot.application_request import Request
from airflow_provider_backpressure.exceptions import RunnerRefused
from airflow_provider_backpressure.runners import code_shipping as shipment
from airflow_provider_backpressure.runners.executor_memory import DRIVER_PYTHON, PYTHON, Target, safe
from airflow_provider_backpressure.runners.session_settings import APPLICATION_SETTINGS, TIME_ZONE

APPLICATION = "range_job.py"
PATIENCE = 5.0
"""Seconds that a process gets to end by itself, and again to be gone."""


def find_processes(folder: str) -> list[int]:
    """Return the processes of this account that run the application whose request lies in a folder of this name.

    None where the system does not show processes as files, as Linux does.
    """
    entries = os.listdir("/proc") if os.path.isdir("/proc") else []
    return [int(entry) for entry in entries if entry.isdigit() and _is(int(entry), folder)]


def end(folder: str) -> int:
    """End them, by force where they do not, and return how many there were."""
    handles = [handle for pid in find_processes(folder) if (handle := _handle(pid, folder)) is not None]
    try:
        left = _send_signal(handles, signal.SIGTERM)
        if left:
            _send_signal(left, signal.SIGKILL)
    finally:
        for handle in handles:
            os.close(handle)
    return len(handles)


def _is(pid: int, folder: str) -> bool:
    process = Path("/proc", str(pid))
    try:
        if process.stat().st_uid != os.getuid():
            return False
        arguments = process.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    named = any(argument.endswith(f"/{APPLICATION}") for argument in arguments)
    return named and any(f"/{folder}/" in argument for argument in arguments)


def _handle(pid: int, folder: str) -> int | None:
    """Return a handle of the process if it still is the one that was looked for."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if _is(pid, folder):
        return handle
    os.close(handle)
    return None


def _send_signal(handles: Iterable[int], number: signal.Signals) -> list[int]:
    """Send a signal and return the processes that live on after a while."""
    left = []
    for handle in handles:
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            continue
        left.append(handle)
    deadline = time.monotonic() + PATIENCE
    while left and (wait := deadline - time.monotonic()) > 0:
        poll = select.poll()
        for handle in left:
            poll.register(handle, select.POLLIN)
        over = {handle for handle, _ in poll.poll(wait * 1000)}
        left = [handle for handle in left if handle not in over]
    return left


REQUEST, LOGINS, ANSWER = "request.json", "logins.json", "answer.json"
STALE_SECONDS = 600.0
"""Age at which a folder without a process is taken for left behind by a crash."""


class Folders:
    """The folders of this host and account, below ``root``: where temporary files go by default."""

    def __init__(self, root: Path | None = None) -> None:
        """Nothing is made yet."""
        self._root = root or Path(tempfile.gettempdir()) / f"backpressure-{os.getuid()}"

    def root(self) -> Path:
        """Return the folder of all, made where it is missing; ``RunnerRefused`` where others could look into it."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        found = self._root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise RunnerRefused(f"{self._root} must be a folder of this account with mode 0700: passwords go there.")
        return self._root

    def path(self, name: str) -> Path:
        """Return where the files of an application lie, or would."""
        return self._root / safe(name)

    @contextmanager
    def open_folder(self, name: str) -> Iterator[Path]:
        """Give a new folder for an application, removed with all that is in it afterwards."""
        self.root()
        self.remove(name)
        path = self.path(name)
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove an application's folder, if there is one."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    def sweep(self) -> None:
        """Remove what a crash has left: folders of some age whose application no longer runs."""
        for path in self.root().iterdir():
            try:
                stale = path.is_dir() and time.time() - path.stat().st_mtime > STALE_SECONDS
            except FileNotFoundError:
                continue
            if stale and not find_processes(path.name):
                shutil.rmtree(path, ignore_errors=True)


def private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read, and return its path."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


JOBS = "airflow_provider_backpressure.spark_jobs"


@dataclass(frozen=True, kw_only=True)
class Application:
    """What is handed to spark-submit. None of it is secret but for the environment."""

    name: str
    file: str
    arguments: tuple[str, ...]
    py_files: tuple[str, ...]
    files: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    folder: Path
    """Where it runs."""
    here: bool = False
    """The driver stays on this host, whatever the deploy mode."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for its driver beside those of this process; they may be secret."""


class Submitter(Protocol):
    """The way to spark-submit. May be shared by threads."""

    def submit(self, application: Application) -> str | None:
        """Run an application to its end. Return what was said where it failed, ``None`` where it ended well."""
        ...

    def end(self, name: str) -> bool:
        """End an application whose driver runs on the cluster, by its name; whether there was one."""
        ...


def prepare_application(
    name: str, request: Request, folder: Path, *, target: Target, endpoints: Mapping[str, Endpoint], here: bool
) -> Application:
    """Write an application's files and return it. ``here``: its driver runs on this host and answers."""
    sent = private(folder / REQUEST, request.to_json())
    if here:
        logins = endpoints_to_json({conn_id: endpoints[conn_id] for conn_id in request.conn_ids})
        arguments = [str(sent), str(private(folder / LOGINS, logins)), str(folder / ANSWER)]
    else:
        arguments = [REQUEST, str(target.secrets_file)]
    return Application(
        name=name,
        file=application_file(),
        arguments=tuple(arguments),
        py_files=(
            str(shipment.shipment()),
            *(str(shipment.package_shipment(package)) for package in request.packages),
            *_split_list(target.conf.get("spark.submit.pyFiles")),
        ),
        files=() if here else (str(sent), *_split_list(target.conf.get("spark.files"))),
        conf={
            **APPLICATION_SETTINGS,
            **({TIME_ZONE: request.zone} if request.zone else {}),
            **_own(target, folder, here=here),
            **target.conf,
            **target.marks(name),
        },
        folder=folder,
        here=here,
    )


def _own(target: Target, folder: Path, *, here: bool) -> dict[str, str]:
    own = {DRIVER_PYTHON: sys.executable} if here and target.own_python else {}
    if target.local:
        # Whatever becomes of it, nothing of it stays.
        own |= {PYTHON: sys.executable, "spark.local.dir": str(folder)}
    return own


@cache
def application_file() -> str:
    """Return the path of the application, wherever the package is installed."""
    found = importlib.util.find_spec(JOBS)
    if found is None or found.origin is None:
        raise RunnerRefused("The application for spark-submit is missing from this installation. Reinstall it.")
    return str(Path(found.origin).parent / APPLICATION)


def _split_list(text: str | None) -> list[str]:
    return [part for part in (text or "").split(",") if part]
