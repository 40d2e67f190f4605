"""What a task of a hydration does at the moment, as it reports that to the ledger with each heartbeat."""

import json
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_backpressure.core.json_codec import from_dict, to_json


class Step(StrEnum):
    """What the task works on."""

    PLANNING = "planning"
    RANGES = "ranges"
    """It drains ranges, or waits for the gate to do so."""
    VERIFYING = "verifying"


@dataclass(frozen=True, kw_only=True)
class Activity:
    """One report of a task."""

    step: Step
    lane: str = ""
    """The task instance: DAG, run, task and map index, as :func:`..snapshot.ranges.lane` names them."""
    try_number: int | None = None
    done: int | None = None
    """Ranges that are verified."""
    total: int | None = None
    """Ranges to be verified; ``None`` where the target is compared as a whole."""
    error: str = ""
    """Why the latest try has failed, where Airflow tries the task again. Shown to people: it holds no secret."""

    def to_json(self) -> str:
        """Return it as JSON."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Activity":
        """Read what :meth:`to_json` wrote."""
        return from_dict(cls, json.loads(text))
