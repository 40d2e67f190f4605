"""The health of a source or sink in memory."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from airflow_provider_backpressure.core.health_signals import Figure, Watched
from airflow_provider_backpressure.exceptions import BackpressureError


@dataclass(kw_only=True)
class MemoryHealth:
    """Sees what a test says: a figure or an error by the name of each signal; without one it is 0."""

    figures: dict[str, float | BackpressureError]
    watched: Sequence[Watched]
    closed: bool = False

    @property
    def key(self) -> Hashable:
        """See ``Health.key``."""
        return id(self.figures)

    def look(self) -> dict[Watched, Figure | BackpressureError]:
        """See ``Health.look``."""
        found = {each: self.figures.get(each.name, 0.0) for each in self.watched}
        return {
            each: value if isinstance(value, BackpressureError) else Figure(value=value)
            for each, value in found.items()
        }

    def close(self) -> None:
        """See ``Health.close``."""
        self.closed = True
