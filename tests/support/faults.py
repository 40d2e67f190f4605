"""The matrix of faults: what may go wrong, what has to happen then, and which tests show it.

A test says by ``@pytest.mark.fault(9)`` which cells it shows. ``make chaos`` runs all of them and prints the matrix.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.matrix import CELLS, Victim
from tests.support import mutants

SHOWS = {
    Victim.LANE: 3,
    Victim.DRIVER: 4,
    Victim.WORKER: 5,
    Victim.EXECUTOR: 5,
    Victim.SINK: 6,
    Victim.LEDGER: 8,
}
"""The cell of each who is killed at every step."""
TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "faults.md"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A cell. ``how``: what has to happen."""

    name: str
    how: str


FAULTS: dict[int, Fault] = {
    number: Fault(name=name, how=how)
    for number, (name, how) in enumerate(
        [
            ("scheduler killed", "the running range ends or is adopted; no second submission of a live one"),
            ("triggerer killed", "a deferred task resumes from the ledger; nothing runs twice"),
            ("worker or task killed", "the retry finds session and tag, reserved before submission, and settles them"),
            ("Spark driver killed", "the range is rolled back, or found committed; it runs again once"),
            ("executor killed", "Spark tries the task again; no double rows"),
            (
                "sink's database killed",
                "what was not committed is lost; a commit without an answer counts by its marker",
            ),
            ("source's database killed", "ranges fail and are tried again; a lost snapshot stops, two are never mixed"),
            ("ledger's database killed", "nothing new is submitted; a running range may end, and is found"),
            ("partition, half-open, slow link", "bounded by time-outs; never two writers"),
            ("disk full", "fails clean, leaves no torn file, continues when there is room"),
            ("clock skewed or set", "nothing is decided by a wall clock"),
            ("duplicate submission", "one commits, the other is refused by the marker's key"),
            ("zombie commits late", "fenced by plan row and marker; earlier attempts' connections are ended"),
            ("schema changes in mid-run", "columns added by the policy; otherwise it stops by name and keeps ranges"),
            ("poison row", "kept aside with key and reason and counted, up to a cap; otherwise named"),
            ("partition added in mid-snapshot", "the plan stays; the next plan has the new partition and reports it"),
            ("retention passes the plan", "fails with the lost interval; never skipped silently"),
            ("compaction, markers, aborted", "complete by position, not by count; only what was committed is read"),
            ("key changed in mid-snapshot", "all ranges in one snapshot, or snapshot and log merged by position"),
            ("skewed, sparse, hot keys", "cut by measured size; a range stays within its bytes"),
            ("slow sink", "memory flat, nothing new submitted, progress honest"),
            ("executor's memory runs out", "the range is halved and continues"),
            ("ledger and sink disagree", "found, stopped, and named; or followed where the sink knows more"),
            ("pause, clear, backfill, delete", "the same result"),
        ],
        start=1,
    )
}


def declared() -> dict[int, set[str]]:
    """Return which test functions say that they show a cell, as ``chaos/test_links.py::test_…``, by its number."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        whole = [number for node in tree.body if _is_pytestmark(node) for number in _numbers(node)]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                own = [number for mark in node.decorator_list for number in _numbers(mark)]
                for number in {*whole, *own}:
                    found[number].add(f"{path.relative_to(TESTS).as_posix()}::{node.name}")
    return found


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(one, ast.Name) and one.id == "pytestmark" for one in node.targets
    )


def _numbers(node: ast.AST) -> Iterator[int]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "fault":
            yield from (argument.value for argument in call.args if isinstance(argument, ast.Constant))


TEXT = """# Faults

What may go wrong, what has to happen then, and how often that was tried. The oracle is the same for all: the target
equals the source as a multiset, each range is once in ledger and target, no credit is left over, and only what was
in flight is read again. `make chaos WRITE_DOCS=1` writes this page; see also
[when something is killed](../concepts/when-something-is-killed.md).

Measured on: {machine}

{cells}

## Killed at each step

With SIGKILL, on real servers: seeds that went well of those that were run; behind the plus, seeds in the simulation.
A dash where a kill makes no difference to the range.

{kills}

## The simulation

{schedules}, none of which loses or doubles anything. With one thing left out it has to notice:

{noticed}

## Mutations

The product with one thing wrong. Each mistake fails a test of `make test`: `python -m tests.support.mutants` makes them
in a copy of the project, one after the other, and runs those tests.

{mutants}

## Tests

