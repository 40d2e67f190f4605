"""Diagrams as SVG: boxes at given places, and arrows between them, which a test can read again.

The site and GitHub both show a picture, where a language for diagrams needs a script on the one or the other.
"""

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

HEIGHT = 40
"""Of a box, in pixels as all lengths here."""
GAP = 3
"""Between an arrow's head and the box."""
LINE, LETTER = 15, 6.2
"""Height of a line of words on an arrow, and about how wide a letter of it is."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #263238; text-anchor: middle; dominant-baseline: central }
.name { font-weight: 600; font-size: 14px }
.word { font-size: 12px; fill: #37474f }
.paper { fill: #fff }
.box { fill: #e0f2f1; stroke: #00796b; stroke-width: 1.5 }
.store { fill: #fff3e0; stroke: #ef6c00 }
.room { fill: none; stroke: #90a4ae; stroke-dasharray: 5 4 }
.arrow { fill: none; stroke: #546e7a; stroke-width: 1.4; marker-end: url(#head) }
.dotted { stroke-dasharray: 3 4 }
"""

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Box:
    """Something with a name, around its middle. ``kind``: ``dot``, ``store`` or nothing."""

    name: str
    at: Point
    width: int = 120
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """A way from one box to another, with the words on it.

    ``bend``: how far its middle lies to the left of the straight way, as one walks it. ``word_at``: where on it the
    words are, from 0 to 1.
    """

    start: str
    end: str
    words: str = ""
    bend: float = 0
    word_at: float = 0.5
    both: bool = False
    dotted: bool = False


@dataclass(frozen=True, kw_only=True)
class Room:
    """A dashed frame around boxes, with a name."""

    name: str
    corner: Point
    size: Point


@dataclass(frozen=True, kw_only=True)
class Diagram:
    """A whole picture."""

    title: str
    size: tuple[int, int]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    rooms: tuple[Room, ...] = ()

    def svg(self) -> str:
        """Return the picture's file."""
        width, height = self.size
        places = {box.name: box for box in self.boxes}
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            ' orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="#546e7a"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
            *(_room(room) for room in self.rooms),
            *(_arrow(arrow, places) for arrow in self.arrows),
            *(_box(box) for box in self.boxes),
            *(_words(arrow, places) for arrow in self.arrows if arrow.words),
            "</svg>\n",
        ]
        return "\n".join(parts)


def _room(room: Room) -> str:
    (x, y), (width, height) = room.corner, room.size
    frame = f'<rect class="room" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    return frame + f'<text x="{x + width / 2:g}" y="{y + 14:g}">{escape(room.name)}</text>'


def _box(box: Box) -> str:
    x, y = box.at
    if box.kind == "dot":
        return f'<circle cx="{x:g}" cy="{y:g}" r="7" fill="#37474f"/>'
    corner = f'x="{x - box.width / 2:g}" y="{y - HEIGHT / 2:g}" width="{box.width}" height="{HEIGHT}" rx="8"'
    frame = f'<rect class="{f"box {box.kind}".strip()}" {corner}/>'
    return frame + f'<text class="name" x="{x:g}" y="{y:g}">{escape(box.name)}</text>'


def _arrow(arrow: Arrow, places: dict[str, Box]) -> str:
    start, middle, end = _way(arrow, places)
    path = f"M{start[0]:.1f} {start[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
    kind = "arrow dotted" if arrow.dotted else "arrow"
    tail = ' marker-start="url(#head)"' if arrow.both else ""
    ends = f"data-from={quoteattr(arrow.start)} data-to={quoteattr(arrow.end)}"
    return f'<path class="{kind}" {ends} d="{path}"{tail}/>'


def _words(arrow: Arrow, places: dict[str, Box]) -> str:
    start, middle, end = _way(arrow, places)
    x, y = (_on_curve(arrow.word_at, *each) for each in zip(start, middle, end, strict=True))
    lines = arrow.words.split("\n")
    first = y - LINE / 2 * (len(lines) - 1)
    return "".join(_line(line, x, first + LINE * row) for row, line in enumerate(lines))


def _line(words: str, x: float, y: float) -> str:
    width = LETTER * len(words) + 6
    paper = f'<rect class="paper" x="{x - width / 2:.1f}" y="{y - LINE / 2:.1f}" width="{width:.1f}" height="{LINE}"/>'
    return f'{paper}<text class="word" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _on_curve(at: float, start: float, middle: float, end: float) -> float:
    return (1 - at) ** 2 * start + 2 * at * (1 - at) * middle + at**2 * end


def _way(arrow: Arrow, places: dict[str, Box]) -> tuple[Point, Point, Point]:
    """Return where an arrow begins, the point that pulls it, and where it ends."""
    start, end = places[arrow.start], places[arrow.end]
    if start is end:
        x, y = start.at[0], start.at[1] - HEIGHT / 2
        return (x - 25, y), (x, y - 2 * arrow.bend), (x + 25, y - GAP)
    (x, y), (there_x, there_y) = start.at, end.at
    tail = GAP if arrow.both else 0
    if not arrow.bend:
        first, last = _border(start, end.at, tail), _border(end, start.at, GAP)
        return first, ((first[0] + last[0]) / 2, (first[1] + last[1]) / 2), last
    pull = 2 * arrow.bend / math.hypot(there_x - x, there_y - y)
    middle = ((x + there_x) / 2 + (there_y - y) * pull, (y + there_y) / 2 - (there_x - x) * pull)
    return _border(start, middle, tail), middle, _border(end, middle, GAP)


def _border(box: Box, towards: Point, gap: float) -> Point:
    """Return the point of a box's border in a direction."""
    x, y = box.at
    across, down = towards[0] - x, towards[1] - y
    if box.kind == "dot":
        scale = (7 + gap) / math.hypot(across, down)
    else:
        scale = min(
            (box.width / 2 + gap) / abs(across) if across else math.inf,
            (HEIGHT / 2 + gap) / abs(down) if down else math.inf,
        )
    return x + across * scale, y + down * scale
