"""Figures for people: lines and a table for the terminal, a section for the documentation."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from benchmarks.results import TITLES, Measurement, Requirement, Summary, ratio, requirements

MEBIBYTE = 1024**2
NONE = "-"
WIDTH = 126
"""Columns of the terminal that the table needs."""
COLUMNS = (
    "side",
    "wall s",
    "rows/s",
    "x speed",
    "CPU s",
    "Spark",
    "PostgreSQL",
    "client",
    "CPU s/M",
    "x CPU",
    "peak MiB",
    "start s",
    "equal",
)
LEGEND = """
`x speed` is against tuned JDBC, `x CPU` against raw COPY. CPU is in seconds, in all and by part; `CPU s/M` are seconds
per million rows. `peak` is the resident memory of Spark's processes, `start` what the session took to open.
"""
METHOD = """
Every round gives each side one turn, in rotating order; the table shows medians. A turn's target is a new, empty table
without a key, and a checkpoint has just written out everything before. Each side that uses Spark has a Spark Connect
server of its own (`local[4]`, the same heap for all). It was warmed before the first round by a small table
(`--warm-rows`) and gets a new session for each turn. That session's start is not part of the turn but stated beside it;
for ours it is session, our code and a probe of the executors. Our own turn holds everything that a DAG does for a
hydration: planning, ledger, gate, lane, the start of its Python workers, markers, checksums, statistics. It lacks
Airflow's scheduler and its supervision of tasks.

CPU seconds are those of all processes together: Spark's JVM and Python workers, every process of PostgreSQL (source,
target and ledger are databases of one server), and the client (for ours, the lane). The peak is the resident memory of
Spark's processes. Afterwards count and checksum of the target are compared with the source's by a query that belongs to
none of the sides. PostgreSQL waits for the disk at a commit; autovacuum is off.

- **raw COPY | COPY**: one client (asyncpg) hands a binary COPY from one connection to the other. The floor.
- **Spark JDBC, default**: `read.jdbc` and `write.jdbc` without any option. It holds the whole table in memory.
- **Spark JDBC, tuned**: 8 partitions with bounds, `fetchsize` and `batchsize` 10,000, `reWriteBatchedInserts=true`.
- **ours, copy path**: no transform.
- **ours, frame path**: the transform `SELECT * FROM source`.
"""


def line(one: Measurement) -> str:
    """Return one turn in a line."""
    head = f"round {one.round}  {TITLES[one.side]:22}"
    if one.error:
        return f"{head} [red]failed: {one.error}"
    cpu = ", ".join(f"{part} {seconds:.1f}" for part, seconds in sorted(one.cpu_seconds.items()))
    verdict = "equal" if one.equal else "[red]DIFFERENT"
    return f"{head} {one.wall_seconds:6.1f} s  CPU {sum(one.cpu_seconds.values()):6.1f} s ({cpu})  {verdict}"


def table(found: Mapping[str, Summary]) -> Table:
    """Return the sides side by side."""
    made = Table(title="PostgreSQL to PostgreSQL, medians", box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(COLUMNS):
        made.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for cells in _cells(found):
        made.add_row(*cells)
    return made


def verdict(requirement: Requirement) -> str:
    """Return a promise and whether it was kept."""
    if requirement.factor is None:
        return f"{requirement.sentence}: not measured"
    return f"{requirement.sentence}: {requirement.factor:.2f}, {'held' if requirement.held else 'MISSED'}"


def section(
    command: str, about: Mapping[str, str], found: Mapping[str, Summary], measurements: Sequence[Measurement]
) -> str:
    """Return all of it as Markdown."""
    rows = measurements[0].rows
    parts = [
        f"{rows:,} rows of TPC-H's `lineitem` go from one database into another:\n\n```sh\n{command}\n```",
        _markdown(COLUMNS, _cells(found)),
        LEGEND.strip(),
        "\n".join(f"- {verdict(requirement)}" for requirement in requirements(found)),
        f"### How it is measured\n{METHOD.rstrip()}",
        "### Single turns",
        _markdown(("round", "side", "wall s", "CPU s", "details"), [_turn(one) for one in measurements]),
        "### Machine and versions",
        _markdown(("what", "which"), [(name, text) for name, text in about.items()]),
    ]
    return "\n\n".join(parts)


def _cells(found: Mapping[str, Summary]) -> list[tuple[str, ...]]:
    return [_row(found, side, one) for side, one in found.items()]


def _row(found: Mapping[str, Summary], side: str, one: Summary) -> tuple[str, ...]:
    if one.error:
        return (TITLES[side], "failed", *[""] * (len(COLUMNS) - 3), "no")
    return (
        TITLES[side],
        f"{one.wall:.1f}",
        f"{one.rows_per_second:,.0f}",
        _factor(ratio(found, "jdbc-tuned", side, lambda each: each.wall)),
        f"{one.cpu_all:.1f}",
        *[f"{one.cpu[part]:.1f}" if part in one.cpu else NONE for part in ("spark", "postgres", "client")],
        f"{one.cpu_per_million:.2f}",
        _factor(ratio(found, side, "raw", lambda each: each.cpu_all)),
        f"{one.peak_bytes / MEBIBYTE:,.0f}" if one.peak_bytes else NONE,
        f"{one.open:.1f}" if one.peak_bytes else NONE,
        "yes" if one.equal else "NO",
    )


def _turn(one: Measurement) -> tuple[str, ...]:
    details = ", ".join(
        f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in one.details.items()
    )
    return (
        str(one.round),
        TITLES[one.side],
        f"{one.wall_seconds:.1f}",
        f"{sum(one.cpu_seconds.values()):.1f}",
        one.error or details,
    )


def _factor(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(_escaped(cell) for cell in cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
