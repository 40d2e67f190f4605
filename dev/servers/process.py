"""Processes of one server, safe against recycled pids, and found again whatever became of the starter."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "BACKPRESSURE_SERVER"

# Children of this very process stay zombies until they are waited for.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, kw_only=True)
class Process:
    """A pid together with the time the process started (clock ticks after boot): the two are never recycled."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Return the living process of this pid."""
        started = _started(pid)
        return None if started is None else cls(pid=pid, started=started)

    @property
    def alive(self) -> bool:
        """Whether it lives; a zombie does not."""
        if child := _children.get(self.pid):
            child.poll()
        return _started(self.pid) == self.started

    def send(self, number: int) -> None:
        """Send a signal to exactly this process."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.alive:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; whether it has."""
        return until(lambda: not self.alive, timeout=timeout, pause=0.05)


def until(condition: Callable[[], bool], *, timeout: float | None, pause: float = 0.1) -> bool:
    """Wait for a condition, and return whether it came true in time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not condition():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def spawn(
    command: list[str], *, mark: str, cwd: Path, log: Path, environment: dict[str, str], user: str | None = None
) -> Process:
    """Start a process in its own session, marked from its first instruction on, its output in the log."""
    line, account = _as_user(command, user)
    with log.open("ab") as sink:
        child = subprocess.Popen(
            line,
            cwd=cwd,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **account,
        )
    _children[child.pid] = child
    return Process.of(child.pid) or Process(pid=child.pid, started=-1)


def run(
    command: list[str],
    *,
    mark: str,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a helper to its end; it is marked too, so that it is found should the starter die meanwhile."""
    line, account = _as_user(command, user)
    return subprocess.run(
        line,
        cwd=cwd,
        env={**os.environ, **(environment or {}), MARK: mark},
        capture_output=True,
        text=True,
        check=False,
        **account,
    )


def _as_user(command: list[str], user: str | None) -> tuple[list[str], dict[str, Any]]:
    """Return what starts a command as this user: the command line, and arguments for ``subprocess``.

    ``subprocess`` changes the user between fork and exec, where a process with gRPC's threads crashes now and then.
    ``setpriv`` changes it behind exec, and stays the same process.
    """
    if user is None:
        return command, {}
    group = pwd.getpwnam(user).pw_gid
    if setpriv := shutil.which("setpriv"):
        return [setpriv, f"--reuid={user}", f"--regid={group}", "--clear-groups", "--", *command], {}
    return command, {"user": user, "group": group, "extra_groups": []}


def marked() -> Iterator[tuple[str, Process]]:
    """Yield each living process that carries a mark, with the mark; never this one."""
    start = f"{MARK}=".encode()
    for pid in _pids():
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(start) and (process := Process.of(pid)):
                    yield entry.removeprefix(start).decode(errors="replace"), process


def working_in(folder: Path, command: str) -> Iterator[Process]:
    """Yield the living processes of a program that work in a folder: PostgreSQL's children overwrite their marks."""
    for pid in _pids():
        with contextlib.suppress(OSError):
            at_home = os.readlink(f"/proc/{pid}/cwd") == str(folder)
            if at_home and Path(f"/proc/{pid}/comm").read_text().strip() == command and (found := Process.of(pid)):
                yield found


def working_below(folder: Path) -> Iterator[Process]:
    """Yield whatever works in a folder or below it: so those are found who have overwritten their marks."""
    for pid in _pids():
        with contextlib.suppress(OSError):
            below = Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(folder.resolve())
            if below and (found := Process.of(pid)):
                yield found


def kill_all(find: Callable[[], Iterable[Process]]) -> list[Process]:
    """Kill until none is found, also what appears meanwhile; return those that do not end."""

    def ended() -> bool:
        left = [*find()]
        for one in left:
            one.send(signal.SIGKILL)
        return not left

    return [] if until(ended, timeout=10.0, pause=0.05) else [*find()]


def _pids() -> Iterator[int]:
    own = os.getpid()
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != own)


def _started(pid: int) -> int | None:
    """Return field 22 of `stat`; the name in parentheses may hold anything, so it is cut off first."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
