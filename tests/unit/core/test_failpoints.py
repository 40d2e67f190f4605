"""Failpoints: free and out of reach where a process was not started with them, exact where it was."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import timeit
from pathlib import Path

import pytest

from airflow_provider_backpressure.connectors.postgres.tasks import copy
from airflow_provider_backpressure.connectors.postgres.tasks import slice_commit as postgres
from airflow_provider_backpressure.connectors.postgres.tasks import write as frame
from airflow_provider_backpressure.core import failpoints
from airflow_provider_backpressure.core.execution import lane_runner as hydrator
from airflow_provider_backpressure.core.failpoints import VARIABLE, Action, Folder, Point, Step, parse
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed
from tests.support.waiting import until

TAG = "bp:plan:0.0:1"


def child(program: str, **environment: str) -> "subprocess.Popen[str]":
    """Start a program with a line of its own for each thing it says."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def said(program: str, **environment: str) -> str:
    """Return what a program prints until its end."""
    with child(program, **environment) as process:
        output, _ = process.communicate(timeout=60)
    return output.strip()


def test_they_are_off_and_cost_nothing_but_a_call() -> None:
    """Everywhere the same function, which looks nothing up: no name, no attribute, no environment."""
    for module in (hydrator, copy, frame, postgres):
        assert module.reach is failpoints._off
    code = failpoints._off.__code__
    assert (code.co_names, code.co_freevars, code.co_nlocals) == ((), (), 2)
    assert not failpoints.ON


def test_off_they_are_not_seen_in_a_copy() -> None:
    """One is passed for each block of 32 KiB, which takes 330 µs at 100 MB/s: less than 1 µs of them (0.1 as seen)."""
    rounds = 20_000
    each = min(timeit.repeat(lambda: failpoints.reach(Step.IN_COPY, TAG), number=rounds, repeat=7)) / rounds
    assert each < 1e-6, f"{each * 1e9:.0f} ns"


def test_no_code_can_turn_them_on(tmp_path: Path) -> None:
    """A DAG that sets the variable, even before the first import, changes nothing: only the program's start counts."""
    look = "from airflow_provider_backpressure.core import failpoints; print(failpoints.ON)"
    assert said(look) == "False"
    assert said(f"import os; os.environ[{VARIABLE!r}] = {str(tmp_path)!r}; {look}") == "False"
    assert said(look, **{VARIABLE: str(tmp_path)}) == "True"


def test_what_a_process_was_started_with_is_read_whole() -> None:
    """Among other variables, and not where another one's name ends alike."""
    name = VARIABLE.encode()
    assert failpoints.get_folder_at_start(b"A=1\0" + name + b"=/a b\0C=2") == Folder(path=Path("/a b"))
    assert failpoints.get_folder_at_start(b"A=1\0X" + name + b"=/a") is None
    assert failpoints.get_folder_at_start(b"") is None


def test_points_are_read_as_they_are_written() -> None:
    """The first pass is meant where none is said; nothing means nothing."""
    kill = Point(step=Step.BEFORE_SUBMIT, action=Action.KILL, number=3)
    freeze = Point(step=Step.IN_COPY, action=Action.FREEZE)
    assert parse("before_submit=kill@3, in_copy=freeze") == {kill.step: kill, freeze.step: freeze}
    assert parse(f"{kill},{freeze}") == parse("before_submit=kill@3,in_copy=freeze")
    assert parse("\n") == {}
    for wrong in ("somewhere=kill", "in_copy=explode", "in_copy=kill@x", "in_copy"):
        with pytest.raises(InvalidDeclaration, match="step=action@pass"):
            parse(wrong)


def test_passes_are_counted_for_each_plan_over_all_processes(tmp_path: Path) -> None:
    """Of 200 passes by four threads exactly one is the 150th; another plan's do not count."""
    folder = Folder(path=tmp_path)
    (tmp_path / "points").write_text("in_copy=raise@150")
    raised: list[RangeFailed] = []

    def walk() -> None:
        for _ in range(50):
            folder.reach(Step.BEFORE_SUBMIT, TAG)
            for tag in (TAG, "bp:other:0.0:1"):
                try:
                    folder.reach(Step.IN_COPY, tag)
                except RangeFailed as error:
                    raised.append(error)

    threads = [threading.Thread(target=walk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(raised) == 2, "one of each plan"
    lines = (tmp_path / "journal").read_text().splitlines()
    assert len(lines) == 600
    assert sum(line.startswith(f"in_copy {TAG} {os.getpid()} ") for line in lines) == 200


WALK = """
from airflow_provider_backpressure.core.failpoints import Step, reach
for number in range(3):
    reach(Step.IN_COPY, "bp:plan:0.0:1")
    print(number, flush=True)
"""


def test_a_kill_and_a_freeze_happen_to_the_process_itself(tmp_path: Path) -> None:
    """At the second pass, by the kernel: no handler is run, and a frozen process goes on when it is thawed."""
    (tmp_path / "points").write_text("in_copy=kill@2")
    with child(WALK, **{VARIABLE: str(tmp_path)}) as process:
        output, _ = process.communicate(timeout=60)
    assert (output.split(), process.returncode) == (["0"], -signal.SIGKILL)
    (tmp_path / "journal").unlink()
    (tmp_path / "points").write_text("in_copy=freeze@2")
    with child(WALK, **{VARIABLE: str(tmp_path)}) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 60)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=60)
    assert (output.split(), process.returncode) == (["0", "1", "2"], 0)


def test_a_wait_ends_when_it_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file says something else; and after a while in any case, so that nothing stands for ever."""
    folder, points = Folder(path=tmp_path), tmp_path / "points"
    points.write_text("in_copy=wait")
    waiting = threading.Thread(target=folder.reach, args=(Step.IN_COPY, TAG))
    waiting.start()
    until((tmp_path / "journal").exists)
    waiting.join(0.1)
    assert waiting.is_alive()
    points.write_text("")
    waiting.join(60)
    assert not waiting.is_alive()
    monkeypatch.setattr(failpoints, "WAIT_SECONDS", 0.05)
    points.write_text("in_copy=wait@2")
    with pytest.raises(RangeFailed, match="Nobody took the failpoint in_copy=wait@2 back"):
        folder.reach(Step.IN_COPY, TAG)
