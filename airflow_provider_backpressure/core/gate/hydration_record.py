"""A hydration as the ledger has it, and the state of its gate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_provider_backpressure.core.gate.cluster_queue import NOT_QUEUED, QueuePlace
from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.core.gate.task_activity import Activity
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord


class Phase(StrEnum):
    """What a hydration is doing at the moment."""

    HYDRATION = "hydration"
    """The snapshot goes in."""
    STEADY_STATE = "steady_state"
    """The committed frontier has reached the snapshot's; increments follow."""
    REHYDRATION = "rehydration"
    """Trust in ledger or target was lost; the target is brought back to the frontier."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A time that a hydration spent in one phase. Times are aware UTC datetimes by the ledger's clock."""

    phase: Phase
    started_at: datetime
    ended_at: datetime | None = None
    """``None`` while it lasts."""

    @property
    def seconds(self) -> float | None:
        """How long it took; ``None`` until it ends."""
        return None if self.ended_at is None else (self.ended_at - self.started_at).total_seconds()


def latency(spans: Iterable[Span], phase: Phase) -> float | None:
    """Return the seconds that the latest time in a phase took; ``None`` until it ends, and where there was none."""
    return next((span.seconds for span in reversed(list(spans)) if span.phase is phase), None)


@dataclass(frozen=True, kw_only=True)
class Hydration:
    """One source going into one sink in one environment. Times are aware UTC datetimes by the ledger's clock."""

    id: str
    """32 hex digits."""
    environment: str
    source_identity: str
    sink_identity: str
    owner: str
    """The DAG (or command) that may run it; a second one is refused by name."""
    cluster: str
    """Connection id of its Spark cluster."""
    phase: Phase
    plan: Plan | None
    holder: str | None
    """The run that has the hydration for itself; runs of one hydration take turns. ``None`` between them."""
    credits: int
    credits_max: int
    """The maximum that holds."""
    credits_declared: int
    credits_set: int | None
    """A person's maximum, which goes before what is declared."""
    range_rows_set: int | None
    """A person's bound of the ranges that are submitted from now on."""
    priority: int
    """In the queue of its cluster; a higher one goes first."""
    slots: int | None
    """Tasks that its cluster runs at once, as last seen."""
    sink_server: str
    """Address of the server that its sink shares with others."""
    paused_by: str | None
    paused_why: str | None
    decision: Mapping[str, Any] | None
    """The gate's last recorded decision: ``{"open": …, "pressure": …, "signals": […]}``."""
    created_at: datetime
    updated_at: datetime
    hydrated_at: datetime | None
    verified: bool
    """Whether what was planned last was verified, and no range was opened again since."""
    failure: str | None = None
    """Why its latest task has failed; ``None`` once a task works on it again."""
    failed_at: datetime | None = None
    declaration: str | None = None
    """What it was declared to do when it was planned last, as :meth:`Ledger.keep_declaration` was given it."""
    activity: Activity | None = None
    """What its latest task has reported; ``None`` before the first heartbeat."""
    heard_at: datetime | None = None
    """When a task was heard of last."""

    @property
    def restarted_by(self) -> str:
        """The run that asked for a new plan last; empty where none has."""
        return self.plan.restarted_by if self.plan is not None else ""


@dataclass(frozen=True, kw_only=True)
class GateState:
    """What the ledger knows about a hydration's gate at one moment, in one read."""

    phase: Phase
    place: QueuePlace = NOT_QUEUED
    """In the queue of its cluster."""
    credits: int
    slots: int | None = None
    in_flight: int
    """Ranges that hold a credit."""
    waiting: int
    """1 where a planned range is left, otherwise 0: a million of them need not be counted."""
    reserved_bytes: int
    """Executor memory reserved by every range in flight on the cluster, whosever it is."""
    largest_bytes: int = 0
    """The most that one of them has reserved."""
    connections: int = 0
    """Ranges in flight into the sink's server, whosever they are."""
    connections_max: int | None = None
    """Most of them; ``None`` without a limit."""
    connections_before: int = 0
    """Hydrations for which the next ones are: they wait longer, or have a higher priority."""
    oldest_seconds: float | None
    """Age of the oldest range in flight."""
    commit_seconds: float | None
    """Moving mean of the time from admission to commit; ``None`` before the first."""
    range_memory_bytes: int | None
    """What a range takes of an executor, learned from finished ones; ``None`` before the first."""
    range_rows: int | None = None
    """What a person has set for the rows of a range."""
    paused_by: str | None
    paused_why: str | None
    memory_closed: bool
    """Whether the last recorded decision was closed by live memory (for its hysteresis)."""
    number: int = 0
    """Of the latest change of the gate; see ``core.gate.gate_event``."""


@dataclass(frozen=True, kw_only=True)
class RangeCounts:
    """Ranges of a plan by state."""

    planned: int = 0
    admitted: int = 0
    committed: int = 0
    failed: int = 0
    revoked: int = 0

    @property
    def open(self) -> int:
        """Ranges that still have to be committed."""
        return self.planned + self.admitted + self.failed

    @property
    def total(self) -> int:
        """All of them."""
        return self.open + self.committed + self.revoked


@dataclass(frozen=True, kw_only=True)
class Permit:
    """The right to run one attempt of one range, already written down in the ledger."""

    range: RangeRecord


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """No permit now, with every reason. A value, not an error."""

    decision: Decision
    exhausted: bool = False
    """No range is left to be admitted: waiting for the gate would be in vain."""
