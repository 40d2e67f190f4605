"""A person's hand on figures, on what hydrations share, and on single ranges; and the trace that it leaves."""

import pytest

from airflow_provider_backpressure.core.gate.cluster_queue import AS_DECLARED, Change, Shared
from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LedgerRefused
from tests.conformance.ledger.support import admit, commit, cut, make_plan, planned, register, take

SINK = "postgres://warehouse:5432"


def credits(ledger, hydration_id):
    found = ledger.hydration(hydration_id)
    return found.credits, found.credits_max, found.credits_declared


@pytest.mark.statement("T1")
def test_credits_are_changed_while_ranges_are_in_flight(ledger):
    """T1: a raised maximum is given at once, a lowered one lets what is in flight only become less."""
    hydration_id, plan_id = planned(ledger, credits=2)
    take(ledger, hydration_id), take(ledger, hydration_id)
    assert admit(ledger, hydration_id) is None
    ledger.steer(hydration_id, Change(credits=3), who="ada", why="the night is quiet")
    assert credits(ledger, hydration_id) == (3, 3, 2)
    take(ledger, hydration_id)
    ledger.steer(hydration_id, Change(credits=1), who="ada")
    for seq, left in ((0, 2), (1, 1)):
        assert admit(ledger, hydration_id) is None
        commit(ledger, plan_id, seq)
        assert ledger.gate(hydration_id).in_flight == left
    assert admit(ledger, hydration_id) is None
    commit(ledger, plan_id, 2, limit=GradedLimit(), pressure=0.0)
    assert credits(ledger, hydration_id) == (1, 1, 2)
    take(ledger, hydration_id)


def test_a_persons_credits_outlast_the_next_plan_until_they_are_taken_back(ledger):
    hydration_id = register(ledger, credits=4)
    ledger.steer(hydration_id, Change(credits=2), who="ada")
    register(ledger, credits=8)
    assert credits(ledger, hydration_id) == (2, 2, 8)
    ledger.steer(hydration_id, Change(credits=AS_DECLARED), who="ada")
    assert credits(ledger, hydration_id) == (8, 8, 8)


def test_the_size_of_ranges_and_the_priority_are_kept(ledger):
    hydration_id = register(ledger)
    before = ledger.hydration(hydration_id)
    assert (before.range_rows_set, before.priority) == (None, 0)
    ledger.steer(hydration_id, Change(range_rows=5_000, priority=-3), who="ada")
    found = ledger.hydration(hydration_id)
    assert (found.range_rows_set, found.priority, found.credits_set) == (5_000, -3, None)
    ledger.steer(hydration_id, Change(range_rows=AS_DECLARED), who="ada")
    assert ledger.hydration(hydration_id).range_rows_set is None


@pytest.mark.parametrize("values", [{}, {"credits": -1}, {"range_rows": -5}, {"priority": 5_000}])
def test_a_change_that_cannot_be_meant_is_refused(values):
    with pytest.raises(InvalidDeclaration):
        Change(**values)


def test_every_act_leaves_who_when_and_why(ledger):
    hydration_id, plan_id = planned(ledger)
    other = register(ledger, sink_identity="other")
    ledger.pause(hydration_id, who="ada", why="night")
    ledger.steer(hydration_id, Change(credits=1, priority=2), who="bob", why="slower")
    ledger.share(Shared.HYDRATIONS, "spark_default", 2, who="cyd", why="two at once")
    ledger.skip(plan_id, 4, who="dan", why="rotten")
    ledger.pause(other, who="eve")
    acts = ledger.controls()
    assert [(act.hydration_id, act.who, act.action, act.why) for act in acts] == [
        (other, "eve", "pause", None),
        (hydration_id, "dan", "skip-range", "rotten"),
        ("", "cyd", "share", "two at once"),
        (hydration_id, "bob", "set", "slower"),
        (hydration_id, "ada", "pause", "night"),
    ]
    assert [act.values for act in acts[1:4]] == [
        {"seq": 4},
        {"kind": "hydrations", "name": "spark_default", "most": 2},
        {"credits": 1, "priority": 2},
    ]
    assert all(act.at.utcoffset() is not None for act in acts)
    assert [act.who for act in ledger.controls(hydration_id, limit=2)] == ["dan", "bob"]


@pytest.mark.statement("T11")
def test_credits_follow_the_slots_of_the_cluster(ledger):
    """T11: two for each task that it can run, at once, and never more than was asked for."""
    hydration_id = register(ledger, credits=6)
    found = []
    for slots in (1, 3, 1):
        resized = ledger.resize(hydration_id, slots)
        assert resized == credits(ledger, hydration_id)[0] == ledger.gate(hydration_id).credits
        found.append((credits(ledger, hydration_id), ledger.gate(hydration_id).slots))
    assert found == [((2, 2, 6), 1), ((6, 6, 6), 3), ((2, 2, 6), 1)]


