"""A hydration at a glance: everything that its line in an overview shows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from airflow_provider_backpressure.core.gate.cluster_queue import NOT_QUEUED, QueuePlace
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase, Span
from airflow_provider_backpressure.core.gate.signals import (
    CONNECTIONS,
    Signal,
    credits_taken,
    manual_pause,
    queue_place,
    sink_connections,
)
from airflow_provider_backpressure.core.progress.bottleneck import find_bottleneck, find_level
from airflow_provider_backpressure.core.progress.displayed_state import MOVING, State, derive_state, describe_state
from airflow_provider_backpressure.core.progress.lag import Course, Verdict
from airflow_provider_backpressure.core.progress.rates_and_eta import Eta, Progress, Sample, eta
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.topic_offsets import Frontier, difference, meet
from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, total, unify_stages


@dataclass(frozen=True, kw_only=True)
class HydrationSummary:
    """One hydration, read once."""

    hydration: Hydration
    progress: Progress
    read_at: datetime
    """When it was read, on the ledger's clock."""
    speed: float | None = None
    """Rows (or offsets) per second; ``None`` where unknown."""
    recent: Sequence[float] = ()
    """The same over successive steps of the last minutes: how far it spreads."""
    memory_used: int | None = None
    """Bytes of the fullest executor, as of the latest sample; ``None`` where they were not seen."""
    memory_limit: int | None = None
    span: Span | None = None
    """The latest time in which a snapshot went in, or goes in."""
    starts_in_seconds: float | None = None
    """Expected, of a hydration that waits in its cluster's queue; ``None`` where unknown."""
    in_flight: int = 0
    """Ranges that hold a credit."""
    failed: int = 0
    """Ranges of the plan that have failed for good."""
    place: QueuePlace = NOT_QUEUED
    connections: int = 0
    """Ranges in flight into the sink's server, whosever they are."""
    connections_max: int | None = None
    connections_before: int = 0
    """Hydrations for which the next ones are."""
    flow: Flow = field(default_factory=dict)
    """What the stages did in the last minute."""
    course: Course | None = None
    """Rates and verdict beside the source; ``None`` before the source was looked at."""

    @property
    def running(self) -> bool:
        """Whether a snapshot goes in."""
        return self.hydration.phase is not Phase.STEADY_STATE

    @property
    def state(self) -> State:
        """What it does, as it is shown."""
        return derive_state(self)

    @property
    def state_note(self) -> str:
        """What the state's name leaves open, in a few words."""
        return describe_state(self, self.state, lag_age_seconds=self.lag_age_seconds)

    @property
    def silent_seconds(self) -> float:
        """Seconds since a task of it was heard of."""
        # A hydration that an earlier release has left has no heartbeats.
        heard = self.hydration.heard_at or self.hydration.updated_at
        return max(0.0, (self.read_at - heard).total_seconds())

    @property
    def lag_age_seconds(self) -> float | None:
        """Seconds since the source was looked at; ``None`` where it never was."""
        return None if self.course is None else max(0.0, (self.read_at - self.course.latest.at).total_seconds())

    @property
    def started_at(self) -> datetime | None:
        """When the latest snapshot was begun; ``None`` before the first."""
        return self.span.started_at if self.span and self.state is not State.NOT_BEGUN else None

    @property
    def duration_seconds(self) -> float | None:
        """Seconds from there to its end, to its failure, or to now."""
        if self.span is None or self.started_at is None:
            return None
        ends = {State.FAILED: self.hydration.failed_at, State.STALE: self.hydration.heard_at}
        end = self.span.ended_at or ends.get(self.state) or self.read_at
        return round(max(0.0, (end - self.started_at).total_seconds()), 1)

    @property
    def moving(self) -> bool:
        """Whether ranges are moved, so that rate and memory are of now."""
        return self.running and (self.state in MOVING or (self.state is State.PAUSED and self.in_flight > 0))

    @property
    def unit(self) -> str:
        """What is counted of the snapshot."""
        return self.hydration.plan.unit if self.hydration.plan else "rows"

    @property
    def percent(self) -> float | None:
        """Committed share, 0 to 100, rounded down to a tenth: 100 is shown when everything is in, not before."""
        percent = self.progress.percent
        return None if percent is None else int(percent * 10) / 10

    @property
    def eta(self) -> Eta | None:
        """When the snapshot is complete, with an interval by recent rates; ``None`` where unknown."""
        return eta(self.progress, self.speed, self.recent) if self.running and self.state in MOVING else None

    @property
    def bottleneck(self) -> Stage | None:
        """The stage that holds the others up."""
        return find_bottleneck(self.flow) if self.moving else None

    @property
    def reasons(self) -> list[str]:
        """Why nothing more is admitted, and what is warned of; empty where nothing is left to be admitted."""
        return self._reasons(warnings=True)

    @property
    def open(self) -> bool:
        """Whether the gate admits, as far as it was seen. A warning closes nothing."""
        return not self._reasons(warnings=False)

    def _reasons(self, *, warnings: bool) -> list[str]:
        if not self.running:
            return []
        known = self._known
        # What was measured for the latest decision says nothing once no range is moved: it is as old as that.
        seen = self._seen(known, warnings=warnings) if self.moving else []
        return [signal.sentence for signal in known if signal.closed] + seen

    @property
    def signals(self) -> list[dict[str, Any]]:
        """The signals of the latest decision, those that the ledger knows as they are now; none where none is moved."""
        if not self.moving:
            return []
        now = {signal.name: signal.to_json() for signal in self._known}
        return [now.get(signal["name"], signal) for signal in (self.hydration.decision or {}).get("signals", ())]

    @property
    def throttles(self) -> list[str]:
        """What keeps the next range back, beside a person, the queue, and credits that all are in use."""
        known, open = self._known, (self.hydration.decision or {}).get("open", True)
        servers = [signal.sentence for signal in known if signal.name == CONNECTIONS and signal.closed]
        return servers + ([] if open else self._seen(known, warnings=False))

    @property
    def _known(self) -> list[Signal]:
        """Return the signals that the ledger knows by itself, as they are now."""
        return [
            manual_pause(self.paused_by, self.paused_why),
            queue_place(self.place),
            credits_taken(self.in_flight, self.credits),
            sink_connections(self.connections, self.connections_max, self.connections_before),
        ]

    def _seen(self, known: Sequence[Signal], *, warnings: bool) -> list[str]:
        """Return the sentences of measured signals that close the gate, or warn, as they were seen last."""
        names = {signal.name for signal in known}
        return [
            signal["sentence"]
            for signal in (self.hydration.decision or {}).get("signals", ())
            if (signal["closed"] or (warnings and signal.get("warning"))) and signal["name"] not in names
        ]

    @property
    def credits(self) -> int:
        """Most ranges in flight at the moment."""
        return self.hydration.credits

    @property
    def paused_by(self) -> str | None:
        """Who has closed the gate manually."""
        return self.hydration.paused_by

    @property
    def paused_why(self) -> str | None:
        """Why."""
        return self.hydration.paused_why


