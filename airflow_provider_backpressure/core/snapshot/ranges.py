"""Ranges: bounded, half-open pieces of a snapshot that cover it without gap or overlap."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_backpressure.core.snapshot.bounds import FIRST, Bounds, LogBounds, OffsetBounds


@dataclass(frozen=True, kw_only=True)
class PlannedRange:
    """One range as the planner cuts it. ``rows`` and ``bytes`` are what the source's statistics let expect."""

    seq: int
    bounds: Bounds
    rows: int
    bytes: int


def number_ranges(pieces: Iterable[Bounds], *, rows: int, row_bytes: float) -> Iterator[PlannedRange]:
    """Yield a range for each piece, in order. ``rows`` is what each is expected to hold, ``row_bytes`` a row's size."""
    for seq, bounds in enumerate(pieces):
        yield PlannedRange(seq=seq, bounds=bounds, rows=rows, bytes=int(rows * row_bytes))


class RangeState(StrEnum):
    """Where a range is on its way."""

    PLANNED = "planned"
    """Waits for a credit."""
    ADMITTED = "admitted"
    """Holds a credit under a lease; a job for it may be running."""
    COMMITTED = "committed"
    """The sink has committed it: the credit is back."""
    FAILED = "failed"
    """Every attempt failed; the hydration stops until a person acts."""
    REVOKED = "revoked"
    """Re-cut, skipped or cancelled: a revoked marker in the sink keeps late attempts out."""


SKIPPED = "skipped: "
"""How the error of a range begins that a person has left out; why follows."""


@dataclass(frozen=True, kw_only=True)
class RangeRecord:
    """One range as the ledger has it. Times are aware UTC datetimes by the ledger database's clock."""

    hydration_id: str
    plan_id: str
    seq: int
    bounds: Bounds
    state: RangeState
    planned_rows: int
    planned_bytes: int
    attempt: int = 0
    """Number of the latest attempt; 0 before the first."""
    lane: str | None = None
    session_id: str | None = None
    tag: str | None = None
    """Names the latest attempt everywhere: Spark tag, ``application_name`` in the sink. See :func:`attempt_tag`."""
    lease_until: datetime | None = None
    memory_bytes: int = 0
    """Executor memory reserved for it while in flight."""
    rows: int | None = None
    bytes: int | None = None
    checksum: str | None = None
    error: str | None = None
    admitted_at: datetime | None = None
    committed_at: datetime | None = None

    @property
    def slice_id(self) -> str:
        """Key of its marker in the sink, beside the plan; the attempt is never part of it."""
        return slice_id(self.seq)

    @property
    def skipped(self) -> bool:
        """Whether a person has left it out for good, so that nothing of it is in the target."""
        return self.state is RangeState.REVOKED and (self.error or "").startswith(SKIPPED)

    @property
    def ordered(self) -> bool:
        """Whether it may only begin when others before it are in."""
        return isinstance(self.bounds, LogBounds) or (isinstance(self.bounds, OffsetBounds) and self.bounds.ordered)

    @property
    def is_alone(self) -> bool:
        """Whether it may only begin when every range before it is in."""
        return self.ordered and not self.is_side_by_side

    @property
    def is_side_by_side(self) -> bool:
        """Whether it goes in after one range before it at most, beside those of other partitions."""
        return isinstance(self.bounds, OffsetBounds) and self.bounds.behind is not None

    @property
    def waits_for(self) -> int | None:
        """Number of the range that has to be in before it may begin; ``None``: of none."""
        behind = self.bounds.behind if isinstance(self.bounds, OffsetBounds) else None
        number = self.seq - 1 if behind is None else behind
        return number if self.ordered and number != FIRST else None

    def progress(self, rows: int) -> int:
        """Return what its commit adds to the hydration's progress: of a table its rows, of a log offsets or bytes.

        Markers of transactions, aborted records and compacted ones leave offsets without a row.
        """
        match self.bounds:
            case OffsetBounds():
                return self.bounds.share
            case LogBounds():
                return self.bounds.length
        return rows

    @property
    def counted(self) -> int:
        """What its commit has added to the hydration's progress; 0 where it is not committed."""
        return 0 if self.rows is None else self.progress(self.rows)


def slice_id(seq: int, index: int = 0) -> str:
    """Return the id of a range's slice, unique within its plan and short enough for ``application_name``."""
    return f"{seq}.{index}"


def seq_of(slice_id: str) -> int:
    """Return the number of the range that a slice belongs to."""
    return int(slice_id.partition(".")[0])


FIRST_ATTEMPT = 1
"""Number of a range's first attempt: there is none below it."""


def attempt_tag(plan_id: str, slice_id: str, attempt: int) -> str:
    """Return ``bp:<plan>:<slice>:<attempt>``, at most 63 bytes (PostgreSQL cuts longer application names)."""
    return f"bp:{plan_id}:{slice_id}:{attempt}"


MAX_LANE = 250
"""Longest name of a lane; a longer one is cut and gets a digest."""
_INDEX = re.compile(r"-1|\d{1,9}")


@dataclass(frozen=True, kw_only=True)
class Drainer:
    """The run that a lane belongs to, and its task instance where the name has it."""

    dag_id: str
    run_id: str
    task_id: str | None = None
    """``None``: a lane that several tasks share, as those of a range do that has tasks of its own."""
    map_index: int = -1


def lane(dag_id: str, run_id: str, *parts: str) -> str:
    """Return the name of a lane: DAG, run, and ``parts``, which are task and map index or a name of their own."""
    name = "/".join((dag_id, run_id, *parts))
    if len(name) <= MAX_LANE:
        return name
    return f"{name[: MAX_LANE - 17]}/{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def drainer(name: str | None) -> Drainer | None:
    """Return whose lane this is; ``None`` for a name that was cut, or that is none of a DAG's run."""
    parts = (name or "").split("/")
    if len(name or "") >= MAX_LANE or len(parts) not in (3, 4):
        return None
    found = Drainer(dag_id=parts[0], run_id=parts[1])
    if len(parts) == 3:
        return found
    if not _INDEX.fullmatch(parts[3]):
        return None
    return Drainer(dag_id=parts[0], run_id=parts[1], task_id=parts[2], map_index=int(parts[3]))
