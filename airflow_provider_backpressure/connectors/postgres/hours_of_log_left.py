"""For how many hours a PostgreSQL server can still keep the log of a slot, as the log has grown lately."""

import math
from collections import deque
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.health_signal_declarations import Figure, WalHeadroom, size
from airflow_provider_backpressure.core.poll_policy import Clock, SystemClock

SECONDS = 300.0
"""How far back the growth is looked at: checkpoints come in waves."""
HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class KeptLog:
    """What one look finds of the slots of hydrations in a database."""

    slot: str
    """The one that is furthest behind; empty where there is none."""
    held: float
    """Bytes of log that the server keeps for it."""
    safe: float | None
    """Bytes until the server gives a slot up; ``None`` where it never does."""
    written: float
    """Bytes that the server has ever written."""
    pid: int | None = None
    """The process whose open transaction holds most of it, although it is replayed; ``None``: none, or none is seen."""

    @property
    def note(self) -> str:
        """The slot, and what holds its log."""
        return f"{self.slot}, held by the open transaction of process {self.pid}" if self.pid else self.slot


@dataclass(kw_only=True)
class Forecast:
    """Remembers what was written when."""

    clock: Clock = field(default_factory=SystemClock)
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def take(self, kept: KeptLog) -> None:
        """Remember a look."""
        now = self.clock.monotonic()
        if self._samples and kept.written < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, kept.written))
        while len(self._samples) > 2 and self._samples[1][0] <= now - SECONDS:
            self._samples.popleft()

    def hours(self, kept: KeptLog, watched: WalHeadroom) -> Figure:
        """Return the hours that are left, infinite where nothing is kept, nothing is written, or no limit is known."""
        room = kept.safe if watched.limit_bytes is None else max(0.0, watched.limit_bytes - kept.held)
        if not kept.slot:
            return Figure(value=math.inf, note="no log is kept")
        if room is None:
            return Figure(value=math.inf, note=f"{size(kept.held)} are kept for {kept.slot}, without a limit")
        speed = self._measure_speed()
        note = f"{size(kept.held)} are kept for {kept.slot}, {size(room)} are left, {size(speed)}/s are written"
        if room <= 0:
            return Figure(value=0.0, note=note)
        return Figure(value=room / speed / HOUR if speed > 0 else math.inf, note=note)

    def _measure_speed(self) -> float:
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return (after - before) / (last - first) if last > first else 0.0
