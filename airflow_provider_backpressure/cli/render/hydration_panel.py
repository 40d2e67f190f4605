"""The picture of one hydration, in eighty columns: how much is done, whether it keeps up, and the pipe."""

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from airflow_provider_backpressure.cli.command import SHOWN
from airflow_provider_backpressure.cli.render.status_values import NOT_YET, Facts, consistent
from airflow_provider_backpressure.cli.render.symbols import Marks, marks
from airflow_provider_backpressure.core.health_signal_declarations import size
from airflow_provider_backpressure.core.progress.bottleneck import Level, find_level
from airflow_provider_backpressure.core.progress.displayed_state import State
from airflow_provider_backpressure.core.progress.lag import Course, Verdict, lags, sentence
from airflow_provider_backpressure.core.progress.pipeline_view import Part, Pipe, pipe
from airflow_provider_backpressure.core.progress.rates_and_eta import arrival, duration
from airflow_provider_backpressure.core.progress.summary import HydrationSummary

WIDTH = 80
PART, ARROW = 17, 4
"""Columns of a part of the pipe with its frame, and between two."""
TIGHT = {"gate": 12, "read": 15, "transform": 15}
"""Widths of parts where five of them share eighty columns; between them is one."""
INNER = PART - 2
"""Columns in a part."""
BAR = 24
SPANS = 3
"""Phases that are shown beside the present one."""
COLOURS = {Level.OK: "green", Level.LOW: "yellow", Level.HIGH: "bold yellow"}
BAD, WARN = "bold red", "bold yellow"
"""Of a fault, and of what needs attention."""


def render_hydration(facts: Facts, console: Console) -> RenderableType:
    """Return the picture."""
    with_marks = marks(console)
    return Group(_lines(facts, with_marks), _pipe(facts.now, with_marks, console.width), _gate(facts.now))


def _lines(facts: Facts, with_marks: Marks) -> Table:
    now, course = facts.now, facts.now.course
    lines = _grid()
    lines.add_row(Text(now.hydration.id[:SHOWN], style="bold"), Text(now.hydration.source_identity))
    lines.add_row(Text("  into"), Text(now.hydration.sink_identity))
    style = BAD if now.state is State.FAILED else WARN if now.state in (State.STALE, State.THROTTLED) else ""
    lines.add_row("state", Text(_state(now), style=style))
    lines.add_row("done", _done(now, with_marks))
    if rates := _rates(facts):
        lines.add_row("", Text(rates))
    if course is None or course.latest.follows or course.trouble:
        lines.add_row("keeps up", Text(sentence(course), style=_style(course)))
    if course is not None and lags(course):
        lines.add_row("lag", Text(lags(course)))
    if facts.memory is not None and now.moving:
        lines.add_row("memory", Text(_memory(facts, with_marks)))
        done, memory = facts.curves(with_marks.levels)
        if done:
            lines.add_row("", Text(f"committed {done}  in the last minutes"))
            lines.add_row("", Text(f"memory    {memory}  fullest executor"))
    lines.add_row("phase", Text(_phase(facts)))
    if consistent(now.hydration) == NOT_YET:
        lines.add_row("target", Text("not yet consistent: ranges are of different times until the log is replayed"))
    if facts.counts is not None:
        lines.add_row("ranges", Text(_ranges(facts)))
    return lines


def _grid(names: int = SHOWN) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=names)
    grid.add_column()
    return grid


def _done(now: HydrationSummary, with_marks: Marks) -> Text:
    progress, percent = now.progress, now.percent
    if percent is None:
        return Text(f"{progress.committed:,} {now.unit} of an unknown total")
    about = "" if progress.total_exact else "about "
    bar = Text(f"[{with_marks.bar(percent, BAR)}]", style="green")
    return bar.append(f" {percent:5.1f} %", style="bold").append(
        f"  {progress.committed:,} of {about}{progress.total:,} {now.unit}", style="not bold default"
    )


def _state(now: HydrationSummary) -> str:
    """Return the state and what it leaves open; failed ranges name their errors themselves."""
    hydration, note = now.hydration, now.state_note
    if now.state is State.FAILED and hydration.failure is None:
        note = f"{note}: `airflow backpressure ranges` shows their errors"
    elif now.state is State.FAILED and hydration.failed_at:
        note = f"{note} ({hydration.failed_at:%Y-%m-%d %H:%M:%SZ})"
    return f"{now.state}: {note}" if note else now.state.value


def _rates(facts: Facts) -> str:
    """Return the speed and the time that is left, and what is read and not committed yet."""
    now, left = facts.now, facts.now.eta
    ahead = now.progress.read - now.progress.committed
    parts = [
        f"{now.speed:,.0f} {now.unit}/s" if now.moving and now.speed is not None else "",
        f"ETA {arrival(left)}" if left else "",
        f"{ahead:,} more read" if now.moving and ahead > 0 else "",
    ]
    return "  ".join(part for part in parts if part)


