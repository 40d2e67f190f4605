"""The state of a hydration as values: a summary, and its course of the last minutes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_backpressure.cli.command import SHOWN
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration import Hydration, Phase, RangeCounts, Span, latency
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.progress.lag import catch_up
from airflow_provider_backpressure.core.progress.samples import RECENT_SECONDS, Sample, duration
from airflow_provider_backpressure.core.progress.summary import HydrationSummary, held_back

LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-~=+*#"
"""The same, where nothing else can be written."""
CURVE_WIDTH = 40

Point = tuple[datetime, float]
"""A value between 0 and 1 at a time; what lies outside is drawn at the edge."""


def curve(
    points: Sequence[Point], *, start: datetime, end: datetime, width: int = CURVE_WIDTH, levels: str = LEVELS
) -> str:
    """Return ``width`` characters from ``start`` to ``end``: in each the latest value by then, blank before the first.

    Points ascend in time.
    """
    span = (end - start).total_seconds()
    drawn, at, latest = [], 0, ""
    for column in range(1, width + 1):
        while at < len(points) and (points[at][0] - start).total_seconds() <= span * column / width:
            latest = levels[min(len(levels) - 1, max(0, int(points[at][1] * len(levels))))]
            at += 1
        drawn.append(latest or " ")
    return "".join(drawn)


NOT_YET = "not yet"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that is shown of one hydration, read once."""

    now: HydrationSummary
    workers: int
    counts: RangeCounts | None
    """Ranges of its plan; ``None`` before it has one."""
    samples: Sequence[Sample]
    spans: Sequence[Span]
    """The phases that it has been in, in order."""

    @classmethod
    def read(cls, ledger: LedgerReader, now: HydrationSummary) -> "Facts":
        """Read them."""
        hydration = now.hydration
        return cls(
            now=now,
            workers=max(0, len(ledger.statistics(hydration.id)) - 1),
            counts=ledger.counts(hydration.plan.plan_id) if hydration.plan else None,
            samples=ledger.samples(hydration.id, seconds=RECENT_SECONDS),
            spans=ledger.spans(hydration.id),
        )

    @property
    def memory(self) -> Sample | None:
        """The latest sample that saw the executors' memory."""
        return next((sample for sample in reversed(self.samples) if sample.memory_used is not None), None)

    def curves(self, levels: str = LEVELS) -> tuple[str, str]:
        """Return what was committed and the executors' memory over the same minutes; empty with nothing to compare."""
        total = self.now.progress.total
        if self.memory is None or not total:
            return "", ""
        start, end = self.samples[0].at, self.samples[-1].at
        done = [(sample.at, sample.committed / total) for sample in self.samples]
        memory = [
            (sample.at, sample.memory_used / sample.memory_limit)
            for sample in self.samples
            if sample.memory_used is not None and sample.memory_limit
        ]
        return curve(done, start=start, end=end, levels=levels), curve(memory, start=start, end=end, levels=levels)

    @property
    def in_phase(self) -> float | None:
        """Seconds since it entered its phase, by this host's clock."""
        if not self.spans:
            return None
        return max(0.0, (datetime.now(UTC) - self.spans[-1].started_at).total_seconds())

    def values(self) -> dict[str, Any]:
        """Return them by name; what is not known is ``None``, never 0."""
        return {**self._names(), **self._snapshot(), **self._describe_lag(), **self._phases(), **self._gate()}

    def _names(self) -> dict[str, Any]:
        hydration = self.now.hydration
        return {
            "id": hydration.id[:SHOWN],
            "source": hydration.source_identity,
            "target": hydration.sink_identity,
            "owner": hydration.owner,
            "phase": hydration.phase.value,
            "state": self.now.state.value,
            "failure": hydration.failure,
            "failed_at": hydration.failed_at.isoformat() if hydration.failed_at else None,
            "consistent": consistent(hydration),
        }

    def _snapshot(self) -> dict[str, Any]:
        now, progress, left = self.now, self.now.progress, self.now.eta
        return {
            "percent": now.percent,
            "unit": now.unit,
            "rows": progress.committed,
            "read": progress.read,
            "total": progress.total,
            "total_exact": progress.total_exact,
            "rows_per_second": round(now.speed) if now.running and now.speed is not None else None,
            "eta": duration(left.seconds) if left else None,
            "eta_seconds": round(left.seconds, 1) if left else None,
            "eta_soonest": _time(left.soonest if left else None),
            "eta_latest": _time(left.latest if left else None),
            "messages_received": progress.messages,
            "bytes_received": progress.bytes,
            "workers": self.workers,
            "memory_used": self.memory.memory_used if self.memory else None,
            "memory_limit": self.memory.memory_limit if self.memory else None,
        }

    def _describe_lag(self) -> dict[str, Any]:
        course, progress = self.now.course, self.now.progress
        latest = course.latest if course else None
        return {
            "keeping_up": course.verdict.value if course else None,
            "log_unit": latest.unit.value if latest else None,
            "upstream_rate": _figure(progress.upstream_rate),
            "process_rate": _figure(progress.process_rate),
            "offset_known": progress.offset_known,
            "offset_committed": progress.offset_committed,
            "lag": course.lag if course else None,
            "lag_by_key": latest.lag if latest else None,
            "open_transactions": latest.open if latest else None,
            "catch_up": catch_up(course.catch_up_seconds) if course else None,
            "seen_at": latest.at.isoformat() if latest else None,
            "trouble": (course.trouble or None) if course else None,
        }

    def _phases(self) -> dict[str, Any]:
        hydration, spans = self.now.hydration, self.spans
        return {
            "created_at": hydration.created_at.isoformat(),
            "phase_since": spans[-1].started_at.isoformat() if spans else None,
            "hydrated_at": hydration.hydrated_at.isoformat() if hydration.hydrated_at else None,
            "hydration_seconds": latency(spans, Phase.HYDRATION),
            "rehydration_seconds": latency(spans, Phase.REHYDRATION),
        }

    def _gate(self) -> dict[str, Any]:
        now, counts = self.now, self.counts
        return {
            "ranges": f"{counts.committed}/{counts.total}" if counts else None,
            "ranges_committed": counts.committed if counts else None,
            "ranges_total": counts.total if counts else None,
            "failed": counts.failed if counts else None,
            "in_flight": now.in_flight,
            "credits": f"{now.credits}/{now.hydration.credits_max}",
            "credits_now": now.credits,
            "credits_max": now.hydration.credits_max,
            "held_back": held_back(now.flow) if now.running else "",
            "gate": "; ".join(now.reasons),
        }


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return "never" if math.isinf(seconds) else duration(seconds)


def _figure(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def consistent(hydration: Hydration) -> str | None:
    """Return whether a target that follows a log is as the source was at one moment; ``None`` for every other one."""
    plan = hydration.plan
    if plan is None or plan.consistency is not Consistency.CATCH_UP:
        return None
    return "yes" if hydration.phase is Phase.STEADY_STATE else NOT_YET
