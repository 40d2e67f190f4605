"""What the benchmark makes of its measurements, and how it counts CPU time."""

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import accounting, command, killed, memory, page, plots, registry, report, standalone, verify
from benchmarks.__main__ import main as benchmarks_main
from benchmarks.accounting import Accounts, Process
from benchmarks.killing import Outcome, kill
from benchmarks.pg_to_pg import COMPARISON
from benchmarks.plots import Panel, bars
from benchmarks.results import Measurement, Requirement, Summary, ratio, requirements, steady, summaries, total
from benchmarks.suites import SUITES, Suite
from benchmarks.turns import rounds
from tests.support.waiting import until

BURN = "import time\nwhile time.process_time() < 0.4: pass"
CHILD = f"{BURN}\nprint(flush=True)\ninput()"
"""Burns, says so, and stays until it hears something."""
LATER = "print(flush=True); input()"
"""Lets the counting begin first."""
WITH_LIVING = f"""
{LATER}
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdin=-1, stdout=-1)
child.stdout.readline(); print(flush=True); input()
"""
WITH_ENDED = f"""
{LATER}
import subprocess, sys
subprocess.run([sys.executable, '-c', {BURN!r}])
print(flush=True); input()
"""
DEAF = f"""
{LATER}
import os, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdin=-1, stdout=-1)
child.stdout.readline(); print(flush=True)
sys.stdin.readline(); child.stdin.close()
while os.path.exists(f'/proc/{{child.pid}}'): pass
print(flush=True); input()
"""
"""Never hears of the end of the child that burns for it."""
FORKED = """
import os
held = b"." * 2**26
ended, alive = os.pipe()
if all(os.fork() for _ in range(3)):
    print(flush=True); input()
os.close(alive); os.read(ended, 1)
"""
"""Four processes with 64 MiB in common; three of them end with the one that forked them."""


@contextmanager
def program(text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Give a running program that has said its first line."""
    with subprocess.Popen([sys.executable, "-c", text], stdin=-1, stdout=-1, bufsize=0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def go_on(process: subprocess.Popen[bytes]) -> None:
    """Let it go on until its next line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdout.readline()


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


@pytest.mark.parametrize("text", [WITH_LIVING, WITH_ENDED], ids=["living", "ended"])
def test_the_time_of_children_is_counted(text: str) -> None:
    """A process answers for the one it has started, also when that has ended."""
    with program(text) as parent, Accounts({"all": parent.pid}) as accounts:
        go_on(parent)
    # The kernel counts in hundredths, and rounds down each process.
    assert 0.38 <= accounts.trees["all"].cpu_seconds < 2
    assert accounts.trees["all"].peak_bytes > 1024**2
    assert accounts.seconds >= 0.4


def test_a_child_of_which_its_parent_does_not_hear_is_not_lost() -> None:
    """Its time was in the books already: when it ends, the sum does not fall."""
    with program(DEAF) as deaf:
        go_on(deaf)
        with Accounts({"all": deaf.pid}) as accounts:
            go_on(deaf)
    assert 0 <= accounts.trees["all"].cpu_seconds < 2


def test_a_child_of_which_its_parent_does_not_hear_counts_as_last_seen() -> None:
    """It burned and ended while nobody but us looked."""
    with program(DEAF) as deaf, Accounts({"all": deaf.pid}) as accounts:
        go_on(deaf)
        until(lambda: accounts.trees["all"].cpu_seconds >= 0.38)  # the kernel rounds down, as above
        go_on(deaf)
    assert accounts.trees["all"].cpu_seconds >= 0.38


def test_what_the_first_look_counts_twice_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends within the first look is found both alone and in its parent's time."""

    def process(pid: int, ticks: int) -> Process:
        return Process(key=(pid, "0"), parent=1, ticks=ticks, resident_bytes=0)

    parent = {1: Process(key=(1, "0"), parent=0, ticks=100, resident_bytes=0)}
    looks = [parent | {2: process(2, 60)}]
    monkeypatch.setattr(accounting, "processes", lambda: looks.pop() if looks else parent)
    with Accounts({"all": 1}) as accounts:
        pass
    assert accounts.trees["all"].cpu_seconds == 0


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
    assert written == f"{page.introduction()}\n## One\n\nnew\n\n## Two\n\nkept\n"


def test_the_page_says_what_each_suite_is_and_takes() -> None:
    """All that 'make bench' runs, in its order; the words above the sections are the suite's own."""
    told = page.PAGE.read_text().partition("\n## ")[0]
    assert told.strip() == page.introduction().strip()
    assert re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE) == [suite.name for suite in SUITES]


