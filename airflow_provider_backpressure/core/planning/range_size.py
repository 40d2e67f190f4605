"""How large ranges are to be: by an assumption at first, then by what finished ranges of an earlier plan took."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState

ASSUMED_ROWS_PER_SECOND = 100_000.0
"""What one range is expected to move per second, as long as none has shown it."""
FLOOR_ROWS = 10_000
"""No measure makes ranges smaller than this; only the budget's own bounds do."""
CHANGE = 0.25
"""Least change worth making, as a share of the size before."""
MOST_SHRINK = 0.5
"""Memory need not follow the rows: it makes ranges half as large at most, and the next plan looks again."""
LATEST = 64
"""Ranges at the end of a plan that are looked at."""
TELLING = 10.0
"""A range that took less than so many times the runner's overhead says nothing about its rows."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What finished ranges of an earlier plan took."""

    rows: int
    """Most rows planned into one of them."""
    rows_per_second: float | None
    """Of one range, from admission to commit beside the others, without the runner's overhead; ``None``: unknown."""
    memory_bytes: int | None
    """What one took of an executor; ``None`` where unknown."""
    memory: MemoryReading | None
    """The executors now, before anything of the new plan is in flight; ``None`` where they are not seen."""


def rows_per_range(budget: Budget, row_bytes: float, rows_per_second: float = ASSUMED_ROWS_PER_SECOND) -> int:
    """Return the rows of one range: the tightest of the bounds in rows, bytes and expected seconds, at least one."""
    by_seconds = budget.range_seconds * rows_per_second
    return max(1, int(min(_most_rows(budget, row_bytes), by_seconds)))


def next_rows(budget: Budget, row_bytes: float, measures: Measures | None) -> int:
    """Return the rows of a range in the next plan.

    At the learned pace it takes ``range_seconds``, and all credits' ranges fit into the executors' share beside each
    other. Never above the budget, never below a floor; a change that is not worth it is not made.
    """
    if measures is None:
        return rows_per_range(budget, row_bytes)
    wanted = rows_per_range(budget, row_bytes, measures.rows_per_second or ASSUMED_ROWS_PER_SECOND)
    most = max(1, int(_most_rows(budget, row_bytes)))
    wanted = max(min(wanted, _rows_by_memory(budget, measures, most)), min(FLOOR_ROWS, most))
    before = min(measures.rows, most)
    return before if abs(wanted - before) < CHANGE * before else wanted


def measure_plan(ledger: LedgerReader, hydration: Hydration, runner: Runner) -> Measures | None:
    """Return what the hydration's present plan has shown; ``None`` where it has none, or nothing is committed."""
    if hydration.plan is None:
        return None
    plan_id = hydration.plan.plan_id
    counts = ledger.counts(plan_id)
    # The first ranges of a plan pay for its beginning; where it is open yet they are all that is there.
    after = counts.total - LATEST - 1 if not counts.open else -1
    found = ledger.ranges(plan_id, states=[RangeState.COMMITTED], after_seq=max(-1, after), limit=LATEST)
    if not found:
        return None
    return Measures(
        rows=max(record.planned_rows for record in found),
        rows_per_second=pace_of(found, overhead_seconds=runner.overhead_seconds),
        memory_bytes=ledger.gate(hydration.id).range_memory_bytes,
        memory=runner.memory(),
    )


def pace_of(records: Sequence[RangeRecord], *, overhead_seconds: float) -> float | None:
    """Return the median of rows per second of committed ranges; ``None`` where none took long enough."""
    paces = []
    for record in records:
        if record.admitted_at is None or record.committed_at is None or record.attempt != 1 or not record.rows:
            continue
        seconds = (record.committed_at - record.admitted_at).total_seconds()
        if seconds >= max(TELLING * overhead_seconds, 1.0):
            paces.append(record.rows / (seconds - overhead_seconds))
    return median(paces) if paces else None


def _most_rows(budget: Budget, row_bytes: float) -> float:
    return min(budget.range_rows, budget.range_bytes / max(row_bytes, 1.0))


def _rows_by_memory(budget: Budget, measures: Measures, most: int) -> int:
    """Return the rows at which ranges fit, as if their memory grew with them; ``most`` where they do."""
    reading = measures.memory
    if not measures.memory_bytes or reading is None or reading.limit_bytes <= 0:
        return most
    share = reading.limit_bytes * budget.executor_memory
    used = reading.used_bytes or reading.jvm_bytes
    room = share if reading.isolated else max(0.0, share - used) / _most_on_one(budget, reading)
    fitting = room / measures.memory_bytes
    return most if fitting >= 1 else int(measures.rows * max(fitting, MOST_SHRINK))


def _most_on_one(budget: Budget, reading: MemoryReading) -> int:
    """Return how many ranges may be on one executor: of several, no more than it has slots."""
    several = reading.slots and reading.slots_each and reading.slots > reading.slots_each
    return min(budget.credits, reading.slots_each or 1) if several else budget.credits
