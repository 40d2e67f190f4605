"""What planning returns: a plan with its verdict, or a preview of one before anything is written."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.ports import ExecutorEnvironment
from airflow_provider_backpressure.core.snapshot.plan import (
    Plan,
    Snapshot,
)
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, WriteSpec


class Verdict(Enum):
    """What a run of the DAG finds to do."""

    PLANNED = "planned"
    """A new plan was made."""
    RESUMED = "resumed"
    """The plan of an earlier run is not complete: its ranges continue."""
    UNCHANGED = "unchanged"
    """Everything is committed and the source has not moved: nothing to do."""
    MOVED = "moved"
    """Everything is committed but the source, declared static, holds other rows now, or another number of them."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A planner's answer."""

    verdict: Verdict
    hydration: Hydration
    """With this plan; its figures may be those of before the plan was made."""
    plan: Plan
    ranges: int
    """Ranges of the plan, in all."""
    note: str = ""
    """One sentence for the log."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a plan would be, before anything is written."""

    snapshot: Snapshot
    read: ReadSpec
    write: WriteSpec
    path: str
    range_rows: int
    executors: ExecutorEnvironment

    @property
    def keeps_bad(self) -> bool:
        """Whether records that cannot be taken apart go to the sink's quarantine; a transform would not know them."""
        return self.snapshot.consistency is Consistency.OFFSETS and self.write.quarantine is not None

    def to_json(self, *, target: str, mode: Mode, credits: int) -> dict[str, Any]:
        """Return the facts, fit for JSON. ``None`` is what the source does not know."""
        snapshot = self.snapshot
        return {
            "source": snapshot.source_identity,
            "target": target,
            "mode": mode.value,
            "consistency": snapshot.consistency.value,
            "rows": snapshot.total,
            "exact": snapshot.total_exact,
            "key": ", ".join(snapshot.key),
            "columns": len(snapshot.columns),
            "range_rows": self.range_rows,
            "ranges": None if snapshot.total is None else math.ceil(snapshot.total / self.range_rows),
            "path": self.path,
            "credits": credits,
            "python": self.executors.python,
        }
