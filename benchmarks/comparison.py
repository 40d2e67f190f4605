"""What a benchmark compares: its sides, its servers, its goals, and the words for its figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.results import Goal
from benchmarks.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One benchmark."""

    module: str
    """Its name under ``benchmarks``, by which it is run."""
    heading: str
    """Its section of the page."""
    moved: str
    """What goes where, behind the number of rows."""
    stage: Callable[..., Stage]
    rows: int
    """Unless asked for otherwise."""
    sides: Mapping[str, str]
    """Titles by name, in the order of the first round."""
    parts: Mapping[str, str]
    """Titles of the columns of CPU time by part, see :class:`~benchmarks.results.Measurement`."""
    speed_against: str
    """Side that speeds are compared with."""
    cpu_against: str
    """Side that CPU times are compared with."""
    goals: tuple[Goal, ...]
    target: str
    """What a turn finds as its target."""
    check: str
    """By what source and target are compared."""
    ways: str
    """The sides, in Markdown, and what else is to be known of them."""
    ours: tuple[str, ...]
    """Sides that are this product."""
    steady: tuple[str, ...] = ()
    """Sides that copy a smaller table too, so that the cost of a further row is known without that of a start."""
    jars: tuple[str, ...] = ("postgres",)
    """Connectors whose versions are printed, as ``dev/artifacts.json`` groups them."""
    packages: tuple[str, ...] = ()
    """Python packages whose versions are printed, beside those of every benchmark."""