@pytest.mark.statement("R5")
def test_the_reader_s_figures_are_those_that_are_promised() -> None:
    """R5: of the last run in full size, all in one run. Each is below that of another decoder of the same records."""
    section = page.PAGE.read_text().partition(f"## {registry.HEADING}\n")[2].partition("\n## ")[0]
    micros = {way: float(cell) for way, cell in re.findall(r"^\| (.+?) \| (\d+\.\d+) \|", section, re.MULTILINE)}
    assert micros["ours, Avro"] <= 6
    assert micros["ours, Avro"] < micros["fastavro, to dictionaries"]
    assert micros["fastavro, to dictionaries"] < micros["confluent-kafka's AvroDeserializer, to dictionaries"]
    assert micros["ours, nested Protobuf"] < micros["Protobuf's own library, nested, to JSON"]
    # Before there was a registry a record of JSON by its fields took 27.7.
    assert micros["ours, JSON with fields="] <= 27.7


@pytest.mark.parametrize("rows", [200_000, 10_000_000])
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_takes_the_words_it_is_run_with(suite: Suite, rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option that 'make bench' gives is one of the suite's own."""
    module = importlib.import_module(suite.words(rows)[0])
    code = Path(str(module.__file__)).read_text() + Path(str(command.__file__)).read_text()
    for word in suite.words(rows, write_docs=True)[1:]:
        assert not word.startswith("--") or f'"{word}"' in code, word
    assert benchmarks_main(["--list", "--only", suite.name, "--rows", str(rows)]) == 0
    assert shlex.join(suite.words(rows)) in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--only", "nothing"], ["--rows", "0"]])
def test_what_cannot_be_run_is_said_in_a_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit) as ended:
        benchmarks_main(words)
    assert ended.value.code == 2
    assert re.search("there is no suite nothing|has to be at least 1", capsys.readouterr().err)


def test_the_steady_cost_is_that_of_further_rows() -> None:
    """Start and plan cancel out: 2 s of start, 3 s a million rows, against a floor without any start."""
    turns = [
        replace(turn("copy", 1, wall=9.0, cpu=3.0 * millions), rows=millions * 10**6, open_cpu_seconds=2.0)
        for millions in (2, 10)
    ]
    turns += [replace(turn("raw", 1, wall=9.0, cpu=2.0 * millions), rows=millions * 10**6) for millions in (2, 10)]
    found = medians(turns)
    assert found["copy"].rows == 10**7
    assert found["copy"].total == pytest.approx(32.0)
    assert found["copy"].steady == pytest.approx(3e-6)
    assert ratio(found, "raw", "copy", steady) == pytest.approx(2 / 3)
    assert ratio(found, "raw", "copy", total) == pytest.approx(20 / 32)
    told = report.totals(COMPARISON, found)
    assert "| ours, copy path | 3.20 | 312,500 | 0.62 | 3.00 | 0.67 |" in told
    assert {one.sentence: one.held for one in requirements(found, COMPARISON.goals) if one.factor} == {
        COMPARISON.goals[1].sentence: True,
        COMPARISON.goals[2].sentence: True,
        COMPARISON.goals[3].sentence: True,
    }


def test_a_side_of_one_size_has_no_steady_cost() -> None:
    """And nothing is claimed of it."""
    found = medians([turn("copy", 1, wall=1.0, cpu=2.0), turn("raw", 1, wall=1.0, cpu=1.0)])
    assert found["copy"].steady is None
    assert ratio(found, "raw", "copy", steady) is None
    assert report.totals(COMPARISON, found) == ""


def test_the_memory_of_a_side_is_that_of_its_processes_at_one_moment() -> None:
    """The peak of the sum: not less than any part's, not more than the parts' peaks together."""
    with program(CHILD) as client, program(CHILD) as spark:
        roots = {"client": client.pid, "spark": spark.pid, "postgres": os.getpid()}
        with Accounts(roots, own=("client", "spark")) as accounts:
            pass
    peaks = {name: tree.peak_bytes for name, tree in accounts.trees.items()}
    assert max(peaks["client"], peaks["spark"]) < accounts.peak_bytes <= peaks["client"] + peaks["spark"]
    assert peaks["postgres"] == 0, "the memory of servers is not looked at"


def test_memory_that_processes_share_counts_once() -> None:
    """Workers forked from one daemon have its pages in common."""
    with program(FORKED) as family, Accounts({"all": family.pid}) as accounts:
        pass
    assert 64 < accounts.trees["all"].peak_bytes / 2**20 < 128


