"""Several tables of a source as one."""

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.progress.lag import Course, Sight, Verdict, advance
from airflow_provider_backpressure.core.progress.rates_and_eta import PLAN_WORKER, WorkerStatistics, total_progress
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.core.progress.summary import sum_tables

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def progress(committed: int, total: int | None, *, exact: bool = True):
    plan = WorkerStatistics(hydration_id="h", worker_id=PLAN_WORKER, snapshot_total=total, snapshot_total_exact=exact)
    return total_progress([plan, WorkerStatistics(hydration_id="h", worker_id="a", snapshot_progress=committed)])


def course(known: int, committed: int | None, seconds: int = 0) -> Course:
    done = None if committed is None else {"wal": committed}
    at = NOON + timedelta(seconds=seconds)
    return advance(None, Sight(at=at, unit=Unit.BYTES, known={"wal": known}, committed=done), least_seconds=1)


@pytest.mark.statement("M1", "M2")
def test_numbers_are_the_sum_of_the_tables():
    """M1, M2: {t1:110, t2:15} in all; a total that is not known of one table is not known of the source."""
    found = sum_tables([(progress(110, 200), None), (progress(15, 50), None)])
    assert (found.tables, found.progress.committed, found.progress.total, found.progress.percent) == (2, 125, 250, 50.0)
    assert found.progress.total_exact
    unknown = sum_tables([(progress(110, 200), None), (progress(15, None, exact=False), None)])
    assert (unknown.progress.total, unknown.progress.total_exact, unknown.progress.percent) == (None, False, None)
    assert (found.known, found.committed, found.lag, found.verdict) == (None, None, None, Verdict.UNKNOWN)


@pytest.mark.statement("M8")
def test_the_committed_frontier_is_the_meet():
    """M8: what every table has reached; unknown while that is not known of one."""
    found = sum_tables([(progress(1, 1), course(100, 90)), (progress(1, 1), course(120, 60, seconds=10))])
    assert (found.committed, found.known, found.lag) == ({"wal": 60}, {"wal": 120}, 60)
    assert sum_tables([(progress(1, 1), course(100, 90)), (progress(0, 1), course(100, None))]).committed is None
    assert sum_tables([(progress(1, 1), course(100, 90)), (progress(0, 1), None)]).committed is None


def test_a_source_is_as_well_off_as_its_worst_table():
    caught_up, idle = course(100, 100), course(100, 90)
    assert sum_tables([(progress(1, 1), caught_up), (progress(1, 1), idle)]).verdict is Verdict.IDLE
    assert sum_tables([(progress(1, 1), caught_up)]).verdict is Verdict.CAUGHT_UP
