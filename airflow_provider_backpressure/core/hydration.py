"""A hydration as the ledger has it, and the state of its gate."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.ranges import RangeRecord
from airflow_provider_backpressure.core.signals import Decision
from airflow_provider_backpressure.core.snapshot import Plan


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
    paused_by: str | None
    paused_why: str | None
    decision: Mapping[str, Any] | None
    """The gate's last recorded decision: ``{"open": …, "pressure": …, "signals": […]}``."""
    created_at: datetime
    updated_at: datetime
    hydrated_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class GateState:
    """What the ledger knows about a hydration's gate at one moment, in one read."""

    phase: Phase
    credits: int
    in_flight: int
    """Ranges that hold a credit."""
    waiting: int
    """1 where a planned range is left, else 0: a million of them need not be counted."""
    reserved_bytes: int
    """Executor memory reserved by ranges in flight."""
    oldest_seconds: float | None
    """Age of the oldest range in flight."""
    commit_seconds: float | None
    """Moving mean of the time from admission to commit; ``None`` before the first."""
    range_memory_bytes: int | None
    """What a range takes of an executor, learned from finished ones; ``None`` before the first."""
    paused_by: str | None
    paused_why: str | None
    memory_closed: bool
    """Whether the last recorded decision was closed by live memory (for its hysteresis)."""


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