{tests}
"""

OUTCOMES = ("passed", "failed", "error", "skipped")


@dataclass(kw_only=True)
class Matrix:
    """What a run of the tests has shown."""

    runs: dict[int, list[tuple[str, str, int]]] = field(default_factory=lambda: defaultdict(list))
    """By cell: test, outcome and how many seeds or schedules it stands for."""
    kills: dict[tuple[str, str], list[bool]] = field(default_factory=lambda: defaultdict(list))
    """By victim and step, on real servers."""
    simulated: dict[str, int] = field(default_factory=dict)
    """Seeds by victim and step in the simulation."""
    noticed: dict[str, int] = field(default_factory=dict)
    """After how many schedules each mutation was noticed."""
    schedules: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, stats: dict[str, list[Any]]) -> "Matrix":
        """Read the reports of a session."""
        made = cls()
        for outcome in OUTCOMES:
            for report in stats.get(outcome, []):
                known = dict(getattr(report, "user_properties", ()))
                if "faults" in known:
                    made._add(report.nodeid, outcome, known)
        return made

    def _add(self, test: str, outcome: str, known: dict[str, Any]) -> None:
        seeds = int(known.get("seeds", known.get("schedules", 1)))
        for number in known["faults"]:
            self.runs[number].append((test, outcome, seeds))
        if "victim" in known and outcome in ("passed", "failed"):
            self.kills[known["victim"], known["step"]].append(outcome == "passed")
        if "cell" in known:
            self.simulated[known["cell"]] = seeds
        if "mutation" in known:
            self.noticed[known["mutation"]] = int(known["after"])
        if "schedules" in known:
            self.schedules, self.seconds = seeds, float(known["seconds"])

    @property
    def complete(self) -> bool:
        """Whether every cell was shown on real services and nothing failed."""
        return all(self.verdict(number) == "shown" for number in FAULTS)

    def real(self, number: int) -> list[tuple[str, str, int]]:
        """Return the runs of a cell on real services."""
        return [run for run in self.runs.get(number, []) if not simulated(run[0])]

    def verdict(self, number: int) -> str:
        """Return what a run says of a cell."""
        every = self.runs.get(number, [])
        if any(outcome in ("failed", "error") for _, outcome, _ in every):
            return "FAILED"
        return "shown" if any(outcome == "passed" for _, outcome, _ in self.real(number)) else "not run"

    def row(self, number: int) -> list[str]:
        """Return a cell's figures: verdict, runs on real services, schedules in the simulation."""
        real = [outcome for _, outcome, _ in self.real(number)]
        counts = [f"{real.count(outcome)} {outcome}" for outcome in OUTCOMES if real.count(outcome)]
        played = sum(
            seeds for test, outcome, seeds in self.runs.get(number, []) if simulated(test) and outcome == "passed"
        )
        return [self.verdict(number), ", ".join(counts) or "-", f"{played:,}" if played else "-"]

    @property
    def simulation(self) -> str:
        """How much was simulated by seed, in one line."""
        rate = self.schedules / self.seconds * 60 if self.seconds else 0
        return f"{self.schedules:,} schedules simulated, {rate:,.0f} a minute of one core"

    def lines(self) -> Iterator[str]:
        """Yield the matrix for a terminal."""
        for number, fault in FAULTS.items():
            verdict, runs, played = self.row(number)
            yield f"{number:3} {fault.name:<34} {verdict:<8} {runs:<34} {played:>8} simulated"
        shown = sum(self.verdict(number) == "shown" for number in FAULTS)
        yield f"{shown} of {len(FAULTS)} cells shown on real services"
        if self.schedules:
            yield self.simulation
        for name, after in self.noticed.items():
            yield f"mutation noticed after {after:>3} schedules: {name}"


def simulated(test: str) -> bool:
    """Whether a test plays the simulation instead of using real services."""
    return "test_simulated" in test or "test_schedules" in test


def page(matrix: Matrix, *, machine: str) -> str:
    """Return the page of the docs."""
    steps = {str(victim): tuple(map(str, at)) for victim, at in CELLS.items()}
    every = list(dict.fromkeys(step for at in steps.values() for step in at))
    kills = [
        [f"`{step}`", *(_kills(matrix, victim, step, step in steps[victim]) for victim in steps)] for step in every
    ]
    tests = declared()
    shown = [
        [str(number), ", ".join(f"`{name}` ({file})" for file, _, name in map(_parted, sorted(tests[number])))]
        for number in FAULTS
    ]
    return TEXT.format(
        machine=machine,
        cells=_table(
            ["#", "Fault", "What has to happen", "Verdict", "Tests on real services", "Schedules simulated"],
            [[str(number), fault.name, fault.how, *matrix.row(number)] for number, fault in FAULTS.items()],
        ),
        kills=_table(["Step", *steps], kills),
        schedules=matrix.simulation,
        noticed=_table(
            ["Left out", "Noticed after schedules"], [[name, str(after)] for name, after in matrix.noticed.items()]
        ),
        mutants=mutants.table(),
        tests=_table(["#", "Shown by"], shown),
    )


def _parted(test: str) -> tuple[str, str, str]:
    return test.partition("::")


def _table(head: list[str], body: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _kills(matrix: Matrix, victim: str, step: str, tried: bool) -> str:
    if not tried:
        return "-"
    results = matrix.kills.get((victim, step))
    real = f"{sum(results)} of {len(results)}" if results else "not run"
    played = matrix.simulated.get(f"{victim} {step}")
    return f"{real} + {played:,}" if played else real


def note(items: list[pytest.Item]) -> None:
    """Let each test's report tell which cells it shows; a case of the kill tests shows its victim's only."""
    for item in items:
        numbers = {number for mark in item.iter_markers("fault") for number in mark.args}
        victim = _victim(item)
        if numbers:
            item.user_properties.append(("faults", [SHOWS[victim]] if victim else sorted(numbers)))


def _victim(item: pytest.Item) -> Victim | None:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    victim = params.get("victim", getattr(params.get("case"), "victim", None))
    return victim if isinstance(victim, Victim) else None
