"""A hydration at a glance: everything that its line in an overview shows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.gate.hydration import GateState, Hydration
from airflow_provider_backpressure.core.gate.hydration_state import State, state_of
from airflow_provider_backpressure.core.gate.queue import NOT_QUEUED, QueuePlace
from airflow_provider_backpressure.core.gate.signals import credits_taken, manual_pause, queue_place, sink_connections
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.core.progress.samples import Eta, eta
from airflow_provider_backpressure.core.progress.statistics import Progress
from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, bottleneck, unify_stages


@dataclass(frozen=True, kw_only=True)
class HydrationSummary:
    """One hydration, read once."""

    hydration: Hydration
    progress: Progress
    speed: float | None = None
    """Rows (or offsets) per second; ``None`` where unknown."""
    recent: Sequence[float] = ()
    """The same over successive steps of the last minutes: how far it spreads."""
    memory_used: int | None = None
    """Bytes of the fullest executor, as of the latest sample; ``None`` where they were not seen."""
    memory_limit: int | None = None
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
        return state_of(self.hydration, failed=self.failed, in_flight=self.in_flight, place=self.place)

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
        return eta(self.progress, self.speed, self.recent) if self.running and self.state is not State.FAILED else None

    @property
    def bottleneck(self) -> Stage | None:
        """The stage that holds the others up."""
        return bottleneck(self.flow) if self.running else None

    @property
    def reasons(self) -> list[str]:
        """Why nothing more is admitted; empty where the gate is open or nothing is left to be admitted."""
        if not self.running:
            return []
        return reasons(self.hydration, self)

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


def summarize(
    hydration: Hydration,
    gate: GateState,
    progress: Progress,
    *,
    speed: float | None = None,
    recent: Sequence[float] = (),
    failed: int = 0,
    flow: Flow | None = None,
    course: Course | None = None,
) -> HydrationSummary:
    """Return the state of a hydration by its gate."""
    return HydrationSummary(
        hydration=hydration,
        progress=progress,
        speed=speed,
        recent=recent,
        in_flight=gate.in_flight,
        failed=failed,
        place=gate.place,
        connections=gate.connections,
        connections_max=gate.connections_max,
        connections_before=gate.connections_before,
        flow=flow or {},
        course=course,
    )


def held_back(flow: Flow) -> str:
    """Return how much each stage is held back, and the one that holds the others up; empty where nothing is known."""
    told, found = unify_stages(flow), bottleneck(flow)
    levels = [f"{stage} {told[stage].level}" for stage in Stage if stage in told and told[stage].seconds]
    return ", ".join(levels) + (f"; the bottleneck is {found}" if found else "")


def reasons(hydration: Hydration, gate: "GateState | HydrationSummary") -> list[str]:
    """Return why nothing more is admitted: the ledger as it is now; measured signals and warnings as last seen."""
    now = [
        manual_pause(gate.paused_by, gate.paused_why),
        queue_place(gate.place),
        credits_taken(gate.in_flight, gate.credits),
        sink_connections(gate.connections, gate.connections_max, gate.connections_before),
    ]
    known = {signal.name for signal in now}
    seen = [
        signal["sentence"]
        for signal in (hydration.decision or {}).get("signals", ())
        if (signal["closed"] or signal.get("warning")) and signal["name"] not in known
    ]
    return [signal.sentence for signal in now if signal.closed] + seen
