"""Spark's peak memory against the size of the table, through one and the same heap.

``python -m benchmarks.memory`` hydrates tables of 1,000,000 and 10,000,000 rows by the copy path, each with a new Spark
Connect server, and prints the peak resident memory of its processes. The bound: within 10 % of each other.
``--source mysql`` does so from MySQL, ``--source postgres-frame`` by the frame path.
"""

import argparse
import os
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import page
from benchmarks.mysql_to_pg import MysqlToPg
from benchmarks.pg_to_pg import PgToPg
from benchmarks.results import Measurement
from benchmarks.stage import Stage
from benchmarks.turns import turn
from dev.services import Services

HEADING = "Memory"
BOUND = 0.10
MEBIBYTE = 1024 * 1024
SOURCES: dict[str, tuple[type[Stage], str, str]] = {
    "postgres": (PgToPg, "copy", "by the copy path"),
    "postgres-frame": (PgToPg, "frame", "by the frame path"),
    "mysql": (MysqlToPg, "mysql", "from MySQL"),
}
"""Where rows come from: the stage, our side on it, and how a sentence says so."""
console = Console()


def measure(source: str, rows: int, *, heap: str, range_rows: int) -> Measurement:
    """Hydrate a table of so many rows on servers of its own."""
    made, side, _ = SOURCES[source]
    with tempfile.TemporaryDirectory(prefix="backpressure-benchmark-") as folder:
        services = Services(Path(folder) / "services", owner_pid=os.getpid())
        stage = made(services=services, rows=rows, warm_rows=0, heap=heap, credits=2, range_rows=range_rows)
        try:
            stage.prepare([side])
            return turn(stage, side, 1, stage.table, Path(folder))
        finally:
            services.down(remove=True)


def section(source: str, command: str, heap: str, found: list[Measurement]) -> str:
    """Return the figures as Markdown."""
    how = SOURCES[source][2]
    lines = [f"| {one.rows:,} | {one.peak_bytes / MEBIBYTE:,.0f} | {one.wall_seconds:.1f} |" for one in found]
    return "\n".join(
        [
            f"Peak resident memory of Spark's processes (heap {heap}) while `lineitem` is hydrated {how}:",
            f"\n```sh\n{command}\n```\n",
            "| rows | peak MiB | wall s |",
            "|---|---|---|",
            *lines,
            f"\nThe largest is {spread(found):+.1%} of the smallest table's.",
        ]
    )


def heading(source: str) -> str:
    """Return the heading of a source's section: the copy path's has no other word."""
    return HEADING if source == "postgres" else f"{HEADING}, {SOURCES[source][2]}"


def spread(found: list[Measurement]) -> float:
    """Return by which share the last peak differs from the first."""
    return found[-1].peak_bytes / found[0].peak_bytes - 1


def main() -> int:
    """Measure and print; 0 where the bound holds and every target is equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--source", choices=SOURCES, default="postgres")
    parser.add_argument("--heap", default="512m")
    parser.add_argument("--range-rows", type=int, default=250_000)
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    found = []
    for rows in wanted.rows:
        with console.status(f"{rows:,} rows …"):
            found.append(measure(wanted.source, rows, heap=wanted.heap, range_rows=wanted.range_rows))
        one = found[-1]
        outcome = "equal" if one.equal else f"NOT EQUAL {one.error or ''}"
        console.print(
            f"{rows:>12,} rows  peak {one.peak_bytes / MEBIBYTE:,.0f} MiB  {one.wall_seconds:.1f} s  {outcome}"
        )
    held = abs(spread(found)) <= BOUND
    console.print(f"difference of the peaks: {spread(found):+.1%}, at most {BOUND:.0%}: {'held' if held else 'MISSED'}")
    if wanted.write_docs:
        command = f"python -m benchmarks.memory --source {wanted.source} --rows {' '.join(map(str, wanted.rows))}"
        command += f" --heap {wanted.heap} --range-rows {wanted.range_rows}"
        page.write(heading(wanted.source), section(wanted.source, command, wanted.heap, found))
    return 0 if held and all(one.equal for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
