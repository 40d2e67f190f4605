"""Takes everything down when the process that owns it is gone, however it went."""

import contextlib
import os
import select
import sys

from dev.downloads import REPOSITORY
from dev.servers import process
from dev.servers.process import Process
from dev.servers.records import WATCHER, Records
from dev.servers.server import ServiceError


def ensure(records: Records, owner: Process) -> None:
    """Start the watcher of this home unless there is one; an owner that is gone already is noticed by it at once."""
    watched = f"{owner.pid}-{owner.started}"
    running = records.watchers()
    if watched in running:
        return
    if running:
        other = next(iter(running)).partition("-")[0]
        raise ServiceError(f"The servers of {records.home} belong to process {other}: take another home.")
    facts = ["--owner-pid", str(owner.pid), "--owner-started", str(owner.started)]
    process.spawn(
        [sys.executable, "-m", "dev.services", "watch", "--home", str(records.home), *facts],
        mark=records.mark(WATCHER + watched),
        cwd=REPOSITORY,
        log=records.home / "watcher.log",
        environment=dict(os.environ),
    )


def end(records: Records) -> None:
    """End the watcher: there is nothing left to take down."""
    for one in records.watchers().values():
        one.send(9)
        one.wait(5.0)


def wait_for_end(owner: Process) -> None:
    """Return when the owner is gone."""
    with contextlib.suppress(OSError):  # no such process
        handle = os.pidfd_open(owner.pid)
        if owner.alive:
            select.select([handle], [], [])
        os.close(handle)
    owner.wait()
