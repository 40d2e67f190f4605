"""Coverage: whether bounded pieces cover what was planned, each part of it exactly once."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.snapshot.bounds import (
    BlockBounds,
    Bounds,
    FileBounds,
    KeyBounds,
    LogBounds,
    NullBounds,
    OffsetBounds,
)
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow

Line = tuple[Hashable, ...]
"""Names an order in which pieces follow one another: a key's, a file's blocks, a partition's offsets, a log's."""
FIRST, LAST = "the beginning", "the end"
"""The open ends of a line."""


@dataclass(kw_only=True)
class Coverage:
    """Collects pieces and finds what they leave out or hold twice.

    Pieces are half-open, so on each line every end but the last is another piece's start, and only there. Ends and
    starts that have met are forgotten, so that a million pieces that come in order take no memory.
    """

    _open: dict[Line, Counter[Hashable]] = field(default_factory=dict)
    """By line and value: how many more pieces start there than end there."""
    _alone: Counter[str] = field(default_factory=Counter)
    """Pieces that are on no line, by their text: the rows without a key, files."""

    def add(self, bounds: Bounds) -> None:
        """Take one piece in."""
        for line, start, end in _steps(bounds):
            ends = self._open.setdefault(line, Counter())
            for value, change in ((start, 1), (end, -1)):
                ends[value] += change
                if not ends[value]:
                    del ends[value]
        if isinstance(bounds, NullBounds | FileBounds):
            self._alone[str(bounds)] += 1

    def faults(self, plan: Plan) -> Iterator[str]:
        """Yield in words where the pieces leave a gap or overlap."""
        expected = _find_expected(plan)
        for line in {**expected, **self._open}:
            start, end = expected.get(line, (_start_of(line), LAST))
            left = Counter(self._open.get(line, Counter()))
            left.subtract({start: 1, end: -1})
            gaps = [str(_to_line(value)) for value, number in left.items() if number < 0]
            twice = [str(_to_line(value)) for value, number in left.items() if number > 0]
            if gaps or twice:
                places = sorted({*gaps, *twice})[:3]
                yield f"they leave a gap or overlap at {', '.join(places)} of {_title(line)}"
        for text, number in self._alone.items():
            if number > 1:
                yield f"{number} of them hold {text}"

    def lacks_rows_without_key(self, plan: Plan) -> bool:
        """Whether the key may be NULL by the plan's columns, and no piece holds the rows where it is."""
        nullable = {column.name for column in plan.read.columns if column.nullable}
        lines = {name for line in self._open if line[0] == "key" for name in line[1:]}
        return bool(lines & nullable) and not any(text.endswith(" is NULL") for text in self._alone)


def _find_expected(plan: Plan) -> Mapping[Line, tuple[Hashable, Hashable]]:
    """Return start and end of each line that the plan itself names."""
    offsets, log = LogWindow.from_window(plan.read.window), ReplayWindow.from_window(plan.read.window)
    if offsets is not None:
        return {("offsets", partition): (start, end) for partition, start, end in offsets.pieces()}
    if log is not None:
        return {("log", log.stream): (log.start.at, log.end.at)}
    return {}


def _steps(bounds: Bounds) -> Iterator[tuple[Line, Hashable, Hashable]]:
    match bounds:
        case KeyBounds():
            start = FIRST if bounds.start is None else bounds.start
            yield ("key", *bounds.columns), start, LAST if bounds.end is None else bounds.end
        case BlockBounds():
            yield ("blocks", bounds.table), bounds.start, LAST if bounds.end is None else bounds.end
        case OffsetBounds():
            for partition, first, last in bounds.pieces:
                yield ("offsets", partition), first, last
        case LogBounds():
            yield ("log", bounds.stream), bounds.start.at, bounds.end.at


def _start_of(line: Line) -> Hashable:
    return (0, 0) if line[0] == "blocks" else FIRST


def _to_line(value: Hashable) -> Hashable:
    return f"({', '.join(map(str, value))})" if isinstance(value, tuple) else value


def _title(line: Line) -> str:
    kind, *names = line
    text = ", ".join(map(str, names))
    return {"key": f"key {text}", "blocks": f"table {text}", "offsets": f"partition {text}"}.get(
        str(kind), f"log {text}"
    )
