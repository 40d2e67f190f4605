"""Many hydrations: a table with a line or two for each, and the one line of a log."""

import re
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from airflow_provider_backpressure.cli.command import SHOWN
from airflow_provider_backpressure.cli.render.symbols import ASCII, Marks, marks
from airflow_provider_backpressure.core.progress.displayed_state import State
from airflow_provider_backpressure.core.progress.lag import Verdict
from airflow_provider_backpressure.core.progress.pipeline_view import amount, compact, pipe
from airflow_provider_backpressure.core.progress.rates_and_eta import arrival, duration, line
from airflow_provider_backpressure.core.progress.summary import HydrationSummary

DONE, LEFT, LEFT_WITH_INTERVAL, LEAST_NAME, WIDE = 7, 8, 22, 8, 140
"""Columns of the percentage, of the time that is left, of that with its interval, the least of a name, and of a screen
with room for rate, interval and lag."""
STATE = max(len(state.value) for state in State)
STYLES = {State.FAILED: "bold red", State.STALE: "yellow", State.THROTTLED: "yellow", State.SUCCEEDED: "green"}
"""Red is for faults only."""
GAP = "  "
SHARED_LOG = re.compile(r"^(?:(.*)\.)?backpressure_[0-9a-f]{32}$")
"""Name of a log that tables share, alone and in the schema of their plans; dom.js has the same."""


def overview(found: Sequence[HydrationSummary], console: Console) -> Group:
    """Return the table. What a state leaves open follows its line, over the whole width."""
    wide = console.width >= WIDE
    left = LEFT_WITH_INTERVAL if wide else LEFT
    fixed = SHOWN + STATE + DONE + left + 6 * len(GAP) + (2 * LEFT + 2 * len(GAP) if wide else 0)
    each = max(LEAST_NAME, (console.width - fixed) // 3)
    heads = [f"{'ID':{SHOWN}}", f"{'SOURCE':{each}}", f"{'TARGET':{each}}", f"{'DAG':{each}}", f"{'STATE':{STATE}}"]
    heads += [f"{'DONE':>{DONE}}", f"{'ETA':>{left}}"] + ([f"{'PER S':>{LEFT}}", f"{'LAG':>{LEFT}}"] if wide else [])
    lines: list[RenderableType] = [Text(GAP.join(heads), style="bold", no_wrap=True, overflow="ellipsis")]
    for now in found:
        lines.append(_line(now, each, wide, marks(console)))
        if note := _note(now):
            # Whole: the end of an error says what to do.
            lines.append(Padding(Text(note, style="dim"), (0, 0, 0, SHOWN + len(GAP))))
    return Group(*lines)


def _line(now: HydrationSummary, each: int, wide: bool, with_marks: Marks) -> Text:
    hydration, cut = now.hydration, "~" if with_marks is ASCII else "…"
    names = (_label(hydration.source_identity), _label(hydration.sink_identity), hydration.owner)
    done = f"{now.percent:.1f} %" if now.percent is not None else compact(now.progress.committed)
    left = LEFT_WITH_INTERVAL if wide else LEFT
    eta = "" if now.eta is None else arrival(now.eta) if wide else duration(now.eta.seconds)
    text = Text(f"{hydration.id[:SHOWN]:{SHOWN}}", style="bold", no_wrap=True, overflow="ellipsis")
    for name in names:
        text.append(GAP + f"{_fit(name, each, cut):{each}}", style="not bold")
    text.append(f"{GAP}{now.state.value:{STATE}}", style=STYLES.get(now.state, "not bold"))
    text.append(f"{GAP}{done:>{DONE}}{GAP}{eta:>{left}}", style="not bold")
    if wide:
        rate = compact(now.speed) if now.moving and now.speed is not None else ""
        text.append(f"{GAP}{rate:>{LEFT}}{GAP}{_lag(now):>{LEFT}}", style="not bold")
    return text


def _fit(name: str, width: int, cut: str) -> str:
    """Return a name that fits. The end of a long name distinguishes better than its beginning."""
    return name if len(name) <= width else cut + name[1 - width :]


def _lag(now: HydrationSummary) -> str:
    course = now.course
    return "" if course is None or course.lag is None else amount(course.lag, course.latest.unit.value).split(" ")[0]


def _note(now: HydrationSummary) -> str:
    """Return what the state leaves open, and what a person should know beside it."""
    failed = f"{now.failed} ranges failed" if now.failed and now.state is not State.FAILED else ""
    trouble = now.course.trouble if now.course else ""
    slow = "does not keep up with its source" if now.course and now.course.verdict is Verdict.NOT_KEEPING_UP else ""
    return "; ".join(text for text in (now.state_note, failed, trouble, slow) if text)


def short(identity: str) -> str:
    """Return a table's name without its address. The id in the name of a log that tables share says nothing."""
    name = identity.rpartition("/")[2]
    return SHARED_LOG.sub(lambda found: f"shared log ({found[1]})" if found[1] else "shared log", name)


def _label(identity: str) -> str:
    """Return a table's name and where it is no table of PostgreSQL its kind: one name may go into several kinds."""
    kind = identity.partition(":")[0]
    return short(identity) if kind == "postgres" else f"{short(identity)} ({kind})"


def format_log_line(now: HydrationSummary) -> str:
    """Return one line: for a log, where nothing can be drawn over."""
    drawn = pipe(now)
    progress = line(now.progress, now.speed if now.moving else None, now.unit)
    ways = " -> ".join(f"{part.name} {', '.join(filter(None, (part.figure, part.note)))}" for part in drawn.parts)
    reasons = now.reasons
    gate = f"; gate closed: {'; '.join(reasons)}" if reasons else ""
    return f"{short(now.hydration.sink_identity)} {now.state}: {progress}; {ways}{gate}"
