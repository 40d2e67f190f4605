"""Samples of a hydration over time, and what its recent speed says about its end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

PLAN_WORKER = "plan"
"""Worker id of the row that holds the plan's total, the frontiers, and what earlier plans have received."""


@dataclass(frozen=True, kw_only=True)
class WorkerStatistics:
    """What one worker did for a hydration; summed over workers it is the source's own number.

    Counts are rows (PostgreSQL, MySQL) or offsets (Kafka), unsigned 64-bit. ``None`` is unknown, never 0 for unknown.
    """

    hydration_id: str
    worker_id: str
    snapshot_total: int | None = None
    snapshot_total_exact: bool = True
    snapshot_progress: int = 0
    """Committed by the sink."""
    snapshot_read: int = 0
    """Read from the source, committed or in flight."""
    upstream_rate: float | None = None
    """Offsets, bytes of log or transactions per second; on the plan's row only, as the next three."""
    process_rate: float | None = None
    offset_known: int | None = None
    """The upstream frontier, summed over its keys."""
    offset_committed: int | None = None
    messages_received: int = 0
    """Rows; over all plans, so they never go back."""
    bytes_received: int = 0
    updated_at: datetime | None = None


_NOTHING = WorkerStatistics(hydration_id="", worker_id=PLAN_WORKER)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A source's numbers, over all its workers."""

    total: int | None
    total_exact: bool
    committed: int
    read: int
    messages: int
    """Rows received, over all plans."""
    bytes: int
    upstream_rate: float | None = None
    process_rate: float | None = None
    offset_known: int | None = None
    offset_committed: int | None = None

    @property
    def left(self) -> int | None:
        """What is not committed yet; ``None`` while the total is unknown."""
        return None if self.total is None else max(0, self.total - self.committed)

    @property
    def percent(self) -> float | None:
        """Committed share, a lower bound, 0 to 100; ``None`` while the total is unknown."""
        if self.total is None:
            return None
        return 100.0 if self.total == 0 else min(100.0, 100.0 * self.committed / self.total)


def total_progress(workers: list[WorkerStatistics]) -> Progress:
    """Return the sum over workers."""
    plan = next((worker for worker in workers if worker.worker_id == PLAN_WORKER), _NOTHING)
    totals = [worker.snapshot_total for worker in workers if worker.snapshot_total is not None]
    return Progress(
        total=sum(totals) if totals else None,
        total_exact=bool(totals) and all(worker.snapshot_total_exact for worker in workers),
        committed=sum(worker.snapshot_progress for worker in workers),
        read=sum(worker.snapshot_read for worker in workers),
        messages=sum(worker.messages_received for worker in workers),
        bytes=sum(worker.bytes_received for worker in workers),
        upstream_rate=plan.upstream_rate,
        process_rate=plan.process_rate,
        offset_known=plan.offset_known,
        offset_committed=plan.offset_committed,
    )


def rows_received(workers: list[WorkerStatistics]) -> int:
    """Return the rows that the sink has committed under the current plan."""
    return sum(worker.messages_received for worker in workers if worker.worker_id != PLAN_WORKER)


STEP_SECONDS = 10
"""Least seconds between two samples that a recent rate is taken from; of so many seconds the first sample counts."""
RECENT_SECONDS = 300.0
"""How far back recent rates go: over minutes one sees how far they spread."""
LEAST_STEPS = 3
"""Recent rates that an interval needs."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A hydration at one moment, on the ledger's clock. ``None`` is unknown."""

    at: datetime
    committed: int
    """Rows or offsets."""
    read: int = 0
    in_flight: int = 0
    credits: int = 0
    pressure: float | None = None
    memory_used: int | None = None
    """Bytes, of the fullest executor."""
    memory_limit: int | None = None
    offset_known: int | None = None
    offset_committed: int | None = None
    upstream_rate: float | None = None
    process_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Eta:
    """Seconds until the snapshot is complete."""

    seconds: float
    soonest: float | None = None
    """At the mean of recent rates and their standard deviation; ``None`` with too few of them."""
    latest: float | None = None
    """At their mean less their standard deviation; infinite where that is a standstill."""


def step_of(at: datetime) -> int:
    """Return the number of the step that a moment is in, the same in every process."""
    return math.floor(at.timestamp()) // STEP_SECONDS


def recent_rates(samples: Sequence[Sample]) -> list[float]:
    """Return rows per second over successive steps; samples ascend in time.

    The first sample of each step is enough: a ledger gives only those where it reports on many hydrations.
    """
    firsts: dict[int, Sample] = {}
    for sample in samples:
        firsts.setdefault(step_of(sample.at), sample)
    found: list[float] = []
    base = samples[0] if samples else None
    for sample in firsts.values():
        assert base is not None, "there is one"
        seconds = (sample.at - base.at).total_seconds()
        if seconds >= STEP_SECONDS:
            found.append(max(0, sample.committed - base.committed) / seconds)
            base = sample
    return found


def eta(progress: Progress, rate: float | None, recent: Sequence[float]) -> Eta | None:
    """Return when the total is committed, at ``rate`` rows per second; ``None`` where unknown, or nothing is left."""
    left = progress.left
    if not left or not rate or rate <= 0:
        return None
    if len(recent) < LEAST_STEPS:
        return Eta(seconds=left / rate)
    mean = sum(recent) / len(recent)
    spread = math.sqrt(sum((each - mean) ** 2 for each in recent) / len(recent))
    slow, fast = mean - spread, mean + spread
    seconds = left / rate
    # The rate is that of the last minute, the spread that of minutes: the interval holds both.
    soonest = min(seconds, left / fast if fast > 0 else seconds)
    return Eta(seconds=seconds, soonest=soonest, latest=max(seconds, left / slow) if slow > 0 else math.inf)


WIDTH = 24


def bar(percent: float, width: int = WIDTH) -> str:
    """Return a bar of ``width`` characters; it is full at 100 % only."""
    done = int(width * max(0.0, min(100.0, percent)) / 100.0)
    return "#" * done + "-" * (width - done)


def duration(seconds: float) -> str:
    """Return ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def arrival(found: Eta) -> str:
    """Return the time that is left, with its interval where recent rates give one: ``2:10 (1:50 to 3:00)``."""
    if found.soonest is None or found.latest is None:
        return duration(found.seconds)
    latest = "never" if math.isinf(found.latest) else duration(found.latest)
    return f"{duration(found.seconds)} ({duration(found.soonest)} to {latest})"


def line(progress: Progress, rows_per_second: float | None, unit: str = "rows", *, recent: Sequence[float] = ()) -> str:
    """Return one line of text; what is not known yet is left out or called unknown, never shown as 0.

    ``unit``: what is counted, see :attr:`Plan.unit`. ``recent``: rates over which the time that is left spreads.
    """
    percent = progress.percent
    if percent is None:
        parts = [f"{progress.committed:,} {unit} of an unknown total"]
    else:
        about = "" if progress.total_exact else "about "
        # Rounded down: 100.0 % is shown when everything is committed, not before.
        shown = int(percent * 10) / 10
        parts = [f"[{bar(percent)}] {shown:5.1f} %", f"{progress.committed:,} of {about}{progress.total:,} {unit}"]
    if rows_per_second is not None:
        parts.append(f"{rows_per_second:,.0f} {unit}/s")
        left = eta(progress, rows_per_second, recent)
        if left is not None:
            parts.append(f"ETA {arrival(left)}")
    return "  ".join(parts)
