"""What sessions leave behind on a Spark server, which outlives all of them."""

import gc
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql.connect.client import SparkConnectClient

from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server

pytestmark = pytest.mark.integration

SESSIONS = 5


def test_a_session_that_is_over_leaves_nothing_behind(connect: Server) -> None:
    """Every task of Airflow has a session; neither daemons of Python workers nor threads for them add up."""
    probed(connect)
    before = daemons(connect), watchers(connect)
    for _ in range(SESSIONS):
        probed(connect)
    assert (daemons(connect), watchers(connect)) == before
    assert before[1] >= len(before[0]) >= 1


def test_a_session_that_is_over_leaves_nothing_in_its_own_process(connect: Server) -> None:
    """A triggerer lives for months: PySpark keeps the client of each session until the interpreter ends."""
    probed(connect)
    before = clients()
    for _ in range(SESSIONS):
        probed(connect)
    assert clients() == before


def clients() -> int:
    """Return how many clients of Spark Connect this process has."""
    gc.collect()
    return sum(type(each) is SparkConnectClient for each in gc.get_objects())


def probed(connect: Server) -> None:
    """Open a session, run a job of a Python worker, and close the session."""
    with closing(ConnectRunner(connect.url, {})) as runner:
        assert runner.probe(["pyarrow"]).modules["pyarrow"]


def daemons(connect: Server) -> set[int]:
    """Return who forks Python workers: the Python processes whose parents are none."""
    tree = {each.pid: each for each in family(connect)}
    pythons = {pid for pid, each in tree.items() if is_daemon(each)}
    return {pid for pid in pythons if tree[pid].ppid() not in pythons}


def watchers(connect: Server) -> int:
    """Return how many threads of Spark's look after idle workers: one for each daemon, for ever."""
    names = (name for each in family(connect) for name in threads(each.pid))
    return sum(name.startswith("Idle Worker Mon") for name in names)


def family(connect: Server) -> list[psutil.Process]:
    """Return the server and all that came of it."""
    server = psutil.Process(connect.pid)
    return [server, *server.children(recursive=True)]


def is_daemon(process: psutil.Process) -> bool:
    """Whether it is a daemon or a worker, which have one command line."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return "pyspark.daemon" in process.cmdline()
    return False


def threads(pid: int) -> Iterator[str]:
    """Return the names of a process's threads, as the kernel cuts them."""
    for file in Path(f"/proc/{pid}/task").glob("*/comm"):
        with suppress(OSError):
            yield file.read_text().strip()