def _style(course: Course | None) -> str:
    if course is not None and course.trouble:
        return BAD
    return WARN if course is not None and course.verdict is Verdict.NOT_KEEPING_UP else ""


def _memory(facts: Facts, with_marks: Marks) -> str:
    """Return the fullest executor's memory."""
    sample = facts.memory
    assert sample is not None, "the caller has looked"
    used, limit = sample.memory_used or 0, sample.memory_limit or 0
    share = f"[{with_marks.bar(100.0 * used / limit, BAR)}] {100.0 * used / limit:5.1f} %  " if limit else ""
    return f"{share}{size(used)} of {size(limit)}"


def _phase(facts: Facts) -> str:
    """Return the phase, since when, and how long those before took."""
    over = [span for span in facts.spans if span.seconds is not None]
    spent = [f"{span.phase} took {duration(span.seconds or 0)}" for span in over[-SPANS:]]
    since = "" if facts.in_phase is None else f" for {duration(facts.in_phase)}"
    return "; ".join([f"{facts.now.hydration.phase.value}{since}", *spent])


def _ranges(facts: Facts) -> str:
    counts = facts.counts
    assert counts is not None, "the caller has looked"
    failed = f", {counts.failed} failed" if counts.failed else ""
    most = facts.now.hydration.credits_max
    return f"{counts.committed} of {counts.total} committed{failed}; credits {facts.now.credits} of at most {most}"


def _pipe(now: HydrationSummary, with_marks: Marks, width: int) -> RenderableType:
    """Return the pipe as boxes in a row, or where there is no room for them one below the other."""
    drawn = pipe(now)
    if width < WIDTH:
        return _stack(drawn, now, with_marks)
    wide = width >= len(drawn.parts) * (PART + ARROW) - ARROW
    row = Table.grid()
    cells: list[RenderableType] = []
    for part in drawn.parts:
        own = PART if wide else TIGHT.get(part.name, PART)
        if cells:
            row.add_column(width=ARROW if wide else 1, justify="center")
            cells.append(Text(f"\n\n{with_marks.arrow if wide else with_marks.arrow[-1]}"))
        row.add_column(width=own)
        cells.append(_box(part, _third(part, drawn, now, with_marks, own - 2), own))
    row.add_row(*cells)
    legend = f"{with_marks.full} busy  {with_marks.held} held back  {with_marks.rest} idle in the last minute"
    credit = f"{with_marks.taken} in flight  {with_marks.free} free credit"
    return Group(row, Text(f"{legend}   {credit}", style="dim")) if now.moving else row


def _box(part: Part, third: str, width: int) -> Panel:
    note = part.note if width == PART else part.note.replace("held back", "held")
    lines = Text("\n").join([Text(part.figure, style="bold"), Text(note), Text(third, style=_colour(part))])
    return Panel(
        lines,
        title=part.name,
        width=width,
        padding=0,
        box=box.HEAVY if part.bottleneck else box.SQUARE,
        border_style=WARN if part.bottleneck else "",
    )


def _third(part: Part, drawn: Pipe, now: HydrationSummary, with_marks: Marks, width: int = INNER) -> str:
    if part is drawn.gate:
        return with_marks.dots(now.in_flight, now.credits, now.hydration.credits_max, width)
    return with_marks.time(part.spent, width) if part.spent else ""


def _colour(part: Part) -> str:
    return COLOURS[find_level(part.spent)] if part.spent else ""


def _stack(drawn: Pipe, now: HydrationSummary, with_marks: Marks) -> Table:
    lines = _grid(max(SHOWN, *(len(part.name) for part in drawn.parts)))
    for part in drawn.parts:
        told = ", ".join(text for text in (part.figure, part.note) if text)
        lines.add_row(part.name, Text(told))
        if third := _third(part, drawn, now, with_marks):
            lines.add_row("", Text(third))
    return lines


def _gate(now: HydrationSummary) -> Table:
    """Return every reason why nothing more is admitted, and what holds the others up."""
    lines = _grid()
    if not now.running:
        return lines
    reasons = now.reasons
    lines.add_row("gate", Text("closed: " + reasons[0], style="yellow") if reasons else "open")
    for reason in reasons[1:]:
        lines.add_row("", Text(f"and {reason}", style="yellow"))
    found = pipe(now).bottleneck
    if found is not None:
        lines.add_row("slowest", Text(f"{found.name} is the bottleneck: what is before it is held back", style=WARN))
    return lines
