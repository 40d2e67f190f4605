"""Bars as SVG, drawn by the suite itself: no script and no library is needed to make or to see them.

Colours follow the reader's light or dark scheme, by a query inside of the picture: as an image of a page it
gets nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, MARGIN = 880, 20
"""Of a picture, in pixels as all lengths here, and what stays empty around it."""
NAMES, FIGURES = 190, 100
"""Widths of the columns for what a bar is called and for its figure."""
TITLE, ROW, BAR, GAP = 34, 26, 16, 18
"""Heights of a panel's title, a row, its bar, and the gap between two panels."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #263238; dominant-baseline: central }
.title { font-weight: 600; font-size: 14px }
.name { text-anchor: end }
.paper { fill: #fff }
.bar { fill: #90a4ae }
.ours { fill: #00796b }
.axis { stroke: #90a4ae }
@media (prefers-color-scheme: dark) {
text { fill: #eceff1 }
.paper { fill: #1e2129 }
.bar { fill: #607d8b }
.ours { fill: #4db6ac }
}
"""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar. ``value`` is its length, in the unit of its panel's title."""

    name: str
    value: float
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Bars of one unit, under a title."""

    title: str
    bars: Sequence[Bar]

    @property
    def height(self) -> int:
        """How high it is."""
        return TITLE + ROW * len(self.bars)


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Return the file of a picture whose panels are one below the other. ``title``: for those who cannot see it."""
    height = 2 * MARGIN + sum(panel.height for panel in panels) + GAP * (len(panels) - 1)
    parts, top = [], MARGIN
    for panel in panels:
        parts += _panel(panel, top)
        top += panel.height + GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            ' role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def write(name: str, title: str, panels: Sequence[Panel], *, folder: Path | None = None) -> str:
    """Write a picture and return the line of Markdown by which a page of the reference shows it."""
    folder = folder or IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"benchmark-{name}.svg").write_text(svg(title, panels))
    return f"![{title}](../images/benchmark-{name}.svg)"


def bars(values: Mapping[str, float], ours: Sequence[str]) -> tuple[Bar, ...]:
    """Return bars of values by name; ``ours`` are the names that stand out."""
    return tuple(Bar(name=name, value=value, ours=name in ours) for name, value in values.items())


def _panel(panel: Panel, top: int) -> list[str]:
    left, most = MARGIN + NAMES, max((bar.value for bar in panel.bars), default=0)
    widest = WIDTH - left - FIGURES - MARGIN
    bottom = top + panel.height
    parts = [
        f'<text class="title" x="{MARGIN}" y="{top + TITLE // 2 - 4}">{escape(panel.title)}</text>',
        f'<path class="axis" d="M{left} {top + TITLE - 4}V{bottom}"/>',
    ]
    for number, bar in enumerate(panel.bars):
        middle = top + TITLE + ROW * number + ROW / 2
        length = widest * bar.value / most if most else 0
        kind = "bar ours" if bar.ours else "bar"
        parts += [
            f'<text class="name" x="{left - 8}" y="{middle:g}">{escape(bar.name)}</text>',
            f'<rect class="{kind}" x="{left}" y="{middle - BAR / 2:g}" width="{length:.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{left + length + 8:.1f}" y="{middle:g}">{bar.value:,.0f}</text>',
        ]
    return parts
