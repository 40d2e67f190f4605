"""The phases of a hydration's life, and the steps between them."""

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
    Phase.HYDRATION: frozenset({Phase.STEADY_STATE}),
    Phase.STEADY_STATE: frozenset({Phase.REHYDRATION}),
    Phase.REHYDRATION: frozenset({Phase.STEADY_STATE}),
}


def advance(phase: Phase, to: Phase) -> Phase:
    """Return ``to`` where the step is legal; :class:`IllegalTransition` otherwise."""
    if to not in LEGAL[phase]:
        raise IllegalTransition(f"A hydration cannot go from {phase} to {to}.")
    return to
