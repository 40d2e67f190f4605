"""Processes of an application on this host: spark-submit's own and the driver's, known by their command lines.

Both name the application's file and its request, whose folder is called after the attempt. No number of a process is
kept anywhere, so none can have been given to another program meanwhile; signals go through a handle that stays with the
process which was looked at.
"""

import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

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