def test_a_skipped_range_is_never_admitted_and_no_longer_open(ledger):
    hydration_id, plan_id = planned(ledger, 3)
    assert ledger.skip(plan_id, 0, who="ada", why="rotten")
    assert take(ledger, hydration_id).seq == 1
    assert not ledger.skip(plan_id, 1, who="ada", why="in flight")
    ledger.release(plan_id, 1, attempt=1, error="bad", fail=True)
    assert ledger.skip(plan_id, 1, who="ada", why="failed")
    assert not ledger.skip(plan_id, 1, who="ada", why="again")
    take(ledger, hydration_id)
    commit(ledger, plan_id, 2)
    assert not ledger.skip(plan_id, 2, who="ada", why="committed")
    assert ledger.range(plan_id, 1).state is RangeState.REVOKED
    assert ledger.range(plan_id, 1).error == "skipped: failed"
    assert ledger.counts(plan_id).open == 0
    ledger.finish(hydration_id)


def sharing(ledger, name, **values):
    """Register one more hydration into the same server of sinks, with a plan of ranges."""
    hydration_id = register(ledger, sink_identity=name, sink_server=SINK, credits=8, **values)
    plan = make_plan()
    ledger.save_plan(hydration_id, plan, cut(8))
    return hydration_id, plan.plan_id


def test_smaller_ranges_take_the_place_of_one(ledger):
    """Its credit is back, they come last, share what was expected, and all but the one have to be committed."""
    one = register(ledger)
    plan = make_plan()
    ledger.save_plan(one, plan, cut(2))
    held = admit(ledger, one).range
    pieces = [
        KeyBounds.of_column(column="id", start=None, end="4"),
        KeyBounds.of_column(column="id", start="4", end="10"),
    ]
    assert ledger.recut(plan.plan_id, 0, attempt=held.attempt, pieces=pieces) == [2, 3]
    assert ledger.gate(one).in_flight == 0
    old, _, *new = ledger.ranges(plan.plan_id)
    assert (old.state, old.error) == (RangeState.REVOKED, "cut into the ranges 2 to 3")
    assert [(piece.bounds, piece.planned_rows, piece.planned_bytes) for piece in new] == [
        (piece, -(-held.planned_rows // 2), -(-held.planned_bytes // 2)) for piece in pieces
    ]
    assert ledger.recut(plan.plan_id, 0, attempt=held.attempt, pieces=pieces) == [], "done already"
    taken = [admit(ledger, one).range.seq for _ in range(3)]
    assert taken == [1, 2, 3]
    assert ledger.recut(plan.plan_id, 1, attempt=0, pieces=pieces) == [], "another attempt holds it"
    for seq in taken:
        commit(ledger, plan.plan_id, seq)
    assert ledger.finish(one).phase is Phase.STEADY_STATE


def test_connections_into_a_server_are_shared_by_all_hydrations_into_it(ledger):
    one, first = sharing(ledger, "a", connections=3)
    two, _ = sharing(ledger, "b")
    elsewhere = register(ledger, sink_identity="c", sink_server="postgres://lake:5432", credits=8)
    take(ledger, one), take(ledger, one), take(ledger, two)
    assert admit(ledger, one) is None
    assert admit(ledger, two) is None
    state = ledger.gate(two)
    assert (state.connections, state.connections_max, state.in_flight) == (3, 3, 1)
    assert ledger.gate(elsewhere).connections_max is None
    commit(ledger, first, 0)
    take(ledger, two)
    assert admit(ledger, one) is None


def test_a_persons_limit_goes_before_a_declared_one(ledger):
    sharing(ledger, "a", connections=3)
    assert ledger.get_shared(Shared.CONNECTIONS, SINK) == 3
    ledger.share(Shared.CONNECTIONS, SINK, 5, who="ada")
    sharing(ledger, "b", connections=2)
    assert ledger.get_shared(Shared.CONNECTIONS, SINK) == 5


@pytest.mark.statement("T6")
def test_memory_is_reserved_over_every_hydration_of_a_cluster(ledger):
    """T6: what another hydration has in flight counts; the only range of a cluster goes, and one of unknown size."""
    one, first = sharing(ledger, "a")
    two, _ = sharing(ledger, "b")
    apart = register(ledger, sink_identity="c", cluster="other")
    take(ledger, one, memory_bytes=900, memory_limit=100)
    assert admit(ledger, two, memory_bytes=101, memory_limit=1_000) is None
    take(ledger, two, memory_bytes=100, memory_limit=1_000)
    take(ledger, two, memory_bytes=0, memory_limit=900)
    assert (ledger.gate(two).reserved_bytes, ledger.gate(two).largest_bytes) == (1_000, 900)
    assert ledger.gate(apart).reserved_bytes == 0
    commit(ledger, first, 0)
    take(ledger, one, memory_bytes=900, memory_limit=1_000)


def test_what_does_not_exist_is_refused(ledger):
    for ask in (
        lambda: ledger.steer("0" * 32, Change(credits=1), who="me"),
        lambda: ledger.resize("0" * 32, 1),
        lambda: ledger.enqueue("0" * 32, run="run"),
    ):
        with pytest.raises(LedgerRefused, match="no hydration 0000"):
            ask()
