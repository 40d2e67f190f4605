"""What the benchmark makes of its measurements, and how it counts CPU time."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.accounting import Accounts
from benchmarks.pg_to_pg import COMPARISON
from benchmarks.results import Measurement, Requirement, Summary, requirements, summaries
from benchmarks.turns import rounds

BURN = "import time\nwhile time.process_time() < 0.4: pass"
CHILD = f"{BURN}\nprint(flush=True)\ninput()"
"""Burns, says so, and stays until it hears something."""
WAITING = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])\nprint(flush=True); input()"
DEAF = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdin=-1, stdout=-1)
child.stdout.readline(); print(flush=True)
sys.stdin.readline(); child.stdin.close()
while os.path.exists(f'/proc/{{child.pid}}'): pass
print(flush=True); input()
"""
"""Never hears of the end of the child that burns for it."""


@contextmanager
def program(text: str) -> Iterator[Callable[[], None]]:
    """Give a running program, as the way to go on until its next line."""
    with subprocess.Popen([sys.executable, "-c", text], stdin=-1, stdout=-1, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()

        def go_on() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdout.readline()

        yield go_on
        process.kill()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def turn(side: str, number: int, *, wall: float, cpu: float) -> Measurement:
    """Return a turn over a million rows."""
    parts = {"postgres": cpu / 2, "spark": cpu / 2}
    return Measurement(side=side, round=number, rows=10**6, wall_seconds=wall, cpu_seconds=parts, equal=True)


def medians(turns: list[Measurement]) -> dict[str, Summary]:
    """Return the medians by side."""
    return summaries(turns, COMPARISON.sides)


def promises(turns: list[Measurement]) -> list[Requirement]:
    """Return what has become of the first two promises of the benchmark between tables of PostgreSQL."""
    return requirements(medians(turns), COMPARISON.goals[:2])


@pytest.mark.parametrize("text", [CHILD, WAITING], ids=["living", "ended"])
def test_the_time_of_children_is_counted(text: str) -> None:
    """A process answers for the one it has started, also when that has ended."""
    with Accounts({"all": os.getpid()}) as accounts, program(text):
        pass
    assert 0.4 <= accounts.trees["all"].cpu_seconds < 2
    assert accounts.trees["all"].peak_bytes > 1024**2
    assert accounts.seconds >= 0.4


def test_a_child_of_which_its_parent_does_not_hear_is_not_lost() -> None:
    """Its time was in the books already: when it ends, the sum does not fall."""
    with program(DEAF) as go_on, Accounts({"all": os.getpid()}) as accounts:
        go_on()
    assert 0 <= accounts.trees["all"].cpu_seconds < 2


def test_a_child_of_which_its_parent_does_not_hear_counts_as_last_seen() -> None:
    """It burned and ended while nobody but us looked."""
    with Accounts({"all": os.getpid()}) as accounts, program(DEAF) as go_on:
        until(lambda: accounts.trees["all"].cpu_seconds >= 0.4)
        go_on()
    assert accounts.trees["all"].cpu_seconds >= 0.4


def test_medians_and_promises() -> None:
    """One slow round does not count, and both promises are kept to the letter."""
    turns = [turn("copy", number, wall=wall, cpu=17.0) for number, wall in enumerate((10.0, 90.0, 10.0))]
    turns += [turn("jdbc-tuned", 1, wall=20.0, cpu=40.0), turn("raw", 1, wall=9.0, cpu=10.0)]
    found = medians(turns)
    assert list(found) == ["raw", "jdbc-tuned", "copy"]
    assert (found["copy"].wall, found["copy"].rows_per_second, found["copy"].cpu_per_million) == (10.0, 100_000, 17.0)
    assert [(one.factor, one.held) for one in promises(turns)] == [(2.0, True), (1.7, True)]


@pytest.mark.parametrize(("wall", "cpu", "held"), [(10.1, 17.0, [False, True]), (10.0, 17.1, [True, False])])
def test_a_missed_promise_is_told(wall: float, cpu: float, held: list[bool]) -> None:
    """A little too slow, a little too dear."""
    turns = [turn("copy", 1, wall=wall, cpu=cpu), turn("jdbc-tuned", 1, wall=20.0, cpu=40.0)]
    assert [one.held for one in promises([*turns, turn("raw", 1, wall=9.0, cpu=10.0)])] == held


def test_a_side_that_failed_or_differs_is_not_compared() -> None:
    """A failure leaves no ratio behind, and one unequal round makes the side unequal."""
    copy, raw = turn("copy", 1, wall=10.0, cpu=15.0), turn("raw", 1, wall=9.0, cpu=10.0)
    failed = Measurement(side="jdbc-tuned", round=1, rows=10**6, error="OutOfMemoryError")
    turns = [copy, replace(copy, round=2, equal=False), raw, failed]
    found = medians(turns)
    assert not found["copy"].equal
    assert not found["jdbc-tuned"].equal
    assert [(one.factor, one.held) for one in promises(turns)] == [(None, False), (1.5, True)]


def test_each_round_begins_with_another_side() -> None:
    """No side always runs after the same other one's first turn."""
    assert list(rounds(["a", "b", "c"], 2)) == [(1, "a"), (1, "b"), (1, "c"), (2, "b"), (2, "c"), (2, "a")]


def test_a_section_of_the_page_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each suite writes its own section and leaves the others'."""
    monkeypatch.setattr(page, "PAGE", tmp_path / "docs" / "benchmarks.md")
    for heading, text in (("One", "old\n\n### part\nold"), ("Two", "kept"), ("One", "new")):
        page.write(heading, text)
    written = page.PAGE.read_text()
    assert written == f"{page.INTRODUCTION}\n## One\n\nnew\n\n## Two\n\nkept\n"
