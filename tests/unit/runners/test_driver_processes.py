"""Applications' processes and folders on this host, with real processes that only look like applications."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_backpressure.runners import driver_process_and_files as processes
from airflow_provider_backpressure.runners.driver_process_and_files import STALE_SECONDS, Folders, private
from airflow_provider_backpressure.runners.executor_memory import safe

TAG = "bp:0123456789abcdef0123456789abcdef:7.0:1"
SLEEP = "import signal, sys, time\n{}\nprint('ready', flush=True)\ntime.sleep(60)\n"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that sleep under a command line; none of them outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def one(*arguments: str, file: str = "range_job.py", before: str = "") -> "subprocess.Popen[bytes]":
        script = tmp_path / file
        script.write_text(SLEEP.format(before))
        command = [sys.executable, str(script), *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == b"ready\n"
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_exactly_the_attempts_processes_are_ended(start: Start, tmp_path: Path) -> None:
    """Not another attempt's, not an editor that has the same file open; one that ignores the signal is ended too."""
    own = f"{tmp_path}/{safe(TAG)}/request.json"
    mine = start(own, f"{tmp_path}/{safe(TAG)}/logins.json")
    stubborn = start(own, before="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    others = [start(f"{tmp_path}/{safe(TAG)}1/request.json"), start(own, file="editor.py")]
    assert sorted(processes.find_processes(safe(TAG))) == sorted([mine.pid, stubborn.pid])
    assert processes.end(safe(TAG)) == 2
    assert (mine.wait(5), stubborn.wait(5)) == (-15, -9)
    assert [other.poll() for other in others] == [None, None]
    assert processes.end(safe(TAG)) == 0


def test_what_a_crash_left_is_removed_unless_it_runs(start: Start, tmp_path: Path) -> None:
    """By age and by the processes, whatever the folder is called."""
    folders = Folders(tmp_path / "root")
    root = folders.root()
    for name in ("old", "running", "new"):
        (root / name).mkdir()
        private(root / name / "logins.json", "secret")
    (root / "probed-1.json").touch()
    start(f"{root}/running/request.json")
    then = time.time() - STALE_SECONDS - 1
    for path in (root / "old", root / "running", root / "probed-1.json"):
        os.utime(path, (then, then))
    folders.sweep()
    assert sorted(path.name for path in root.iterdir()) == ["new", "probed-1.json", "running"]


def test_a_folder_is_gone_whatever_happens_in_it(tmp_path: Path) -> None:
    """Also what an earlier life of the same attempt left."""
    folders = Folders(tmp_path / "root")
    folders.root()
    (folders.path(TAG)).mkdir()
    (folders.path(TAG) / "request.json").touch()

    def failing() -> None:
        with folders.open_folder(TAG) as folder:
            assert list(folder.iterdir()) == []
            assert folder.stat().st_mode & 0o777 == 0o700
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert not folders.path(TAG).exists()
