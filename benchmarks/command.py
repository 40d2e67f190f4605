"""The command of a benchmark: measure, print, write."""

import argparse
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from airflow_provider_backpressure.core.config import Budget
from benchmarks import machine, page, plots, report
from benchmarks.comparison import Comparison
from benchmarks.results import Measurement, requirements, summaries
from benchmarks.stage import Stage
from benchmarks.turns import rounds, turn
from dev.services import ServiceError, Services

FULL_ROWS = 2_000_000
"""Rows from which on goals count."""
MISSED = 2
console = Console(width=max(Console().width, report.WIDTH))


def main(comparison: Comparison, words: list[str] | None = None) -> int:
    """Do it; 1 where a side's target differs from the source, :data:`MISSED` where a goal was missed, 0 if neither."""
    wanted = _parser(comparison).parse_args(words)
    if wanted.warm_rows is None:
        wanted.warm_rows = wanted.rows // 10
    if wanted.small_rows is None:
        wanted.small_rows = wanted.rows // 5 if comparison.steady else 0
    if not 0 <= wanted.small_rows < wanted.rows:
        raise SystemExit(f"--small-rows is {wanted.small_rows} and has to be less than --rows, which is {wanted.rows}.")
    if wanted.range_rows is None:
        # So many that the smaller source keeps all credits busy too: otherwise the start of a worker would look steady.
        least = (wanted.small_rows or wanted.rows) // wanted.credits
        wanted.range_rows = max(min(Budget().range_rows, least), 1)
    about = machine.describe(comparison.jars, comparison.packages)
    try:
        measurements, about["PostgreSQL"] = _staged(comparison, wanted)
    except ServiceError as error:
        console.print(f"[red]{error}")
        return 1
    found = summaries(measurements, comparison.sides)
    console.print(report.table(comparison, found))
    outcome = requirements(found, comparison.goals)
    if text := report.totals(comparison, found):
        console.print(text, markup=False)
    for requirement in outcome:
        console.print(report.verdict(requirement))
    command = _command(comparison, wanted)
    if wanted.json:
        everything = {
            "command": command,
            "machine": about,
            "summary": {side: asdict(one) for side, one in found.items()},
            "requirements": [asdict(one) for one in outcome],
            "measurements": [asdict(one) for one in measurements],
        }
        wanted.json.write_text(json.dumps(everything, indent=1))
    if wanted.write_docs:
        picture = plots.write(comparison.module, comparison.heading, report.panels(comparison, found))
        page.write(comparison.heading, report.section(comparison, command, about, measurements, picture))
    if not all(one.equal for one in found.values()):
        return 1
    return MISSED if wanted.rows >= FULL_ROWS and any(one.factor and not one.held for one in outcome) else 0


def _staged(comparison: Comparison, wanted: argparse.Namespace) -> tuple[list[Measurement], str]:
    """Measure on servers that live as long as this call; return PostgreSQL's version too."""
    with tempfile.TemporaryDirectory(prefix="backpressure-benchmark-") as folder:
        home = Path(folder)
        stage = comparison.stage(
            services=Services(home / "services", owner_pid=os.getpid()),
            rows=wanted.rows,
            warm_rows=wanted.warm_rows,
            small_rows=wanted.small_rows,
            heap=wanted.heap,
            credits=wanted.credits,
            range_rows=wanted.range_rows,
            ours=comparison.ours,
        )
        try:
            measured = _measure(comparison, stage, wanted, home)
            return measured, machine.postgres_version(stage.servers["postgres"].url)
        finally:
            stage.services.down(remove=True)


def _measure(comparison: Comparison, stage: Stage, wanted: argparse.Namespace, home: Path) -> list[Measurement]:
    """Warm every server with a small table, then measure all the rounds."""
    titles = comparison.sides
    with console.status(f"{stage.rows:,} {comparison.moved.partition(' go')[0]} …"):
        stage.prepare(wanted.sides)
    # A side without a server of its own has nothing that stays warm.
    for side in [side for side in wanted.sides if stage.warm_rows and side not in stage.sparkless]:
        with console.status(f"warming: {titles[side]} …"):
            turn(stage, side, 0, stage.warm, home)
    found = []
    for number, side in rounds(wanted.sides, wanted.rounds):
        # The two sizes follow each other, so that what drifts in between does not look like the cost of rows.
        for table in (stage.small, stage.table) if stage.small_rows and side in comparison.steady else (stage.table,):
            with console.status(f"round {number} of {wanted.rounds}: {titles[side]} …"):
                found.append(turn(stage, side, number, table, home))
            console.print(report.line(comparison, found[-1]))
    return found


def _parser(comparison: Comparison) -> argparse.ArgumentParser:
    budget, titles = Budget(), comparison.sides
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{comparison.module}",
        description=f"{comparison.heading}: all sides in turn in one run; the table shows medians over the rounds.",
    )

    def sides(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in titles]:
            raise argparse.ArgumentTypeError(f"there is no side {', '.join(unknown)}: there are {', '.join(titles)}")
        return names

    parser.add_argument("--rows", type=int, default=comparison.rows)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-rows", type=int, help="copied by each side first, a tenth of the rows unless given")
    parser.add_argument(
        "--small-rows",
        type=int,
        help="of the second size, for steady costs; a fifth of the rows unless given, 0 for none",
    )
    parser.add_argument("--sides", type=sides, default=list(titles), help=f"of {','.join(titles)}")
    parser.add_argument("--heap", default="4g", help="of every Spark server; default JDBC keeps the whole table in it")
    parser.add_argument("--credits", type=int, default=budget.credits, help="of our hydration")
    parser.add_argument(
        "--range-rows", type=int, help="of our hydration; so that each size keeps all credits busy unless given"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument(
        "--write-docs", action="store_true", help=f"write the section {comparison.heading!r} of {page.PAGE.name}"
    )
    return parser


def _command(comparison: Comparison, wanted: argparse.Namespace) -> str:
    """Return the command that measures the same again, nothing left to defaults."""
    names = ("rows", "rounds", "warm_rows", "small_rows", "heap", "credits", "range_rows")
    options = " ".join(f"--{name.replace('_', '-')} {getattr(wanted, name)}" for name in names)
    return f"python -m benchmarks.{comparison.module} {options} --sides {','.join(wanted.sides)}"
