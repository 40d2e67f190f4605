"""New data of a source that its sink does not have, and when to report it once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.progress.lag import Course

AGAIN_SECONDS = 900.0
"""After what was said has led to nothing, for so long nothing is said again."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """What is there to be brought."""

    hydration: Hydration | None
    """``None`` where nothing was ever planned."""
    course: Course | None

    @property
    def any(self) -> bool:
        """Whether a run would have something to do: also where the snapshot is not in yet."""
        return self.course is None or self.course.unread is None or self.course.unread > 0

    @property
    def known(self) -> Mapping[Any, int] | None:
        """How far the source is."""
        return self.course.latest.known if self.course else None

    @property
    def done(self) -> tuple[Any, ...]:
        """What changes when a run has brought something: plan and committed frontier."""
        plan = self.hydration.plan if self.hydration else None
        return plan.plan_id if plan else None, self.course.latest.committed if self.course else None

    def to_json(self) -> dict[str, Any]:
        """Return what the event of it carries."""
        hydration, course = self.hydration, self.course
        return {
            "hydration_id": hydration.id if hydration else None,
            "lag": course.lag if course else None,
            "unit": course.latest.unit.value if course else None,
            "upstream": dict(course.latest.known) if course else None,
        }


@dataclass(kw_only=True)
class Debounce:
    """Reports new data once, and not again before a run has brought it."""

    again: float = AGAIN_SECONDS
    _told: Unread | None = None
    _at: float = 0.0

    def due(self, unread: Unread, *, now: float) -> bool:
        """Whether it is to be said now, seconds by a monotonic clock. No run is under way, as the caller knows."""
        if not unread.any:
            return False
        if self._told is not None and self._told.done == unread.done:
            nothing_new = unread.known is not None and unread.known == self._told.known
            if nothing_new or now - self._at < self.again:
                return False
        self._told, self._at = unread, now
        return True
