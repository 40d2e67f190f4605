"""The soak's page: what was run, the figures' verdicts, and a picture of each."""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from tests.soak.verdict import WARM, Series

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, IMAGES = DOCS / "reference" / "soak.md", DOCS / "images"
WIDTH, HEIGHT = 760, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 44
COLOURS = ("#00796b", "#ef6c00", "#3949ab", "#ad1457", "#558b2f", "#6d4c41")
MOST_POINTS = 400
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #37474f }
.title { font-size: 14px; font-weight: 600; fill: #263238 }
.line { fill: none; stroke-width: 1.6 }
.grid { stroke: #cfd8dc; stroke-width: 1 }
.fault { stroke: #b0bec5; stroke-width: 1; stroke-dasharray: 2 3 }
"""


def plot(title: str, lines: Sequence[Series], *, faults: Sequence[tuple[float, str]]) -> str:
    """Return lines over minutes as SVG; faults are dashes with their name, the warm-up is shaded."""
    end = max((one.at[-1] for one in lines if one.at), default=1.0) or 1.0
    top = max((max(one.values) for one in lines if one.values), default=1.0) * 1.08 or 1.0
    unit = lines[0].unit if lines else ""

    def x(at: float) -> float:
        return LEFT + at / end * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff"/>',
        f'<rect x="{LEFT}" y="{TOP}" width="{x(end * WARM) - LEFT:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
        ' fill="#eceff1"/>',
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>',
    ]
    for step in range(5):
        value = top * step / 4
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{shown(value)}</text>')
    for step in range(7):
        at = end * step / 6
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{at / 60:.1f}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="18" text-anchor="end">{escape(unit)}, over minutes</text>')
    for at, name in faults:
        parts.append(
            f'<path class="fault" d="M{x(at):.1f} {TOP}V{HEIGHT - BOTTOM}"><title>{escape(name)}</title></path>'
        )
    for number, one in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        step = max(1, len(one.at) // MOST_POINTS)
        points = zip(one.at[::step], one.values[::step], strict=True)
        drawn = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        parts.append(f'<polyline class="line" stroke="{colour}" points="{drawn}"/>')
        place = LEFT + number * (WIDTH - LEFT - RIGHT) / max(1, len(lines))
        parts.append(f'<rect x="{place:.0f}" y="{HEIGHT - 19}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{place + 14:.0f}" y="{HEIGHT - 10}">{escape(one.name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def shown(value: float) -> str:
    """Return a figure as people read it."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def row(one: Series) -> str:
    """Return a line of the table of verdicts."""
    found = one.verdict()
    said = {True: "flat", False: "**grows**", None: "too short to say"}[found.flat]
    last = one.values[-1] if one.values else 0.0
    figures = (shown(last), f"{found.growth:+,.1f}", f"{found.noise:,.1f}", f"{found.allowed:,.1f}")
    return f"| {one.name} | {one.unit} | {' | '.join(figures)} | {said} |"


def table(series: Sequence[Series]) -> str:
    """Return the verdicts."""
    head = "| Figure | Unit | At the end | Growth | Noise | Allowed | Verdict |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *map(row, series)])
