"""Peak memory of our processes against the size of the table, and against the speed of the sink.

``python -m benchmarks.memory`` hydrates tables of 2, 10 and 30 million rows by the copy path, each with servers of its
own and through the same heap, and prints the most resident memory of Spark's JVM, its Python workers and the lane
together. ``--slower 10`` then hydrates the smallest once more through a proxy that passes a tenth of what it did at
full speed. The bound for each: within 10 %. ``--source mysql`` does so from MySQL, ``--source postgres-frame`` by the
frame path, either with ``-wide`` for rows of 370 bytes. ``--one-slice`` reads each table by a single statement, in one
range.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from benchmarks import machine, page, plots, report
from benchmarks.mysql_to_pg import MysqlToPg
from benchmarks.pg_to_pg import PgToPg
from benchmarks.plots import Panel, bars
from benchmarks.report import MEBIBYTE
from benchmarks.results import Measurement
from benchmarks.stage import Stage, login
from benchmarks.turns import turn
from benchmarks.wide import WideMysqlToPg, WidePgToPg
from dev.proxy import Proxy
from dev.services import Services

HEADING = "Memory"
BOUND = 0.10
WARM_ROWS = 100_000
"""Copied first, so that the code is loaded; a table's own memory is that of all of its rows."""
SOURCES: dict[str, tuple[type[Stage], str, str]] = {
    "postgres": (PgToPg, "copy", "by the copy path"),
    "postgres-frame": (PgToPg, "frame", "by the frame path"),
    "postgres-frame-wide": (WidePgToPg, "frame", "by the frame path, rows of 370 bytes"),
    "mysql": (MysqlToPg, "mysql", "from MySQL"),
    "mysql-wide": (WideMysqlToPg, "mysql", "from MySQL, rows of 370 bytes"),
}
"""Where rows come from: the stage, our side on it, and how a sentence says so."""
HEAD = ("rows", "ranges", "sink", "wall s", "rows/s", "CPU s/M", "rows per CPU s", "peak MiB")
ABOUT = """\
`peak` is the most resident memory of Spark's JVM, its Python workers and the lane together; the JVM's heap is {heap}
for all, and resident from the start (it would else fill with what is over, the more the longer a run takes). CPU is
that of all processes, the servers' and the session's start included. A slow sink is a proxy before the target's server,
which passes so many times fewer bytes a second than at full speed."""
console = Console(width=max(Console().width, report.WIDTH))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One hydration. ``sink``: how fast its target was, in words."""

    sink: str
    measured: Measurement

    @property
    def name(self) -> str:
        """What a bar of it is called."""
        return f"{self.measured.rows:,} rows" + ("" if self.sink == "direct" else f", {self.sink}")

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes, the session's start included."""
        return sum(self.measured.cpu_seconds.values()) + self.measured.open_cpu_seconds

    @property
    def speed(self) -> float:
        """Rows per CPU second."""
        return self.measured.rows / self.cpu if self.cpu else 0.0

    @property
    def peak(self) -> float:
        """In MiB."""
        return self.measured.peak_bytes / MEBIBYTE


@contextmanager
def staged(source: str, rows: int, wanted: argparse.Namespace) -> Iterator[tuple[Stage, str, Path]]:
    """Give filled servers of their own, the side, and a folder."""
    made, side, _ = SOURCES[source]
    with tempfile.TemporaryDirectory(prefix="backpressure-benchmark-") as folder:
        services = Services(Path(folder) / "services", owner_pid=os.getpid())
        stage = made(
            services=services,
            rows=rows,
            warm_rows=min(WARM_ROWS, rows),
            heap=wanted.heap,
            heap_from_start=True,
            credits=wanted.credits,
            range_rows=wanted.range_rows,
        )
        try:
            stage.prepare([])
            yield stage, side, Path(folder)
        finally:
            services.down(remove=True)


def hydrated(stage: Stage, side: str, home: Path, proxy: Proxy | None = None, pace: float | None = None) -> Measurement:
    """Hydrate the table through a Spark server that has only been warmed. ``pace``: bytes per second to the target."""
    try:
        turn(stage, side, 0, stage.warm, home)
        if proxy:
            proxy.bytes_per_second = pace
        return turn(stage, side, 1, stage.table, home)
    finally:
        if proxy:
            proxy.bytes_per_second = None
        stage.services.down(f"connect:{side}")


def measure(source: str, rows: int, wanted: argparse.Namespace) -> Case:
    """Hydrate a table of so many rows."""
    with staged(source, rows, wanted) as (stage, side, home):
        return Case(sink="direct", measured=hydrated(stage, side, home))


def slowed(source: str, rows: int, wanted: argparse.Namespace) -> Iterator[Case]:
    """Hydrate a table through a proxy as fast as it goes, and then so many times slower."""
    with staged(source, rows, wanted) as (stage, side, home):
        server = stage.servers["postgres"]
        with closing(Proxy(server.host, server.port)) as proxy:
            stage.sink_at = replace(login(server), port=proxy.port)
            fast = hydrated(stage, side, home, proxy)
            yield Case(sink="full speed", measured=fast)
            if fast.error:
                return
            # What went through was the warm table too, of the same rows.
            through = proxy.bytes * rows / (rows + stage.warm_rows)
            pace = through / fast.wall_seconds / wanted.slower
            yield Case(sink=f"{wanted.slower:g} times slower", measured=hydrated(stage, side, home, proxy, pace))


