"""What every sink says of the plan that holds it: all that a lost ledger is rebuilt from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.snapshot.bounds import bounds_from_json
from airflow_provider_backpressure.exceptions import PlanSuperseded
from tests.conformance.sinks.cases import Case, ParquetCase, PostgresCase, opened
from tests.conformance.sinks.support import begin, bounds
from tests.support.postgres import run

pytestmark = pytest.mark.integration


def test_without_a_plan_there_is_no_row(case: Case) -> None:
    """A target that is not there, or that nobody has begun."""
    with opened(case) as sink:
        assert sink.held() is None
        sink.prepare(sink.fit(case.columns, mode="append", key=("id",)))
        assert sink.held() is None


@pytest.mark.statement("T9")
def test_the_plan_comes_back_whole(case: Case) -> None:
    """T9: another process finds plan, epoch and source, and counts what is committed, without asking for markers."""
    begun = begin(case)
    begun.write(0)
    begun.write(2)
    with opened(case) as sink:
        row = sink.held()
        assert row is not None
        assert (row.plan_id, row.epoch, row.committed) == (begun.plan.plan_id, begun.plan.epoch, 2)
        assert row.source_identity == begun.plan.source_identity
        assert row.plan is not None
        assert replace(row.plan, epoch=row.epoch) == begun.plan
        assert sink.renew(row.plan_id) == row.epoch + 1
        after = sink.held()
        assert after is not None
        assert (after.epoch, after.plan, after.committed) == (row.epoch + 1, row.plan, 2)


@pytest.mark.statement("T9")
def test_markers_hold_the_bounds_of_their_ranges(case: Case) -> None:
    """T9: what is committed, and so what is not, is told by the markers alone."""
    begun = begin(case)
    for seq in (0, 1, 5):
        begun.write(seq)
    found = {name: bounds_from_json(dict(marker.bounds)) for name, marker in begun.markers().items()}
    assert found == {f"{seq}.0": bounds(seq) for seq in (0, 1, 5)}


def test_a_newer_plan_has_the_row(case: Case) -> None:
    """With its own markers: those of the plan before do not count."""
    first = begin(case)
    first.write(0)
    second = begin(case)
    with opened(case) as sink:
        row = sink.held()
    assert row is not None
    assert (row.plan_id, row.epoch, row.committed) == (second.plan.plan_id, first.plan.epoch + 1, 0)


@pytest.mark.parametrize("case", ["parquet", "postgres"], indirect=True)
def test_a_row_of_an_earlier_release_is_read_and_gets_its_place(case: Case, tmp_path: Path) -> None:
    """The row is there without the whole plan; the next plan brings it."""
    begun = begin(case)
    begun.write(0)
    if isinstance(case, PostgresCase):
        run(case.endpoint, "ALTER TABLE raw.backpressure_plan DROP COLUMN plan")
    else:
        assert isinstance(case, ParquetCase), "the other tables of files keep it in the same way"
        path = case.folder / "_backpressure" / "plan.json"
        holder = json.loads(path.read_text())
        del holder["about"]["plan"]
        path.write_text(json.dumps(holder))
    with opened(case) as sink:
        row = sink.held()
        assert row is not None
        assert (row.plan_id, row.plan, row.committed) == (begun.plan.plan_id, None, 1)
        assert sink.epoch(begun.plan.plan_id) == begun.plan.epoch
    begun.write(1)
    begin(case)
    with opened(case) as sink:
        row = sink.held()
    assert row is not None
    assert row.plan is not None


@pytest.mark.statement("X1")
def test_a_plan_takes_the_target_only_from_the_one_that_it_was_made_to_follow(case: Case) -> None:
    """X1: its planner may have slept, or the ledger be a copy of that moment, while later plans went on."""
    first = begin(case)
    with opened(case) as sink:
        plan = replace(first.plan, plan_id="a" * 32, held_by=first.plan.plan_id, held_epoch=first.plan.epoch)
        assert sink.begin(plan) == first.plan.epoch + 1
        # A planner that was killed before the ledger knew the epoch asks again.
        assert sink.begin(plan) == first.plan.epoch + 2
    last = begin(case)
    with opened(case) as sink:
        for held_by in (first.plan.plan_id, ""):
            with pytest.raises(PlanSuperseded, match=f"plan {last.plan.plan_id} has taken it since"):
                sink.begin(replace(plan, held_by=held_by))
        assert sink.epoch(last.plan.plan_id) == last.plan.epoch


def test_a_plan_that_is_given_the_target_again_keeps_its_markers(case: Case) -> None:
    """Without them its ranges would be written a second time."""
    first = begin(case)
    first.write(0)
    begin(case)
    again = begin(case, plan_id=first.plan.plan_id)
    assert [*again.markers()] == ["0.0"]
    again.write(0, word="other")
    assert len(case.rows()) == 10
