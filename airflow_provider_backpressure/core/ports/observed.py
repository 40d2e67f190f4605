"""What the ledger keeps of sources and of time: frontiers, the course beside them, samples."""

from collections.abc import Collection, Mapping
from typing import Protocol

from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.alerts import Notice
from airflow_provider_backpressure.core.progress.lag import Course, Sight
from airflow_provider_backpressure.core.progress.samples import Sample
from airflow_provider_backpressure.core.progress.source_position import Seen, Upstream


class ObservedReader(Protocol):
    """Reading it."""

    def upstream(self, source_identity: str) -> Seen | None:
        """Return how far a source was seen to be, whichever hydration asked; ``None`` before the first time."""
        ...

    def course(self, hydration_id: str) -> Course | None:
        """Return rates and verdict as of the latest sight; ``None`` before the first one."""
        ...

    def samples(self, hydration_id: str, *, seconds: float) -> list[Sample]:
        """Return the current plan's samples of the last seconds, the oldest first."""
        ...


class Observed(ObservedReader, Protocol):
    """Writing it."""

    def claim_look(self, source_identity: str, *, seconds: float) -> bool:
        """Whether the caller is to ask the source now: nobody has claimed that in the last seconds."""
        ...

    def keep_upstream(self, source_identity: str, upstream: Upstream) -> None:
        """Keep how far a source is."""
        ...

    def record_sight(self, hydration_id: str, sight: Sight, *, least_seconds: float) -> Course:
        """Keep what a look has found and return the course after it; the same where the sight is no newer.

        The statistics get its frontiers and rates, and a sample is kept.
        """
        ...

    def record_memory(self, hydration_id: str, reading: MemoryReading) -> None:
        """Keep a sample with the executors' memory."""
        ...

    def note(self, hydration_id: str, present: Mapping[str, float], *, looked: Collection[str]) -> Notice:
        """Store the conditions, and return the alerts that are new; see ``core.progress.alerts.noted``."""
        ...

    def prune_samples(self, hydration_id: str, *, seconds: float, rows: int, most: int = 1000) -> int:
        """Forget samples that are older, or more, than is kept, ``most`` at a time; return how many went."""
        ...
