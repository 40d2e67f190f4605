"""What is left after kill -9 at half time, and after the same command is given again.

``python -m benchmarks.killed --rows 2000000`` lets each side copy a table into one without a key. When the target's
database has grown by half of what the whole table takes, every process of the side is killed: its client or tool with
all that it has started, and its Spark server with the Python workers. Then the side is run again in the same way, and
the target is compared with the source, and the rows that PostgreSQL has read of the source with those that it has.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from airflow_provider_backpressure.core.config import Budget
from benchmarks import machine, page, report
from benchmarks.killing import Killing, Outcome
from benchmarks.pg_to_pg import PgToPg
from dev.services import Services

HEADING = "Killed at half time"
SIDES = {
    "copy-static": "ours, `static`",
    "copy": "ours, `snapshot`",
    "raw": "raw COPY | COPY",
    "jdbc-tuned": "Spark JDBC, append",
    "jdbc-overwrite": "Spark JDBC, overwrite",
    "pgcopydb": "pgcopydb",
    "dlt": "dlt",
    "ingestr": "ingestr",
    "sling": "Sling",
}
OURS = ("copy-static", "copy")
RESUMING = OURS[:1]
"""The one that continues where it was. A snapshot ends with the process that keeps it, so the other starts again."""
SLACK = 100
"""Rows that the planner reads to find where ranges begin, which are no part of any."""
RANGES = 20
"""Ranges that the table is cut into, unless asked for otherwise."""
HEAD = ("side", "left by the kill", "lost", "doubled", "read again", "second run s")
ABOUT = """
All figures are rows. `left by the kill` is what others found in the target before the second run, which is the same
command again: for ours the task's retry. `lost` and `doubled` are of the target in the end. `read again` is what
PostgreSQL read of the source's table in both runs beyond one of each (`pg_stat_user_tables`). A side is killed when the
target's database has grown by half of what the whole table takes, what was not yet committed included.

- **ours, `static`**, where the user says that the table stands still, continues with the ranges that are left. Those
  have {range_rows:,} rows, and at most {credits} are in flight, which are {bound:,} rows. A row or two more are the
  planner's, who looks for where ranges begin.
- **ours, `snapshot`** is the default, of a table that may change meanwhile: the snapshot ends with the process that has
  kept it, rows of two snapshots are never mixed, so the target is emptied and all is read again.
- **Spark JDBC, append** is the tuned one of the comparison above; **overwrite** the same with `mode("overwrite")` and
  `truncate`. pgcopydb is run again with `--resume --not-consistent`. The others are run as in that comparison, and find
  their own folder again.
"""
console = Console(width=max(Console().width, report.WIDTH))


def verdicts(outcomes: Sequence[Outcome], bound: int) -> list[tuple[str, bool]]:
    """Return what we promise of our sides, and whether it held."""
    found = {one.side: one for one in outcomes}
    mine = [found[side] for side in OURS if side in found]
    going_on = [found[side] for side in RESUMING if side in found]
    kept = all(one.error is None and one.equal for one in mine)
    most = max((one.again for one in going_on), default=0)
    told = []
    if mine:
        told.append(("ours: nothing is lost and nothing is doubled", kept))
    if going_on:
        sentence = f"ours, `static`: at most the ranges in flight ({bound:,} rows) are read again: {most:,}"
        told.append((sentence, most <= bound + SLACK and all(one.error is None for one in going_on)))
    return told


def cells(one: Outcome) -> tuple[str, ...]:
    """Return a side's row of the table."""
    if one.error:
        return (SIDES[one.side], f"failed: {one.error}", *[""] * (len(HEAD) - 2))
    figures = (one.left, one.lost, one.doubled, one.again)
    return (SIDES[one.side], *(f"{figure:,}" for figure in figures), f"{one.seconds:.1f}")


def section(command: str, outcomes: Sequence[Outcome], wanted: argparse.Namespace, about: dict[str, str]) -> str:
    """Return the outcomes as Markdown."""
    bound = wanted.credits * wanted.range_rows
    told = ABOUT.format(range_rows=wanted.range_rows, credits=wanted.credits, bound=bound)
    return "\n\n".join(
        [
            f"{wanted.rows:,} rows of TPC-H's `lineitem` go into a table without a key. At half time every process of "
            f"the side gets kill -9, and then it is run again:\n\n```sh\n{command}\n```",
            report.markdown(HEAD, [cells(one) for one in outcomes]),
            "\n".join(f"- {sentence}: {'held' if held else 'MISSED'}" for sentence, held in verdicts(outcomes, bound)),
            told.strip(),
            report.machine(about),
        ]
    )


def measure(wanted: argparse.Namespace) -> list[Outcome]:
    """Kill one side after the other on servers of their own."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="backpressure-benchmark-") as folder:
        services = Services(Path(folder) / "services", owner_pid=os.getpid())
        stage = PgToPg(
            services=services,
            rows=wanted.rows,
            warm_rows=0,
            heap=wanted.heap,
            credits=wanted.credits,
            range_rows=wanted.range_rows,
        )
        try:
            with console.status(f"{wanted.rows:,} rows …"):
                stage.prepare([])
            for side in wanted.sides:
                with console.status(f"{SIDES[side]} …"):
                    outcomes.append(Killing(stage=stage, home=Path(folder)).outcome(side))
                console.print("  ".join(cells(outcomes[-1])), markup=False)
        finally:
            services.down(remove=True)
    return outcomes


def main(words: list[str] | None = None) -> int:
    """Measure and print; 0 where the promises of our sides held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.killed", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(SIDES), help=f"of {','.join(SIDES)}")
    parser.add_argument("--heap", default="2g", help="of every Spark server")
    parser.add_argument("--credits", type=int, default=Budget().credits, help="of our hydration")
    parser.add_argument("--range-rows", type=int, help=f"of our hydration: the rows by {RANGES} unless given")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args(words)
    if unknown := [side for side in wanted.sides if side not in SIDES]:
        parser.error(f"there is no side {', '.join(unknown)}: there are {', '.join(SIDES)}")
    wanted.range_rows = wanted.range_rows or max(wanted.rows // RANGES, 1)
    about = machine.describe()
    outcomes = measure(wanted)
    command = (
        f"python -m benchmarks.killed --rows {wanted.rows} --heap {wanted.heap} --credits {wanted.credits}"
        f" --range-rows {wanted.range_rows} --sides {','.join(wanted.sides)}"
    )
    console.print(report.markdown(HEAD, [cells(one) for one in outcomes]), markup=False)
    judged = verdicts(outcomes, wanted.credits * wanted.range_rows)
    for sentence, held in judged:
        console.print(f"{sentence}: {'held' if held else 'MISSED'}", markup=False)
    if wanted.json:
        found = [{**asdict(one), "again": one.again} for one in outcomes]
        wanted.json.write_text(json.dumps({"command": command, "machine": about, "outcomes": found}, indent=1))
    if wanted.write_docs:
        page.write(HEADING, section(command, outcomes, wanted, about))
    return 0 if all(held for _, held in judged) else 1


if __name__ == "__main__":
    raise SystemExit(main())