def test_bars_are_drawn_to_scale() -> None:
    """A picture without a script, which every browser can parse; the longest bar has all the room."""
    panel = Panel(title="rows & more", bars=bars({"ours": 200.0, "<theirs>": 50.0, "none": 0.0}, ["ours"]))
    drawn = ElementTree.fromstring(plots.svg("a < b", [panel, panel]))
    space = "{http://www.w3.org/2000/svg}"
    widths = [(each.get("class"), each.get("width")) for each in drawn.iter(f"{space}rect")][1:4]
    assert [kind for kind, _ in widths] == ["bar ours", "bar", "bar"]
    longest, other, none = (float(width or 0) for _, width in widths)
    assert (other / longest, none) == (pytest.approx(0.25, abs=0.001), 0)
    texts = [each.text for each in drawn.iter(f"{space}text")]
    assert texts[:7] == ["rows & more", "ours", "200", "<theirs>", "50", "none", "0"]
    assert drawn.findtext(f"{space}title") == "a < b"
    assert "prefers-color-scheme: dark" in (drawn.findtext(f"{space}style") or "")


@pytest.mark.parametrize(
    ("read", "doubled", "held"),
    [(1_250, 0, [True, True]), (1_251, 0, [True, False]), (1_250, 1, [False, True])],
)
def test_what_is_promised_of_a_kill_is_judged_to_the_row(read: int, doubled: int, held: list[bool]) -> None:
    """Peers' outcomes are told and not judged; ours are held to the ranges in flight."""
    ours = Outcome(side="copy-static", rows=1_000, read=read, doubled=doubled, equal=not doubled)
    theirs = Outcome(side="jdbc-tuned", rows=1_000, read=5_000, doubled=900)
    assert [good for _, good in killed.verdicts([ours, theirs], 150)] == held
    assert killed.cells(theirs)[2:5] == ("0", "900", "4,000")


def test_a_process_is_killed_with_all_that_came_of_it() -> None:
    """The child too, which waits for a word that never comes."""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], stdin=0)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        family = [each.key for each in accounting.descendants(accounting.processes(), process.pid)]
        assert len(family) == 2
        kill([process.pid])
        assert process.wait(20) == -signal.SIGKILL
    until(lambda: not any(each.key in family for each in accounting.processes().values()))


@pytest.mark.parametrize(
    ("peaks", "held"), [((100, 105, 109), True), ((109, 100, 100), True), ((100, 111, 105), False)]
)
def test_memory_is_judged_by_the_largest_peak_against_the_smallest(peaks: tuple[int, ...], held: bool) -> None:
    """Whichever table has it; a slow sink's are judged on their own."""
    cases = [
        memory.Case(sink="direct", measured=replace(turn("copy", 1, wall=1.0, cpu=1.0), peak_bytes=peak * 2**20))
        for peak in peaks
    ]
    (verdict,) = memory.verdicts([*cases, replace(cases[0], sink="10 times slower")])
    assert verdict[1] is held


@pytest.mark.parametrize(("seconds", "words"), [(4.0, "0.40, held"), (4.2, "0.42, missed")])
def test_verification_is_judged_by_the_copys_cpu(seconds: float, words: str) -> None:
    """For each kind of target by its own copy, and by the median."""
    turns = [
        verify.Turn(kind=kind, side=side, seconds=1.0, cpu_seconds=cpu * factor, reads=1.0)
        for kind in ("upsert", "append")
        for side, cpu in (
            ("copy", 10.0),
            ("reading", 2.0),
            ("target", seconds if kind == "append" else 1.0),
            ("full", 5.0),
        )
        for factor in (1, 1, 100)
    ]
    text = verify.section("command", turns, {})
    assert "with a key: 0.10, held" in text
    assert f"without a key: {words}" in text
    assert "followed" not in text.partition("\n\nCPU")[0]


def test_the_time_between_tasks_is_kept_apart_from_theirs() -> None:
    """All seconds from the trigger on are in one of both, but for tasks that run at once."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    spans = [("plan", -1, 2, 6), ("drain", 0, 9, 20), ("drain", 1, 10, 18), ("verify", -1, 21.5, 25)]
    found = [
        (name, index, *(begun + timedelta(seconds=at) for at in (start, end))) for name, index, start, end in spans
    ]
    made = standalone.measure(begun, found, tables=5, rows=60_000, tokens=4)
    assert made.tasks == {"plan": 4.0, "drain[0]": 11.0, "drain[1]": 8.0, "verify": 3.5}
    assert made.waited == {"plan": 2.0, "drain[0]": 3.0, "drain[1]": 0.0, "verify": 1.5}
    assert made.seconds == 25.0