def held_back(flow: Flow) -> str:
    """Return how much each stage is held back, and the one that holds the others up; empty where nothing is known."""
    spent, found = unify_stages(flow), find_bottleneck(flow)
    levels = [f"{stage} {find_level(spent[stage])}" for stage in Stage if stage in spent and spent[stage].seconds]
    return ", ".join(levels) + (f"; the bottleneck is {found}" if found else "")


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


@dataclass(frozen=True, kw_only=True)
class SourceTotal:
    """What the tables of a source come to."""

    tables: int
    progress: Progress
    known: Frontier | None
    """How far the source is, as it was seen last."""
    committed: Frontier | None
    """What every table has reached; ``None`` while that is not known of one."""
    verdict: Verdict

    follows: bool = True
    """Whether some table follows the source; none of a snapshot's is behind it."""

    @property
    def lag(self) -> int | None:
        """What the source has and some table has not; ``None`` where none follows the source."""
        if self.known is None or self.committed is None or not self.follows:
            return None
        return difference(self.known, self.committed)


def sum_tables(parts: Sequence[tuple[Progress, Course | None]]) -> SourceTotal:
    """Return several tables of one source as one."""
    courses = [course for _, course in parts if course is not None]
    latest = max((course.latest for course in courses), key=lambda sight: sight.at, default=None)
    frontiers = [course.latest.committed for course in courses if course.latest.committed is not None]
    return SourceTotal(
        tables=len(parts),
        progress=_sum([progress for progress, _ in parts]),
        known=latest.known if latest else None,
        committed=meet(frontiers) if frontiers and len(frontiers) == len(parts) else None,
        follows=any(course.latest.follows for course in courses),
        verdict=min((course.verdict for course in courses), key=WORST.index, default=Verdict.UNKNOWN),
    )


WORST = (Verdict.NOT_KEEPING_UP, Verdict.UNKNOWN, Verdict.IDLE, Verdict.KEEPING_UP, Verdict.CAUGHT_UP)
"""A source is as well off as its worst table."""


def _sum(parts: Sequence[Progress]) -> Progress:
    """Return the sum; a total that is unknown of one table is unknown of all."""
    totals = [part.total for part in parts if part.total is not None]
    return Progress(
        total=sum(totals) if totals and len(totals) == len(parts) else None,
        total_exact=all(part.total_exact for part in parts),
        committed=sum(part.committed for part in parts),
        read=sum(part.read for part in parts),
        messages=sum(part.messages for part in parts),
        bytes=sum(part.bytes for part in parts),
    )
