"""Commits of MySQL that are in the binlog before readers see them: as they wait for a replica, or for the disk."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pymysql
import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from tests.support.mysql import run
from tests.support.waiting import beside, until

DELAY = "delay"
"""Every server knows it: a commit is in the file, and is sent, while the server waits for others to join its sync."""
AFTER_SYNC = "AFTER_SYNC"
"""A commit waits for a replica before readers see it."""
AFTER_COMMIT = "AFTER_COMMIT"
"""It waits behind that, when it counts as executed too."""
_DELAY_US = 1_000_000
_LONGEST_MS = 60_000
_NO_SUCH_FILE = 1126
_IS_THERE = 1125


@contextmanager
def waiting_commits(server: Endpoint, how: str) -> Iterator[Callable[[bool], None]]:
    """Let the server's commits wait until the block is left. Give what lets them pass, or wait again.

    Where the server comes without the plugin for semi-synchronous replication, the test is skipped.
    """
    names = ("binlog_group_commit_sync_delay",) if how == DELAY else ("rpl_semi_sync_source_enabled",)
    if how != DELAY:
        _install(server)
        run(
            server,
            f"SET GLOBAL rpl_semi_sync_source_wait_point = {how}",
            "SET GLOBAL rpl_semi_sync_source_wait_no_replica = ON",
            f"SET GLOBAL rpl_semi_sync_source_timeout = {_LONGEST_MS}",
        )

    def let_wait(wait: bool) -> None:
        value = (_DELAY_US if how == DELAY else 1) if wait else 0
        run(server, *(f"SET GLOBAL {name} = {value}" for name in names))

    let_wait(True)
    try:
        yield let_wait
    finally:
        let_wait(False)


@contextmanager
def waiting_now_and_then(server: Endpoint, how: str, seed: int) -> Iterator[None]:
    """Let commits wait for up to a second, and pass for a moment, again and again until the block is left."""
    draw = random.Random(seed)
    with waiting_commits(server, how) as let_wait:

        def change(over: threading.Event) -> None:
            while not over.wait(draw.uniform(0.1, 1.0)):
                let_wait(False)
                over.wait(draw.uniform(0.0, 0.1))
                let_wait(True)

        with beside(change):
            yield


@contextmanager
def waiting(server: Endpoint, statement: str) -> Iterator[None]:
    """Run a statement whose commit waits in the binlog when the block begins. The block has to let it pass."""
    with beside(lambda over: run(server, statement)):
        until(lambda: is_waiting(server))
        yield


def is_waiting(server: Endpoint) -> bool:
    """Whether a commit is on its way that does not count as executed."""
    return bool(run(server, "SELECT @@GLOBAL.gtid_owned")[0][0])


def _install(server: Endpoint) -> None:
    try:
        run(server, "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
    except pymysql.Error as error:
        if error.args[0] == _NO_SUCH_FILE:
            pytest.skip("this MySQL comes without semisync_source.so: BACKPRESSURE_MYSQLD names one that has it")
        if error.args[0] != _IS_THERE:
            raise
