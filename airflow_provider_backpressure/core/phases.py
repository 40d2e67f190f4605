"""The phases of a hydration's life, and the steps between them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_backpressure.exceptions import IllegalTransition


class Phase(StrEnum):
    """What a hydration is doing at the moment."""

    HYDRATION = "hydration"
    """The snapshot goes in."""
    STEADY_STATE = "steady_state"
    """The committed frontier has reached the snapshot's; increments follow."""
    REHYDRATION = "rehydration"
    """Trust in ledger or target was lost; the target is brought back to the frontier."""


LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.HYDRATION: frozenset({Phase.STEADY_STATE, Phase.REHYDRATION}),
    Phase.STEADY_STATE: frozenset({Phase.REHYDRATION}),
    Phase.REHYDRATION: frozenset({Phase.STEADY_STATE}),
}


def advance(phase: Phase, to: Phase) -> Phase:
    """Return ``to`` where the step is legal; :class:`IllegalTransition` otherwise."""
    if to not in LEGAL[phase]:
        raise IllegalTransition(f"A hydration cannot go from {phase} to {to}.")
    return to


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
