"""What pages ask of the ledger: many hydrations in a few statements, and the course of one in bounded answers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from airflow_provider_backpressure.core.progress.samples import Sample
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.stage_metrics import Flow, total


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A piece of a plan on its map: one range, or some that follow each other."""

    first: int
    """Sequence number."""
    last: int
    ranges: int
    states: dict[RangeState, int]
    """Ranges by state; states that none is in are left out."""
    attempts: int
    """The most of one range."""
    seconds: float | None
    """The longest time from admission to commit; ``None`` before the first commit."""


@dataclass(frozen=True, kw_only=True)
class FlowAt:
    """What the stages did in a stretch of time that ended at ``at``."""

    at: datetime
    flow: Flow


def stretches(looks: Sequence[tuple[datetime, Flow]], *, seconds: float, most: int) -> list[FlowAt]:
    """Put looks of the last ``seconds``, which ascend in time, together in at most ``most`` stretches of equal length.

    Stretches without samples are left out.
    """
    if not looks:
        return []
    end, length = looks[-1][0], timedelta(seconds=seconds / most)
    found: dict[int, list[tuple[datetime, Flow]]] = {}
    for at, flow in looks:
        found.setdefault(min(most - 1, (end - at) // length), []).append((at, flow))
    return [FlowAt(at=part[-1][0], flow=total(*(flow for _, flow in part))) for part in found.values()]


class Views(Protocol):
    """Reading the ledger for people. Answers are bounded, and so is the number of statements."""

    def owners(self) -> set[str]:
        """Return who has hydrations."""
        ...

    def find_owners(self, ids: Collection[str]) -> dict[str, str]:
        """Return whose each of these hydrations is; those that there are not are left out."""
        ...

    def clusters(self) -> dict[str, set[str]]:
        """Return who has hydrations on each Spark cluster."""
        ...

    def glances(
        self, *, owners: Collection[str] | None = None, ids: Collection[str] | None = None, limit: int, offset: int = 0
    ) -> list[HydrationSummary]:
        """Return the state of hydrations: all, those of some owners, or those of some ids.

        Those that hydrate come first, and of these the latest made.
        """
        ...

    def how_many(self, *, owners: Collection[str]) -> int:
        """Count the hydrations of some owners."""
        ...

    def history(self, hydration_id: str, *, seconds: float, most: int = 600) -> list[Sample]:
        """Return the current plan's samples of the last seconds, the oldest first.

        More than ``most`` are put together, some that follow each other at a time: the highest of each figure.
        """
        ...

    def flows(self, hydration_id: str, *, seconds: float, most: int = 120) -> list[FlowAt]:
        """Return what the stages did in the last seconds, in at most ``most`` stretches, the oldest first."""
        ...

    def tiles(self, plan_id: str, *, most: int = 2_000) -> list[Tile]:
        """Return the map of a plan's ranges in at most ``most`` tiles."""
        ...
