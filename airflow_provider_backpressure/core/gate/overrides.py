"""Manual control: what may be changed while a hydration runs, and the history of it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from airflow_provider_backpressure.exceptions import InvalidDeclaration

AS_DECLARED = 0
"""Takes a person's figure back: what the DAG declares holds again."""
MOST_PRIORITY = 1_000
MOST_CREDITS = 10_000
MOST_ROWS = 1_000_000_000_000


class Shared(StrEnum):
    """What several hydrations share, and may have a limit."""

    HYDRATIONS = "hydrations"
    """Sources that hydrate at once on a Spark cluster; named by the cluster's connection."""
    CONNECTIONS = "connections"
    """Ranges in flight into one server of sinks; named by its address."""
    MEMORY = "memory"
    """Executor memory reserved on a Spark cluster; its row is the lock under which it is counted."""
    PUSH = "push"
    """Whether changes are published, and subscribed to: 1 or 0, by the names of ``core.push.switches.Switch``."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Figures of a hydration to be changed; ``None`` leaves one as it is. Raises :class:`InvalidDeclaration`."""

    credits: int | None = None
    """Most ranges in flight, or :data:`AS_DECLARED`."""
    range_rows: int | None = None
    """Most rows in a range from now on, or :data:`AS_DECLARED`."""
    priority: int | None = None
    """Its place in the queue: a higher one goes first; 0 unless changed."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name, most in (("credits", MOST_CREDITS), ("range_rows", MOST_ROWS)):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidDeclaration(f"{name} must be at least 1, or 0 for what the DAG declares, not {value}.")
            if value is not None and value > most:
                raise InvalidDeclaration(f"{name} must be at most {most:,}, not {value:,}.")
        if self.priority is not None and abs(self.priority) > MOST_PRIORITY:
            raise InvalidDeclaration(f"A priority lies between -{MOST_PRIORITY} and {MOST_PRIORITY}: {self.priority}.")
        if not self.values:
            raise InvalidDeclaration("Nothing to change: name credits, range_rows or priority.")

    @property
    def values(self) -> dict[str, int]:
        """What is changed."""
        every = {"credits": self.credits, "range_rows": self.range_rows, "priority": self.priority}
        return {name: value for name, value in every.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Control:
    """One act of a person."""

    hydration_id: str
    """Empty where it was on what hydrations share."""
    at: datetime
    who: str
    action: str
    why: str | None
    values: dict[str, Any]
    """The figures after it."""


class Steering(Protocol):
    """Steering in the ledger. Each act leaves who, when and why, and binds at the next look at the gate."""

    def pause(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """Close the gate manually; ranges in flight are still committed."""
        ...

    def resume(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """Resume a paused hydration."""
        ...

    def steer(self, hydration_id: str, change: Change, *, who: str, why: str | None = None) -> None:
        """Change figures: a raised maximum of credits is given at once, a lowered one binds at the next admission."""
        ...

    def share(self, kind: Shared, name: str, most: int, *, who: str, why: str | None = None) -> None:
        """Limit what several hydrations share; what runs above a lowered limit continues to its end."""
        ...

    def get_shared(self, kind: Shared, name: str) -> int | None:
        """Return a limit as it holds now; ``None`` where there is none."""
        ...

    def resize(self, hydration_id: str, slots: int) -> None:
        """Record how many tasks the cluster runs at once now; credits follow. No person did it: not in the history."""
        ...

    def skip(self, plan_id: str, seq: int, *, who: str, why: str) -> bool:
        """Revoke a planned or failed range for good; ``False`` where it is neither. The sink has to refuse it first."""
        ...

    def controls(self, hydration_id: str | None = None, *, limit: int = 100) -> list[Control]:
        """Return the latest acts, on one hydration or on all, the newest first."""
        ...
