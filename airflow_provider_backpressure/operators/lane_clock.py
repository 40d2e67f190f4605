"""What a lane needs of its task: a clock that stops with it, and the line that says how far the hydration is."""

import time
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_backpressure.core.clock import SystemClock
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.progress_line import line
from airflow_provider_backpressure.core.progress.statistics import total_progress
from airflow_provider_backpressure.exceptions import Transient

PROGRESS_SECONDS = 2.0
"""Least seconds between two progress lines."""


class LaneEnded(Transient):
    """Airflow ended the task; its ranges in flight were released."""


ENDED = (LaneEnded, AirflowTaskTimeout)
"""How Airflow ends a task. Its ``execution_timeout`` is raised anywhere in its work, by a signal handler too."""


class LaneClock(SystemClock):
    """Time for a lane; over when Airflow ends its task.

    Airflow calls ``on_kill`` within a signal handler, anywhere in the lane's work, where neither connection nor lock
    may be used. So the handler only ends the time, and the lane unwinds at its next look at the clock, within a second.
    """

    def __init__(self) -> None:
        self._over = False

    def end(self) -> None:
        """Let the next look raise :class:`LaneEnded`."""
        self._over = True

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        self._look()
        return super().monotonic()

    def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        super().sleep(seconds)
        self._look()

    def _look(self) -> None:
        if self._over:
            # Once: settling what is in flight takes time too.
            self._over = False
            raise LaneEnded("Airflow ended the task; its ranges in flight were released.")


@dataclass(kw_only=True)
class ProgressLog:
    """Writes the hydration's progress to the task's log after commits, not more often than every two seconds."""

    ledger: Ledger
    hydration_id: str
    log: Any
    """The task's logger."""
    unit: str
    """What is counted."""
    _next: float = field(default=0.0)

    def log_if_due(self) -> None:
        """Write a line if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_SECONDS
            self.write()

    def write(self) -> None:
        """Write a line."""
        progress = total_progress(self.ledger.statistics(self.hydration_id))
        self.log.info("%s", line(progress, self.ledger.rate(self.hydration_id), self.unit))
