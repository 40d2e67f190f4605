"""A source of several tables as one: its numbers are their sum, its committed frontier their meet."""

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_backpressure.core.frontier import Frontier, difference, meet
from airflow_provider_backpressure.core.progress.lag import Course, Verdict
from airflow_provider_backpressure.core.progress.statistics import Progress


@dataclass(frozen=True, kw_only=True)
class SourceTotal:
    """What the tables of a source come to."""

    tables: int
    progress: Progress
    known: Frontier | None
    """How far the source is, as it was seen last."""
    committed: Frontier | None
    """What every table has reached; ``None`` while that is not known of one."""
    verdict: Verdict

    follows: bool = True
    """Whether some table follows the source; none of a snapshot's is behind it."""

    @property
    def lag(self) -> int | None:
        """What the source has and some table has not; ``None`` where none follows the source."""
        if self.known is None or self.committed is None or not self.follows:
            return None
        return difference(self.known, self.committed)


def sum_tables(parts: Sequence[tuple[Progress, Course | None]]) -> SourceTotal:
    """Return several tables of one source as one."""
    courses = [course for _, course in parts if course is not None]
    latest = max((course.latest for course in courses), key=lambda sight: sight.at, default=None)
    frontiers = [course.latest.committed for course in courses if course.latest.committed is not None]
    return SourceTotal(
        tables=len(parts),
        progress=_sum([progress for progress, _ in parts]),
        known=latest.known if latest else None,
        committed=meet(frontiers) if frontiers and len(frontiers) == len(parts) else None,
        follows=any(course.latest.follows for course in courses),
        verdict=min((course.verdict for course in courses), key=WORST.index, default=Verdict.UNKNOWN),
    )


WORST = (Verdict.NOT_KEEPING_UP, Verdict.UNKNOWN, Verdict.IDLE, Verdict.KEEPING_UP, Verdict.CAUGHT_UP)
"""A source is as well off as its worst table."""


def _sum(parts: Sequence[Progress]) -> Progress:
    """Return the sum; a total that is unknown of one table is unknown of all."""
    totals = [part.total for part in parts if part.total is not None]
    return Progress(
        total=sum(totals) if totals and len(totals) == len(parts) else None,
        total_exact=all(part.total_exact for part in parts),
        committed=sum(part.committed for part in parts),
        read=sum(part.read for part in parts),
        messages=sum(part.messages for part in parts),
        bytes=sum(part.bytes for part in parts),
    )
