"""Earlier plans are forgotten by their target; the rows, the newest plan and its fence stay."""

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.postgres.sink.plan_row import prune_markers
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import commit_table
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused
from tests.conformance.sinks.cases import Case, ParquetCase, PostgresCase, opened
from tests.conformance.sinks.support import Begun, begin, expected
from tests.support.postgres import connected

pytestmark = pytest.mark.integration


def write_plans(case: Case, number: int) -> list[Begun]:
    """Let plans follow each other, each with a range of its own."""
    plans = []
    for seq in range(number):
        plans.append(begin(case))
        plans[-1].write(seq)
    return plans


def test_markers_of_a_forgotten_plan_go_and_its_late_attempts_are_refused(case: Case) -> None:
    """Twice is no error; what the current plan has committed is found, and its next range comes in."""
    first, second, current = write_plans(case, 3)
    with opened(case) as sink:
        for _ in range(2):
            sink.prune(current.plan, [first.plan.plan_id])
        row = sink.held()
    assert row is not None
    assert (row.plan_id, row.committed) == (current.plan.plan_id, 1)
    # A file of Parquet holds its own marker.
    assert isinstance(case, ParquetCase) or not first.markers()
    assert len(current.markers()) == 1
    for late in (first, second):
        with pytest.raises((PlanSuperseded, SinkRefused)):
            late.write(5)
    current.write(6)
    assert case.rows() == expected(case, 0, 1, 2, 6)


def test_neither_the_current_plan_nor_the_one_before_it_is_forgotten(case: Case) -> None:
    before, current = write_plans(case, 2)
    held = replace(current.plan, held_by=before.plan.plan_id)
    with opened(case) as sink:
        sink.prune(held, [before.plan.plan_id, current.plan.plan_id])
    assert len(current.markers()) == 1
    if isinstance(case, PostgresCase):
        assert len(before.markers()) == 1


def test_only_the_plan_that_holds_the_target_forgets_others(case: Case) -> None:
    first, second, _ = write_plans(case, 3)
    with opened(case) as sink, pytest.raises(PlanSuperseded, match="no longer holds"):
        sink.prune(second.plan, [first.plan.plan_id])


@pytest.mark.parametrize("case", ["postgres"], indirect=True)
def test_a_mirror_keeps_the_newest_marker_of_each_range(case: Case) -> None:
    """However old its plan is; older ones over the same bounds go, as revoked ones do."""
    assert isinstance(case, PostgresCase)
    plans = []
    for seqs in ((0, 1, 2), (1,), (2,), ()):
        plans.append(begin(case))
        for seq in seqs:
            plans[-1].write(seq)
    current: Any = SimpleNamespace(plan_id=plans[-1].plan.plan_id, held_by=uuid.uuid4().hex, mode=Mode.MIRROR)
    plan = plans[-1].plan
    with connected(case.endpoint) as connection:
        commits = commit_table("raw")
        gone = prune_markers(connection, commits, fence=plan.write.fence, plan=current, plan_ids=[])
    assert gone == 2
    assert [sorted(each.markers()) for each in plans[:3]] == [["0.0"], ["1.0"], ["2.0"]]
