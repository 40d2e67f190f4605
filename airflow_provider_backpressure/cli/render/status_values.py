"""The state of a hydration as values: a summary, and its course of the last minutes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase, RangeCounts, Span, latency
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.progress.lag import catch_up
from airflow_provider_backpressure.core.progress.rates_and_eta import RECENT_SECONDS, Sample, duration
from airflow_provider_backpressure.core.progress.status_fields import to_dict
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
        """Return the figures that API and page have too, what is read for one hydration alone, and texts for people."""
        return {**to_dict(self.now), **self._source(), **self._phases(), **self._texts()}

    def _source(self) -> dict[str, Any]:
        course = self.now.course
        return {
            "workers": self.workers,
            "lag_by_key": course.latest.lag if course else None,
            "consistent": consistent(self.now.hydration),
        }

    def _phases(self) -> dict[str, Any]:
        spans, counts = self.spans, self.counts
        return {
            "phase_since": spans[-1].started_at.isoformat() if spans else None,
            "hydration_seconds": latency(spans, Phase.HYDRATION),
            "rehydration_seconds": latency(spans, Phase.REHYDRATION),
            "ranges_committed": counts.committed if counts else None,
            "ranges_total": counts.total if counts else None,
        }

    def _texts(self) -> dict[str, Any]:
        now, left, course, counts = self.now, self.now.eta, self.now.course, self.counts
        return {
            "eta": duration(left.seconds) if left else None,
            "eta_soonest": _time(left.soonest if left else None),
            "eta_latest": _time(left.latest if left else None),
            "catch_up": catch_up(course.catch_up_seconds) if course else None,
            "ranges": f"{counts.committed}/{counts.total}" if counts else None,
            "credits": f"{now.credits}/{now.hydration.credits_max}",
            "held_back": held_back(now.flow) if now.moving else "",
            "gate": "; ".join(now.reasons),
        }


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return "never" if math.isinf(seconds) else duration(seconds)


def consistent(hydration: Hydration) -> str | None:
    """Return whether a target that follows a log is as the source was at one moment; ``None`` for every other one."""
    plan = hydration.plan
    if plan is None or plan.consistency is not Consistency.CATCH_UP:
        return None
    return "yes" if hydration.phase is Phase.STEADY_STATE else NOT_YET
