"""Many hydrations: a table with a line or two for each, and the one line of a log."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.text import Text

from airflow_provider_backpressure.cli.command import SHOWN
from airflow_provider_backpressure.cli.render.symbols import ASCII, Marks, marks
from airflow_provider_backpressure.core.gate.hydration import Phase, State
from airflow_provider_backpressure.core.progress.lag import Verdict
from airflow_provider_backpressure.core.progress.pipeline_view import compact, pipe
from airflow_provider_backpressure.core.progress.samples import arrival, duration, line
from airflow_provider_backpressure.core.progress.summary import HydrationSummary

BAR, DONE = 10, 18
"""Columns of the bar, and of the bar with its percentage."""
LEFT, LEFT_WITH_INTERVAL = 8, 22
"""Columns of the time that is left, and where it has its interval beside it."""
FIXED, LEAST_TARGET, WIDE = 55, 12, 100
"""Columns of all but that and the target's name, the least of this, and of a screen with room for the interval."""
BAD = "bold red"


def overview(found: Sequence[HydrationSummary], console: Console) -> Group:
    """Return the table. The reasons that hold a hydration back follow its line, over the whole width."""
    left = LEFT_WITH_INTERVAL if console.width >= WIDE else LEFT
    target = max(LEAST_TARGET, console.width - FIXED - left)
    heads = f"{'ID':8}  {'TARGET':{target}}  {'DONE':{DONE}}  {'PER S':>7}  {'ETA':>{left}}  KEEPS UP"
    lines = [Text(heads, style="bold")]
    for now in found:
        lines.append(_line(now, target, left, marks(console)))
        if held := _held(now):
            lines.append(Text(f"{'':8}  {held}", style="yellow", overflow="ellipsis", no_wrap=True))
    return Group(*lines)


def _line(now: HydrationSummary, target: int, left: int, with_marks: Marks) -> Text:
    speed = compact(now.speed) if now.running and now.speed is not None else ""
    eta = ""
    if now.eta is not None:
        eta = arrival(now.eta) if left == LEFT_WITH_INTERVAL else duration(now.eta.seconds)
    name = short(now.hydration.sink_identity)
    # The end of a long name distinguishes better than its beginning.
    if len(name) > target:
        name = ("~" if with_marks is ASCII else "…") + name[1 - target :]
    text = Text(f"{now.hydration.id[:SHOWN]:8}", style="bold", no_wrap=True, overflow="ellipsis")
    text.append(f"  {name:{target}}  ", style="not bold").append(_done(now, with_marks))
    return text.append(f"  {speed:>7}  {eta:>{left}}  ", style="not bold").append(_keeps_up(now))


def short(identity: str) -> str:
    """Return a table's name without its address."""
    return identity.rpartition("/")[2]


def _done(now: HydrationSummary, with_marks: Marks) -> Text:
    if now.state in (State.FAILED, State.STEADY_STATE):
        return Text(f"{now.state.value:{DONE}}", style=BAD if now.state is State.FAILED else "not bold")
    if now.percent is None:
        return Text(f"{compact(now.progress.committed) + ' ' + now.unit:{DONE}}", style="not bold")
    bar = Text(with_marks.bar(now.percent, BAR), style="not bold green")
    return bar.append(f" {now.percent:5.1f} %", style="not bold default")


def _keeps_up(now: HydrationSummary) -> Text:
    course = now.course
    if course is None or course.verdict is Verdict.UNKNOWN:
        return Text("")
    if course.trouble:
        return Text("TROUBLE", style=BAD)
    if course.verdict is Verdict.NOT_KEEPING_UP:
        return Text("NO", style=BAD)
    return Text("idle" if course.verdict is Verdict.IDLE else "yes", style="not bold")


def _held(now: HydrationSummary) -> str:
    again = "rehydration" if now.hydration.phase is Phase.REHYDRATION else ""
    failed = f"{now.failed} ranges failed" if now.failed else ""
    why = now.hydration.failure if now.state is State.FAILED else ""
    return "; ".join(text for text in (again, why, failed, *now.reasons) if text)


def _stage(now: HydrationSummary) -> str:
    """Return the phase, and that it has failed where it has."""
    phase = now.hydration.phase.value
    return f"{phase} failed" if now.state is State.FAILED else phase


def format_log_line(now: HydrationSummary) -> str:
    """Return one line: for a log, where nothing can be drawn over."""
    drawn = pipe(now)
    progress = line(now.progress, now.speed if now.running else None, now.unit)
    ways = " -> ".join(f"{part.name} {', '.join(filter(None, (part.figure, part.note)))}" for part in drawn.parts)
    reasons = now.reasons
    gate = f"; gate closed: {'; '.join(reasons)}" if reasons else ""
    return f"{short(now.hydration.sink_identity)} {_stage(now)}: {progress}; {ways}{gate}"
