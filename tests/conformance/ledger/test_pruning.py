"""What the ledger forgets, and what never."""

from airflow_provider_backpressure.core.monitoring.ledger_pruning import Pruned, prune
from airflow_provider_backpressure.core.monitoring.source_observer import Kept
from airflow_provider_backpressure.core.ports.ledger import History
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from tests.conformance.ledger.support import commit, cut, make_plan, planned, register, replan, take

LONG = 3600.0
SAMPLES = Kept()
ALL, YOUNG = History(seconds=0, plans=None), History(seconds=LONG, plans=None)


def test_only_ranges_of_earlier_plans_go(ledger):
    """Not those of the plan that a run resumes by, however old; and not before their time."""
    hydration_id, first = planned(ledger, 5)
    take(ledger, hydration_id)
    commit(ledger, first, 0)
    assert ledger.find_superseded(ALL) == []
    second = replan(ledger, hydration_id, 4)
    assert ledger.find_superseded(YOUNG) == [], "something happened in it within the hour"
    assert ledger.find_superseded(ALL) == [first]
    assert [ledger.prune_plan(first, most=2) for _ in range(4)] == [2, 2, 1, 0]
    assert (ledger.ranges(first), ledger.prune_plan(second)) == ([], 0)
    assert take(ledger, hydration_id).seq == 0
    assert commit(ledger, second, 0)
    assert ledger.counts(second).committed == 1


def test_of_many_plans_only_the_newest_stay_however_young(ledger):
    """By their number in each hydration; another hydration's are not counted. A kill in between loses none of them."""
    hydration_id, first = planned(ledger, 3)
    other = register(ledger, sink_identity="other")
    foreign = replan(ledger, other, 3)
    plans = [first]
    for _ in range(4):
        take(ledger, hydration_id)
        commit(ledger, plans[-1], 0)
        plans.append(replan(ledger, hydration_id, 3))
    replan(ledger, other, 3)
    kept = History(seconds=LONG, plans=2)
    assert sorted(ledger.find_superseded(kept, hydration_id=hydration_id)) == sorted(plans[:2])
    assert ledger.prune_plan(first, most=2) == 2
    assert sorted(ledger.find_superseded(kept, hydration_id=hydration_id)) == sorted(plans[:2])
    assert sorted(ledger.find_superseded(kept)) == sorted([*plans[:2], foreign]), "the other one was never begun"
    ledger.prune_plan(first)
    assert ledger.find_superseded(kept, hydration_id=hydration_id) == plans[1:2]


def test_a_range_that_holds_a_credit_keeps_its_plan(ledger):
    """An older plan's job takes its place until it is reaped."""
    hydration_id, first = planned(ledger, 3)
    attempt = take(ledger, hydration_id).attempt
    replan(ledger, hydration_id, 3)
    assert (ledger.find_superseded(ALL), ledger.prune_plan(first)) == ([], 0)
    assert ledger.gate(hydration_id).in_flight == 1
    assert ledger.release(first, 0, attempt=attempt, error="reaped")
    assert prune(ledger, ALL, samples=SAMPLES) == Pruned(plans=1, ranges=3, rows=0)


def test_a_plan_that_was_never_begun_goes_once_no_run_is_under_way(ledger):
    hydration_id, first = planned(ledger, 3)
    ledger.hold(hydration_id, run="run")
    replan(ledger, hydration_id, 3)
    assert ledger.find_superseded(ALL) == []
    ledger.let_go(hydration_id, run="run")
    assert ledger.find_superseded(YOUNG) == [first]


def test_another_hydration_s_plans_stay(ledger):
    hydration_id, first = planned(ledger, 2)
    other = register(ledger, sink_identity="other")
    ledger.save_plan(other, make_plan(), cut(2))
    replan(ledger, hydration_id, 2)
    assert prune(ledger, ALL, samples=SAMPLES).ranges == 2
    assert ledger.counts(ledger.hydration(other).plan.plan_id).planned == 2
    assert ledger.ranges(first) == []


def test_acts_of_people_go_only_when_asked(ledger):
    hydration_id = register(ledger)
    ledger.pause(hydration_id, who="ada")
    assert (ledger.sweep(seconds=0), len(ledger.controls(hydration_id))) == (0, 1)
    assert (ledger.sweep(seconds=LONG, acts=True), len(ledger.controls(hydration_id))) == (0, 1)
    assert (ledger.sweep(seconds=0, acts=True), ledger.controls(hydration_id)) == (1, [])


def test_a_source_is_forgotten_with_the_last_hydration_that_reads_it(ledger):
    source, seen = "postgres://shop:5432/shop/public.orders", Upstream(unit=Unit.OFFSETS, at={0: 7})
    first, second = register(ledger), register(ledger, sink_identity="other")
    ledger.claim_look(source, seconds=60)
    ledger.keep_upstream(source, seen)
    ledger.forget(first)
    assert ledger.upstream(source).upstream == Upstream.from_json(seen.to_json())
    ledger.forget(second)
    assert ledger.upstream(source) is None
    assert ledger.claim_look(source, seconds=60), "nothing of it is left"
