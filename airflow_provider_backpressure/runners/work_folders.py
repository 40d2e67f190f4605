"""Folders in which an application's files lie for as long as it runs. Only their owner can look into them."""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_backpressure.exceptions import RunnerRefused
from airflow_provider_backpressure.runners import driver_processes as processes
from airflow_provider_backpressure.runners.spark_master import safe

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
            if stale and not processes.find_processes(path.name):
                shutil.rmtree(path, ignore_errors=True)


def private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read, and return its path."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path
