"""Taking a plan over from the sink, and the phases that a hydration has been in."""

from dataclasses import replace
from itertools import pairwise

import pytest

from airflow_provider_backpressure.core.gate.hydration_record import Phase, latency
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import LedgerUnavailable, PlanSuperseded
from tests.conformance.ledger.support import admit, commit, make_plan, planned, register, replan, take


def restore(ledger, hydration_id, plan, records):
    ledger.restore(hydration_id, plan, records, who="ada", why="the ledger was lost")


def taken_over(ledger):
    """Hydrate four of ten ranges, and let a second hydration of another sink take them over as they are."""
    _, plan_id = planned(ledger, 10)
    source = ledger.hydrations()[0]
    for seq in range(4):
        take(ledger, source.id)
        commit(ledger, plan_id, seq)
    records = ledger.ranges(plan_id)
    assert source.plan is not None
    return source, records


@pytest.mark.statement("T8", "T9")
def test_a_plan_is_taken_over_with_what_is_committed(subject):
    """T9: ranges, progress and plan stand in the ledger as the sink has them; T8: it is a rehydration."""
    ledger = subject.ledger
    source, records = taken_over(ledger)
    ledger.forget(source.id)
    hydration_id = register(ledger)
    plan = replace(source.plan, epoch=7)
    restore(ledger, hydration_id, plan, [replace(each, hydration_id=hydration_id) for each in records])
    found = ledger.hydration(hydration_id)
    assert (found.plan, found.phase) == (plan, Phase.REHYDRATION)
    assert found.hydrated_at is None
    told = [(each.seq, each.bounds, each.state, each.rows, each.bytes, each.checksum) for each in records]
    after = ledger.ranges(plan.plan_id)
    assert [(each.seq, each.bounds, each.state, each.rows, each.bytes, each.checksum) for each in after] == told
    assert after[0].committed_at == records[0].committed_at
    progress = total_progress(ledger.statistics(hydration_id))
    assert (progress.total, progress.committed, progress.bytes) == (100, 40, 4000)
    assert subject.audit() == [("ada", "reindex", "the ledger was lost")]
    assert take(ledger, hydration_id).seq == 4


def test_what_stands_of_the_plan_is_replaced(ledger):
    """The same plan of an older ledger: its ranges go, failed and planned ones too."""
    source, records = taken_over(ledger)
    failed = take(ledger, source.id)
    ledger.release(source.plan.plan_id, failed.seq, attempt=failed.attempt, error="no", fail=True)
    done = [replace(each, state=RangeState.COMMITTED, rows=10, bytes=5, checksum="c") for each in records]
    restore(ledger, source.id, source.plan, done)
    counts = ledger.counts(source.plan.plan_id)
    assert (counts.committed, counts.open) == (10, 0)
    assert total_progress(ledger.statistics(source.id)).committed == 100
    assert admit(ledger, source.id) is None
    assert ledger.finish(source.id).phase is Phase.STEADY_STATE


def test_nothing_is_taken_from_under_a_lane(ledger):
    """While a lease runs it is refused, and nothing has changed."""
    source, _ = taken_over(ledger)
    held = take(ledger, source.id)
    with pytest.raises(LedgerUnavailable, match=r"1 ranges .* are in flight"):
        restore(ledger, source.id, make_plan(), [])
    assert ledger.range(source.plan.plan_id, held.seq) == held
    assert ledger.hydration(source.id).plan == source.plan


@pytest.mark.statement("T8")
def test_each_phase_is_kept_with_its_times(ledger):
    """T8: from the first on, by the ledger's clock; the one that goes on has no end, and so no latency yet."""
    hydration_id, _ = planned(ledger, 0, total=0)
    (first,) = ledger.spans(hydration_id)
    assert (first.phase, first.ended_at) == (Phase.HYDRATION, None)
    assert latency([first], Phase.HYDRATION) is None
    ledger.finish(hydration_id)
    ledger.finish(hydration_id)
    replan(ledger, hydration_id, 0, total=0)
    assert latency(ledger.spans(hydration_id), Phase.REHYDRATION) is None
    ledger.finish(hydration_id)
    spans = ledger.spans(hydration_id)
    assert [each.phase for each in spans] == [
        Phase.HYDRATION,
        Phase.STEADY_STATE,
        Phase.REHYDRATION,
        Phase.STEADY_STATE,
    ]
    assert spans[-1].ended_at is None
    for before, after in pairwise(spans):
        assert before.started_at <= before.ended_at <= after.started_at
    assert latency(spans, Phase.REHYDRATION) >= 0
    ledger.forget(hydration_id)
    assert ledger.spans(register(ledger))[0].phase is Phase.HYDRATION


def test_a_new_snapshot_plans_again_what_is_committed(ledger):
    """In one step with the plan; a range in flight stays so, and a lane of before counts nothing any more."""
    hydration_id, plan_id = planned(ledger, 5)
    before = replace(ledger.hydration(hydration_id).plan, rewrite_key=("id",), epoch=4)
    ledger.take_over(hydration_id, before)
    for seq in range(3):
        assert take(ledger, hydration_id).seq == seq
    commit(ledger, plan_id, 0)
    commit(ledger, plan_id, 1)
    after = replace(before, epoch=5, snapshot_epoch=5)
    assert ledger.begin_snapshot(hydration_id, after) == 2
    assert ledger.hydration(hydration_id).plan == after
    states = [each.state for each in ledger.ranges(plan_id)]
    assert states == [*[RangeState.PLANNED] * 2, RangeState.ADMITTED, *[RangeState.PLANNED] * 2]
    again = ledger.range(plan_id, 0)
    assert (again.rows, again.checksum, again.committed_at, again.attempt) == (None, None, None, 1)
    assert total_progress(ledger.statistics(hydration_id)).committed == 0
    with pytest.raises(PlanSuperseded, match="a later lane has taken it over"):
        commit(ledger, plan_id, 2, epoch=4)
    assert commit(ledger, plan_id, 2, epoch=5)
    found = take(ledger, hydration_id)
    assert (found.seq, found.attempt) == (0, 2)
    assert ledger.begin_snapshot(hydration_id, before) is None, "an earlier life"
    assert ledger.hydration(hydration_id).plan == after
