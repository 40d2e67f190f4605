"""Figures for people: lines and a table for the terminal, a section for the documentation."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from benchmarks.comparison import Comparison
from benchmarks.plots import Panel, bars
from benchmarks.results import (
    Measurement,
    Requirement,
    Summary,
    cpu,
    ratio,
    requirements,
    steady,
    summaries,
    total,
    wall,
)

MEBIBYTE = 1024**2
NONE = "-"
WIDTH = 138
"""Columns of the terminal that the table needs."""
BEFORE = ("side", "wall s", "rows/s", "x speed", "CPU s")
AFTER = ("CPU s/M", "x CPU", "peak MiB", "start s", "equal")
"""Columns before and after those of the parts."""
LEGEND = """
`x speed` is against {speed}, `x CPU` against {cpu}. CPU is in seconds, in all and by part; `CPU s/M` are seconds per
million rows. `peak` is the most resident memory of all of a side's processes together: Spark's JVM, its Python workers,
and the client or the tool with whatever it starts; a page that processes share counts once. `start` is what
the session took to open.
"""
TOTALS = """
`total` is the CPU time of everything, the session's start included, and `of {floor}` says how many rows a CPU second
moves by it, as a share of those that {floor} moves. `steady` is the same without whatever happens once: the CPU seconds
that {rows:,} rows take more than {small:,} in the same run, start included, by the rows that they are more. So the
start of session and Python workers, the plan and the first look at everything cancel out; what each range costs stays.
"""
METHOD = """
Every round gives each side one turn, in rotating order; the table shows medians. A turn's target is {target}, and a
checkpoint has just written out everything before. Each side that uses Spark has a Spark Connect server of its own
(`local[4]`, the same heap for all; Python workers, where there are any, come from
[our daemon](../howto/connections.md#start-workers-sooner), and a JVM that only starts those compiles
[lightly](../howto/connections.md#where-rows-go-through-python-alone)). It was warmed before the first round by a small
table (`--warm-rows`) and gets a new session for each turn. That session's start is not part of the turn but stated
beside it; for ours it is session, our code and a probe of the executors. Our own turn holds everything that a DAG does
for a hydration: planning, ledger, gate, lane, the start of its Python workers, markers, checksums, statistics. It lacks
Airflow's scheduler and its supervision of tasks.

CPU seconds are those of all processes together: Spark's JVM and Python workers, every process of each server (all
databases of PostgreSQL, the ledger too, are on one), and the client (for ours, the lane). Afterwards count and checksum
of the target are compared with the source's by {check}.
PostgreSQL waits for the disk at a commit; autovacuum is off.

{ways}
"""


def line(comparison: Comparison, one: Measurement) -> str:
    """Return one turn in a line."""
    head = f"round {one.round}  {comparison.sides[one.side]:22} {one.rows:>11,} rows"
    if one.error:
        return f"{head} [red]failed: {one.error}"
    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in sorted(one.cpu_seconds.items()))
    outcome = "equal" if one.equal else "[red]DIFFERENT"
    return f"{head} {one.wall_seconds:6.1f} s  CPU {sum(one.cpu_seconds.values()):6.1f} s ({parts})  {outcome}"


def table(comparison: Comparison, found: Mapping[str, Summary]) -> Table:
    """Return the sides side by side."""
    title = f"{comparison.heading}, medians"
    made = Table(title=title, box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(_columns(comparison)):
        made.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for cells in _cells(comparison, found):
        made.add_row(*cells)
    return made


def verdict(requirement: Requirement) -> str:
    """Return a promise and whether it was kept."""
    if requirement.factor is None:
        return f"{requirement.sentence}: not measured"
    return f"{requirement.sentence}: {requirement.factor:.2f}, {'held' if requirement.held else 'MISSED'}"


def panels(comparison: Comparison, found: Mapping[str, Summary]) -> tuple[Panel, ...]:
    """Return what is drawn of the sides that were measured: rows per CPU second, and peaks."""
    good = {comparison.sides[side]: one for side, one in found.items() if not one.error}
    ours = [comparison.sides[side] for side in comparison.ours]
    speeds = {name: one.rows / one.total if one.total else 0.0 for name, one in good.items()}
    peaks = {name: one.peak_bytes / MEBIBYTE for name, one in good.items()}
    return (
        Panel(title="rows per CPU second of all processes, start included (more is better)", bars=bars(speeds, ours)),
        Panel(title="peak memory of the side's processes, MiB (less is better)", bars=bars(peaks, ours)),
    )


def totals(comparison: Comparison, found: Mapping[str, Summary]) -> str:
    """Return total and steady cost side by side as Markdown; nothing where no second size was copied."""
    floor = found.get(comparison.cpu_against)
    if floor is None or floor.small_rows is None:
        return ""
    title = comparison.sides[comparison.cpu_against]
    head = ("side", "total CPU s/M", "rows per CPU s", f"of {title}", "steady CPU s/M", f"of {title}")
    legend = TOTALS.format(floor=title, rows=floor.rows, small=floor.small_rows)
    return f"{markdown(head, _totals(comparison, found))}\n\n{legend.strip()}"


def section(
    comparison: Comparison,
    command: str,
    about: Mapping[str, str],
    measurements: Sequence[Measurement],
    picture: str = "",
) -> str:
    """Return all of it as Markdown. ``picture``: the line that shows the plots."""
    found, titles = summaries(measurements, comparison.sides), comparison.sides
    legend = LEGEND.format(speed=titles[comparison.speed_against], cpu=titles[comparison.cpu_against])
    method = METHOD.format(target=comparison.target, check=comparison.check, ways=comparison.ways.strip())
    parts = [
        f"{max(one.rows for one in measurements):,} {comparison.moved}:\n\n```sh\n{command}\n```",
        picture,
        markdown(_columns(comparison), _cells(comparison, found)),
        legend.strip(),
        totals(comparison, found),
        "\n".join(f"- {verdict(requirement)}" for requirement in requirements(found, comparison.goals)),
        f"### How it is measured\n{method.rstrip()}",
        "### Single turns",
        markdown(
            ("round", "side", "rows", "wall s", "CPU s", "start CPU s", "peak MiB", "details"),
            [_turn(titles, one) for one in measurements],
        ),
        machine(about),
    ]
    return "\n\n".join(part for part in parts if part)


def machine(about: Mapping[str, str]) -> str:
    """Return where and with what it was measured as Markdown."""
    facts = markdown(("what", "which"), [(name, text) for name, text in about.items()])
    return f"### Machine and versions\n\n{facts}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = ["| " + " | ".join(_escaped(cell) for cell in cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def _columns(comparison: Comparison) -> tuple[str, ...]:
    return (*BEFORE, *comparison.parts.values(), *AFTER)


def _cells(comparison: Comparison, found: Mapping[str, Summary]) -> list[tuple[str, ...]]:
    return [_row(comparison, found, one) for one in found.values()]


def _row(comparison: Comparison, found: Mapping[str, Summary], one: Summary) -> tuple[str, ...]:
    title = comparison.sides[one.side]
    if one.error:
        return (title, "failed", *[""] * (len(_columns(comparison)) - 3), "no")
    return (
        title,
        f"{one.wall:.1f}",
        f"{one.rows_per_second:,.0f}",
        _factor(ratio(found, comparison.speed_against, one.side, wall)),
        f"{one.cpu_all:.1f}",
        *[f"{one.cpu[part]:.1f}" if part in one.cpu else NONE for part in comparison.parts],
        f"{one.cpu_per_million:.2f}",
        _factor(ratio(found, one.side, comparison.cpu_against, cpu)),
        f"{one.peak_bytes / MEBIBYTE:,.0f}" if one.peak_bytes else NONE,
        f"{one.open:.1f}" if "spark" in one.cpu else NONE,
        "yes" if one.equal else "NO",
    )


def _totals(comparison: Comparison, found: Mapping[str, Summary]) -> list[tuple[str, ...]]:
    floor = comparison.cpu_against
    return [
        (
            comparison.sides[side],
            f"{one.total / one.rows * 1e6:.2f}",
            f"{one.rows / one.total:,.0f}" if one.total else NONE,
            _factor(ratio(found, floor, side, total)),
            NONE if one.steady is None else f"{one.steady * 1e6:.2f}",
            _factor(ratio(found, floor, side, steady)),
        )
        for side, one in found.items()
        if not one.error
    ]


def _turn(titles: Mapping[str, str], one: Measurement) -> tuple[str, ...]:
    details = ", ".join(
        f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in one.details.items()
    )
    return (
        str(one.round),
        titles[one.side],
        f"{one.rows:,}",
        f"{one.wall_seconds:.1f}",
        f"{sum(one.cpu_seconds.values()):.1f}",
        f"{one.open_cpu_seconds:.1f}",
        f"{one.peak_bytes / MEBIBYTE:,.0f}",
        one.error or details,
    )


def _factor(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
