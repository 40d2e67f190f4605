"""PostgreSQL to PostgreSQL: raw COPY, Spark JDBC and this product's two paths, in one interleaved run.

``python -m benchmarks.pg_to_pg --rows 5000000 --rounds 3``. Every round gives each side one turn, in another order;
the table shows medians over the rounds.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from airflow_provider_backpressure.core.config import Budget
from benchmarks import machine, page, report
from benchmarks.accounting import Accounts
from benchmarks.results import SPARKLESS, TITLES, Measurement, requirements, summaries
from benchmarks.stage import TABLE, WARM, Stage
from benchmarks.worker import SideFailed, Worker
from dev.services import ServiceError, Services

HEADING = "PostgreSQL to PostgreSQL"
console = Console(width=max(Console().width, report.WIDTH))


def turn(stage: Stage, side: str, number: int, table: str, home: Path) -> Measurement:
    """Let one side copy one table, in a new session on its server, and check the outcome."""
    stage.clear(table)
    spark = None if side in SPARKLESS else stage.spark(side)
    order = stage.order(table, spark)
    nothing = Measurement(side=side, round=number, rows=order.rows)
    worker: Worker | None = None
    try:
        worker = Worker(side, order, home=home)
        began = time.perf_counter()
        worker.ask("open")
        opened = time.perf_counter() - began
        roots = {"postgres": stage.postgres.pid, "client": worker.pid} | ({"spark": spark.pid} if spark else {})
        with Accounts({part: pid for part, pid in roots.items() if pid}) as accounts:
            details = worker.ask("run")
        worker.ask("close")
    except SideFailed as error:
        return replace(nothing, error=str(error))
    finally:
        if worker:
            worker.end()
    return replace(
        nothing,
        open_seconds=opened,
        wall_seconds=accounts.seconds,
        cpu_seconds={part: tree.cpu_seconds for part, tree in accounts.trees.items()},
        peak_bytes=accounts.trees["spark"].peak_bytes if spark else 0,
        equal=stage.equal(table),
        details=details,
    )


def rounds(sides: list[str], count: int) -> Iterator[tuple[int, str]]:
    """Yield rounds and sides; each round begins with another side than the one before."""
    for number in range(count):
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            yield number + 1, side


def measure(stage: Stage, sides: list[str], count: int, home: Path) -> list[Measurement]:
    """Warm every server with a small table, then measure all the rounds."""
    with console.status(f"TPC-H lineitem, {stage.rows:,} rows …"):
        stage.prepare(side for side in sides if side not in SPARKLESS)
    for side in sides if stage.warm_rows else ():
        with console.status(f"warming: {TITLES[side]} …"):
            turn(stage, side, 0, WARM, home)
    found = []
    for number, side in rounds(sides, count):
        with console.status(f"round {number} of {count}: {TITLES[side]} …"):
            found.append(turn(stage, side, number, TABLE, home))
        console.print(report.line(found[-1]))
    return found


def main(words: list[str] | None = None) -> int:
    """Measure, print, write; 0 where every side's target was equal to the source."""
    wanted = _parser().parse_args(words)
    if wanted.warm_rows is None:
        wanted.warm_rows = wanted.rows // 10
    about = machine.describe()
    try:
        measurements, about["PostgreSQL"] = _staged(wanted)
    except ServiceError as error:
        console.print(f"[red]{error}")
        return 1
    found = summaries(measurements)
    console.print(report.table(found))
    for requirement in requirements(found):
        console.print(report.verdict(requirement))
    if wanted.json:
        everything = {
            "command": _command(wanted),
            "machine": about,
            "summary": {side: asdict(one) for side, one in found.items()},
            "requirements": [asdict(one) for one in requirements(found)],
            "measurements": [asdict(one) for one in measurements],
        }
        wanted.json.write_text(json.dumps(everything, indent=1))
    if wanted.write_docs:
        page.write(HEADING, report.section(_command(wanted), about, found, measurements))
    return 0 if all(one.equal for one in found.values()) else 1


def _staged(wanted: argparse.Namespace) -> tuple[list[Measurement], str]:
    """Measure on servers that live as long as this call; return PostgreSQL's version too."""
    with tempfile.TemporaryDirectory(prefix="backpressure-benchmark-") as folder:
        home = Path(folder)
        stage = Stage(
            services=Services(home / "services", owner_pid=os.getpid()),
            rows=wanted.rows,
            warm_rows=wanted.warm_rows,
            heap=wanted.heap,
            credits=wanted.credits,
            range_rows=wanted.range_rows,
        )
        try:
            return measure(stage, wanted.sides, wanted.rounds, home), machine.postgres_version(stage.postgres.url)
        finally:
            stage.services.down(remove=True)


def _parser() -> argparse.ArgumentParser:
    budget = Budget()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pg_to_pg", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-rows", type=int, help="copied by each side first, a tenth of the rows unless given")
    parser.add_argument("--sides", type=_sides, default=list(TITLES), help=f"of {','.join(TITLES)}")
    parser.add_argument("--heap", default="4g", help="of every Spark server; default JDBC keeps the whole table in it")
    parser.add_argument("--credits", type=int, default=budget.credits, help="of our hydration")
    parser.add_argument("--range-rows", type=int, default=budget.range_rows, help="of our hydration")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of {page.PAGE.name}")
    return parser


def _command(wanted: argparse.Namespace) -> str:
    """Return the command that measures the same again, nothing left to defaults."""
    names = ("rows", "rounds", "warm_rows", "heap", "credits", "range_rows")
    options = " ".join(f"--{name.replace('_', '-')} {getattr(wanted, name)}" for name in names)
    return f"python -m benchmarks.pg_to_pg {options} --sides {','.join(wanted.sides)}"


def _sides(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in TITLES]:
        raise argparse.ArgumentTypeError(f"there is no side {', '.join(unknown)}: there are {', '.join(TITLES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