def spread(cases: Sequence[Case]) -> float:
    """Return by which share the largest peak is above the smallest."""
    peaks = [case.peak for case in cases]
    return max(peaks) / min(peaks) - 1 if all(peaks) else float("inf")


def verdicts(cases: Sequence[Case]) -> list[tuple[str, bool]]:
    """Return what is promised and whether it held."""
    told = []
    for what, mine in (
        ("from the smallest table to the largest", [case for case in cases if case.sink == "direct"]),
        ("with a slow sink", [case for case in cases if case.sink != "direct"]),
    ):
        if len(mine) > 1:
            told.append((f"peaks {what} differ by at most {BOUND:.0%}: {spread(mine):.1%}", spread(mine) < BOUND))
    return told


def cells(case: Case) -> tuple[str, ...]:
    """Return a case's row of the table."""
    one = case.measured
    if one.error:
        return (f"{one.rows:,}", "", case.sink, f"failed: {one.error}", *[""] * (len(HEAD) - 4))
    return (
        f"{one.rows:,}",
        f"{one.details.get('ranges', 0):,}",
        case.sink,
        f"{one.wall_seconds:.1f}",
        f"{one.rows / one.wall_seconds:,.0f}",
        f"{case.cpu / one.rows * 1e6:.2f}",
        f"{case.speed:,.0f}",
        f"{case.peak:,.0f}",
    )


def section(
    source: str, command: str, heap: str, cases: Sequence[Case], about: dict[str, str], picture: str = ""
) -> str:
    """Return the figures as Markdown. ``picture``: the line that shows the plots."""
    parts = [
        f"`lineitem` is hydrated {SOURCES[source][2]}, each size with servers of its own:\n\n```sh\n{command}\n```",
        picture,
        report.markdown(HEAD, [cells(case) for case in cases]),
        ABOUT.format(heap=heap),
        "\n".join(f"- {sentence}, {'held' if held else 'MISSED'}" for sentence, held in verdicts(cases)),
        report.machine(about),
    ]
    return "\n\n".join(part for part in parts if part)


def heading(wanted: argparse.Namespace) -> str:
    """Return the heading of a section: the copy path's has no other word."""
    words = [HEADING]
    if wanted.source != "postgres":
        words.append(SOURCES[wanted.source][2])
    if wanted.one_slice:
        words.append("in one slice")
    return ", ".join(words)


def panels(cases: Sequence[Case]) -> tuple[Panel, ...]:
    """Return what is drawn: rows per CPU second where nothing was slowed down, and all peaks."""
    every = [case.name for case in cases]
    speeds = {case.name: case.speed for case in cases if case.sink == "direct"}
    return (
        Panel(title="rows per CPU second of all processes, start included (more is better)", bars=bars(speeds, every)),
        Panel(
            title="peak memory of our processes, MiB (equal is better)",
            bars=bars({case.name: case.peak for case in cases}, every),
        ),
    )


def main() -> int:
    """Measure and print; 0 where the bounds hold and every target is equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 10_000_000, 30_000_000])
    parser.add_argument("--slower", type=float, default=10.0, help="how much slower a sink is; 0 for none")
    parser.add_argument("--source", choices=SOURCES, default="postgres")
    parser.add_argument("--heap", default="512m")
    parser.add_argument("--credits", type=int, default=4)
    parser.add_argument("--range-rows", type=int, default=250_000)
    parser.add_argument("--one-slice", action="store_true", help="a single range, whatever the table's size")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    wanted = parser.parse_args()
    if wanted.one_slice:
        wanted.credits, wanted.range_rows = 1, max(wanted.rows)
    about = machine.describe()
    cases: list[Case] = []
    for case in measured(wanted):
        cases.append(case)
        outcome = "equal" if case.measured.equal else f"NOT EQUAL {case.measured.error or ''}"
        console.print("  ".join((*cells(case), outcome)), markup=False)
    for sentence, held in verdicts(cases):
        console.print(f"{sentence}: {'held' if held else 'MISSED'}")
    command = f"python -m benchmarks.memory --source {wanted.source} --rows {' '.join(map(str, wanted.rows))}"
    command += f" --slower {wanted.slower:g} --heap {wanted.heap} --credits {wanted.credits}"
    command += f" --range-rows {wanted.range_rows}" + " --one-slice" * wanted.one_slice
    if wanted.json:
        found = [{"sink": case.sink, **asdict(case.measured)} for case in cases]
        wanted.json.write_text(json.dumps({"command": command, "machine": about, "cases": found}, indent=1))
    if wanted.write_docs:
        name = f"memory-{wanted.source}" + "-one-slice" * wanted.one_slice
        picture = plots.write(name, heading(wanted), panels(cases))
        page.write(heading(wanted), section(wanted.source, command, wanted.heap, cases, about, picture))
    return 0 if all(held for _, held in verdicts(cases)) and all(case.measured.equal for case in cases) else 1


def measured(wanted: argparse.Namespace) -> Iterator[Case]:
    """Yield every case as it was measured."""
    for rows in wanted.rows:
        with console.status(f"{rows:,} rows …"):
            found = measure(wanted.source, rows, wanted)
        yield found
    if wanted.slower:
        with console.status(f"{min(wanted.rows):,} rows, slowed down …"):
            yield from slowed(wanted.source, min(wanted.rows), wanted)


if __name__ == "__main__":
    raise SystemExit(main())
