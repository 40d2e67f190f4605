"""Registering, finding and steering a hydration; the gate's state; the end."""

import json
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.gate.signals import Decision, Signal
from airflow_provider_backpressure.core.gate.task_activity import Activity, Step
from airflow_provider_backpressure.core.progress.displayed_state import State
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import LedgerRefused, PlanSuperseded
from tests.conformance.ledger.support import admit, commit, cut, in_threads, make_plan, planned, register, replan, take
from tests.support.waiting import until


def test_a_hydration_is_bound_to_environment_source_and_sink(ledger):
    first = register(ledger)
    assert register(ledger) == first
    others = {
        register(ledger, environment="other"),
        register(ledger, source_identity="other"),
        register(ledger, sink_identity="other"),
    }
    assert len(others | {first}) == 4
    assert len(first) == 32
    assert len(ledger.hydrations()) == 4


def test_one_that_a_lost_ledger_knew_gets_its_id_back(ledger):
    """Unless another one has it; one that is there keeps its own."""
    had = "0123456789abcdef" * 2
    assert register(ledger, hydration_id=had) == had
    assert register(ledger, hydration_id="f" * 32) == had
    other = register(ledger, source_identity="other", hydration_id=had)
    assert other != had
    assert ledger.hydration(had).source_identity != "other"


def test_a_run_that_registers_takes_what_nobody_has(ledger):
    """As by ``hold``: another run keeps what it has, and who has not asked takes nothing."""
    new = register(ledger, run="first")
    assert ledger.hydration(new).holder == "first"
    register(ledger)
    register(ledger, run="second")
    assert ledger.hydration(new).holder == "first"
    assert ledger.let_go(new, run="first")
    register(ledger)
    assert ledger.hydration(new).holder is None
    register(ledger, run="second", credits=5)
    assert (ledger.hydration(new).holder, ledger.hydration(new).credits_declared) == ("second", 5)
    other = register(ledger, sink_identity="other")
    with pytest.raises(LedgerRefused, match="owned by orders"):
        register(ledger, sink_identity="other", owner="another DAG", run="third")
    assert ledger.hydration(other).holder is None


def test_a_new_hydration_has_all_its_credits_and_no_plan(ledger):
    found = ledger.hydration(register(ledger, credits=5))
    assert (found.credits, found.credits_max, found.phase, found.plan) == (5, 5, Phase.HYDRATION, None)
    assert (found.owner, found.cluster, found.decision, found.hydrated_at) == ("orders", "spark_default", None, None)
    assert found.created_at.utcoffset() is not None
    assert found.created_at.utcoffset().total_seconds() == 0


def test_a_hydration_is_found_by_its_identities(ledger):
    hydration_id = register(ledger, source_identity="s", sink_identity="k")
    assert ledger.find(environment="test", source_identity="s", sink_identity="k").id == hydration_id
    assert ledger.find(environment="test", source_identity="k", sink_identity="s") is None


def test_the_latest_changed_hydration_comes_first(ledger):
    one, two = register(ledger, source_identity="1"), register(ledger, source_identity="2")
    until(lambda: replan(ledger, one) and [found.id for found in ledger.hydrations()] == [one, two])


def test_a_second_owner_is_refused_by_name(ledger):
    register(ledger)
    with pytest.raises(LedgerRefused, match="owned by orders: other may not"):
        register(ledger, owner="other")


def test_a_hydration_that_does_not_exist_is_refused(ledger):
    for ask in (
        lambda: ledger.hydration("0" * 32),
        lambda: ledger.gate("0" * 32),
        lambda: admit(ledger, "0" * 32),
        lambda: ledger.finish("0" * 32),
        lambda: ledger.hold("0" * 32, run="run"),
        lambda: ledger.let_go("0" * 32, run="run"),
        lambda: ledger.pause("0" * 32, who="me"),
        lambda: ledger.save_plan("0" * 32, make_plan(), cut(1)),
        lambda: ledger.record_read("0" * 32, worker="w", in_flight_rows=1),
        lambda: ledger.record_decision("0" * 32, Decision(open=True, pressure=0.0, signals=())),
    ):
        with pytest.raises(LedgerRefused, match="no hydration 0000"):
            ask()


def test_one_run_at_a_time_has_a_hydration(ledger):
    """It keeps it until it lets go, or until another run says that it is over."""
    hydration_id = register(ledger)
    assert ledger.hydration(hydration_id).holder is None
    assert ledger.hold(hydration_id, run="one") == "one"
    assert ledger.hold(hydration_id, run="one") == "one"
    assert ledger.hold(hydration_id, run="two") == "one"
    assert ledger.hold(hydration_id, run="two", over="three") == "one"
    assert ledger.let_go(hydration_id, run="two") is False
    assert ledger.hydration(hydration_id).holder == "one"
    assert ledger.hold(hydration_id, run="two", over="one") == "two"
    assert ledger.let_go(hydration_id, run="one") is False
    assert ledger.let_go(hydration_id, run="two") is True
    assert ledger.hydration(hydration_id).holder is None


def test_of_many_runs_at_once_one_gets_the_hydration(subject):
    hydration_id = register(subject.ledger)
    ledgers = [subject.another() for _ in range(4)]
    holders = in_threads(4, lambda index: ledgers[index].hold(hydration_id, run=f"run {index}"))
    assert len(set(holders)) == 1


def test_configured_credits_and_cluster_are_taken_over_at_once(ledger):
    """A raised maximum is given at once; a lowered one binds at once."""
    hydration_id, plan_id = planned(ledger, credits=4)
    take(ledger, hydration_id)
    commit(ledger, plan_id, 0, limit=GradedLimit(), pressure=1.0)
    assert ledger.hydration(hydration_id).credits == 2
    register(ledger, credits=4)
    assert ledger.hydration(hydration_id).credits == 2, "unchanged configuration changes nothing"
    register(ledger, credits=3)
    assert (ledger.hydration(hydration_id).credits, ledger.hydration(hydration_id).credits_max) == (2, 3)
    register(ledger, credits=1, cluster="other")
    found = ledger.hydration(hydration_id)
    assert (found.credits, found.credits_max, found.cluster) == (1, 1, "other")
    register(ledger, credits=8)
    assert ledger.hydration(hydration_id).credits == 8


def test_many_that_register_at_once_get_one_hydration(subject):
    ledgers = [subject.another() for _ in range(4)]
    assert len(set(in_threads(4, lambda index: register(ledgers[index])))) == 1


def test_the_gate_tells_everything_in_one_read(ledger):
    hydration_id, plan_id = planned(ledger, 3)
    state = ledger.gate(hydration_id)
    assert (state.phase, state.credits, state.in_flight, state.waiting) == (Phase.HYDRATION, 3, 0, 1)
    assert (state.reserved_bytes, state.oldest_seconds, state.paused_by, state.memory_closed) == (0, None, None, False)
    for memory in (100, 20, 3):
        take(ledger, hydration_id, memory_bytes=memory)
    state = ledger.gate(hydration_id)
    assert (state.in_flight, state.waiting, state.reserved_bytes) == (3, 0, 123)
    first = state.oldest_seconds
    until(lambda: ledger.gate(hydration_id).oldest_seconds > first)
    commit(ledger, plan_id, 0)
    assert ledger.gate(hydration_id).reserved_bytes == 23
    ledger.release(plan_id, 1, attempt=1, error="again")
    assert (ledger.gate(hydration_id).in_flight, ledger.gate(hydration_id).waiting) == (1, 1)


@pytest.mark.parametrize("closed", [True, False])
def test_the_latest_decision_is_kept_with_all_its_reasons(ledger, closed):
    hydration_id = register(ledger)
    signals = (
        Signal(name="sink commit", utilisation=float("inf"), sentence="commit latency ∞", learned=True),
        Signal(name="executor memory", utilisation=1.2 if closed else 0.4, sentence="executor memory 96 % of 1 GiB"),
    )
    ledger.record_decision(hydration_id, Decision(open=False, pressure=float("inf"), signals=signals))
    kept = ledger.hydration(hydration_id).decision
    assert json.loads(json.dumps(kept, allow_nan=False)) == {
        "open": False,
        "pressure": None,
        "signals": [signal.to_json() for signal in signals],
    }
    assert ledger.gate(hydration_id).memory_closed is closed


def test_a_persons_hand_closes_the_gate_and_leaves_its_trace(subject):
    ledger = subject.ledger
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id)
    reserved = take(ledger, hydration_id, session_id="")
    ledger.pause(hydration_id, who="ada", why="the sink is being vacuumed")
    state, found = ledger.gate(hydration_id), ledger.hydration(hydration_id)
    assert (state.paused_by, state.paused_why) == ("ada", "the sink is being vacuumed")
    assert (found.paused_by, found.paused_why) == ("ada", "the sink is being vacuumed")
    assert admit(ledger, hydration_id) is None
    assert admit(ledger, hydration_id, seq=reserved.seq) is None, "a reservation waits too"
    assert commit(ledger, plan_id, 0) is True, "what is in flight goes on"
    ledger.resume(hydration_id, who="bob")
    assert (ledger.gate(hydration_id).paused_by, ledger.gate(hydration_id).paused_why) == (None, None)
    assert take(ledger, hydration_id, seq=reserved.seq).attempt == 1
    assert subject.audit() == [("ada", "pause", "the sink is being vacuumed"), ("bob", "resume", None)]


def test_a_hydration_is_finished_when_every_range_is_committed(ledger):
    hydration_id, plan_id = planned(ledger, 3, total=30)
    with pytest.raises(LedgerRefused, match="Range 0 is still planned"):
        ledger.finish(hydration_id)
    for seq in range(3):
        take(ledger, hydration_id)
        with pytest.raises(LedgerRefused, match="is still"):
            ledger.finish(hydration_id)
        commit(ledger, plan_id, seq)
    found = ledger.finish(hydration_id)
    assert (found.phase, found.hydrated_at is not None) == (Phase.STEADY_STATE, True)
    assert ledger.gate(hydration_id).phase is Phase.STEADY_STATE
    assert ledger.finish(hydration_id) == found, "idempotent"


def test_an_increment_is_verified_when_it_was_finished(ledger):
    """It leaves the phase as it is, which therefore does not say so."""
    hydration_id, plan_id = planned(ledger, 1)
    assert not ledger.hydration(hydration_id).verified
    commit(ledger, plan_id, 0)
    first = ledger.finish(hydration_id)
    assert first.verified
    read = replace(make_plan().read, window=Window(column="id", after="9", upto="19"))
    second = replan(ledger, hydration_id, 1, read=read)
    found = ledger.hydration(hydration_id)
    assert (found.plan.increment, found.phase, found.verified) == (True, Phase.STEADY_STATE, False)
    with pytest.raises(LedgerRefused, match="Range 0 is still planned"):
        ledger.finish(hydration_id)
    commit(ledger, second, 0)
    assert not ledger.hydration(hydration_id).verified
    found = ledger.finish(hydration_id)
    assert (found.verified, found.hydrated_at) == (True, first.hydrated_at)


def test_a_range_that_was_opened_again_holds_up_the_end(ledger):
    """Also after the snapshot is in: what is finished then would lack the rows that were removed for it."""
    hydration_id, plan_id = planned(ledger, 2)
    for seq in range(2):
        commit(ledger, plan_id, seq)
    ledger.finish(hydration_id)
    assert ledger.reopen(plan_id, 1, who="ada")
    assert not ledger.hydration(hydration_id).verified
    with pytest.raises(LedgerRefused, match="Range 1 is still planned"):
        ledger.finish(hydration_id)
    commit(ledger, plan_id, 1)
    assert ledger.finish(hydration_id).verified


def test_another_plan_than_the_one_that_was_verified_does_not_end(ledger):
    """A task that hangs behind its comparison would end the run that came after it before that was verified."""
    hydration_id, first = planned(ledger, 1)
    commit(ledger, first, 0)
    second = replan(ledger, hydration_id, 1)
    commit(ledger, second, 0)
    with pytest.raises(PlanSuperseded, match=f"Plan {first} was verified, and another run has planned again"):
        ledger.finish(hydration_id, plan_id=first)
    assert ledger.hydration(hydration_id).phase is Phase.HYDRATION
    assert ledger.finish(hydration_id, plan_id=second).phase is Phase.STEADY_STATE


def test_a_failed_range_is_still_open(ledger):
    hydration_id, plan_id = planned(ledger, 1)
    take(ledger, hydration_id)
    ledger.release(plan_id, 0, attempt=1, error="broken", fail=True)
    with pytest.raises(LedgerRefused, match="Range 0 is still failed"):
        ledger.finish(hydration_id)


def test_a_hydration_without_a_plan_cannot_be_finished(ledger):
    with pytest.raises(LedgerRefused, match="has no plan yet"):
        ledger.finish(register(ledger))


def test_an_earlier_plans_ranges_do_not_hold_up_the_end(ledger):
    hydration_id, _ = planned(ledger, 2)
    take(ledger, hydration_id)
    second = replan(ledger, hydration_id, 1)
    commit(ledger, second, 0)
    assert ledger.finish(hydration_id).phase is Phase.STEADY_STATE


@pytest.mark.statement("T8")
def test_a_new_plan_after_the_end_is_a_rehydration(ledger):
    """T8: hydration -> steady_state -> rehydration -> steady_state; hydrated only where the plan is committed."""
    hydration_id, plan_id = planned(ledger, 1)
    commit(ledger, plan_id, 0)
    ledger.finish(hydration_id)
    again = replan(ledger, hydration_id, 1)
    found = ledger.hydration(hydration_id)
    assert (found.phase, found.hydrated_at) == (Phase.REHYDRATION, None)
    with pytest.raises(LedgerRefused, match="is still planned"):
        ledger.finish(hydration_id)
    commit(ledger, again, 0)
    assert ledger.finish(hydration_id).phase is Phase.STEADY_STATE


def test_closing_twice_is_no_error(ledger):
    register(ledger)
    ledger.close()
    ledger.close()


def test_a_probe_is_kept_until_the_next_one(ledger):
    hydration_id = register(ledger)
    assert ledger.probe(hydration_id) is None
    for curve in ('{"ä": 1}', '{"steps": []}'):
        ledger.keep_probe(hydration_id, curve)
        assert ledger.probe(hydration_id) == curve
    for ask in (lambda: ledger.probe("0" * 32), lambda: ledger.keep_probe("0" * 32, "{}")):
        with pytest.raises(LedgerRefused, match="0" * 32):
            ask()


def test_what_a_plan_would_be_is_kept_until_the_next_time(ledger):
    hydration_id = register(ledger)
    assert ledger.preview(hydration_id) is None
    for facts in ('{"ä": 1}', '{"rows": null}'):
        ledger.keep_preview(hydration_id, facts)
        assert ledger.preview(hydration_id) == facts
    for ask in (lambda: ledger.preview("0" * 32), lambda: ledger.keep_preview("0" * 32, "{}")):
        with pytest.raises(LedgerRefused, match="0" * 32):
            ask()


def test_why_a_task_has_failed_is_kept_until_one_works_again(ledger):
    """With its time, in every reading of the hydration."""
    hydration_id = register(ledger)
    assert (ledger.hydration(hydration_id).failure, ledger.hydration(hydration_id).failed_at) == (None, None)
    for sentence in ("There is no table public.ä.", "1 of 3 ranges differ."):
        ledger.keep_failure(hydration_id, sentence)
        (glance,) = ledger.glances(ids=[hydration_id], limit=1)
        assert glance.hydration.failure == ledger.hydration(hydration_id).failure == sentence
        assert glance.state is State.FAILED
        assert ledger.hydration(hydration_id).failed_at >= ledger.hydration(hydration_id).created_at
    ledger.keep_failure(hydration_id, None)
    assert (ledger.hydration(hydration_id).failure, ledger.hydration(hydration_id).failed_at) == (None, None)
    with pytest.raises(LedgerRefused, match="0" * 32):
        ledger.keep_failure("0" * 32, "no such hydration")


def test_what_was_declared_is_kept_until_the_next_plan(ledger):
    """In every reading of the hydration; nothing where it cannot be kept."""
    hydration_id = register(ledger)
    assert ledger.hydration(hydration_id).declaration is None
    for declared in ('{"ä": 1}', "{" + " " * 100_000 + "}", None):
        ledger.keep_declaration(hydration_id, declared)
        assert ledger.hydration(hydration_id).declaration == declared
        assert [one.declaration for one in ledger.hydrations()] == [declared]
    with pytest.raises(LedgerRefused, match="0" * 32):
        ledger.keep_declaration("0" * 32, "{}")


def test_what_a_task_does_is_kept_with_what_was_declared(ledger):
    hydration_id, activity = register(ledger), Activity(step=Step.RANGES, lane="plan")
    ledger.keep_declaration(hydration_id, "{}", activity=activity)
    found = ledger.hydration(hydration_id)
    assert (found.declaration, found.activity) == ("{}", activity)
    assert found.heard_at is not None
    ledger.keep_declaration(hydration_id, None)
    assert (ledger.hydration(hydration_id).declaration, ledger.hydration(hydration_id).activity) == (None, activity)
    with pytest.raises(LedgerRefused, match="0" * 32):
        ledger.keep_declaration("0" * 32, "{}", activity=activity)


def test_a_hydration_is_forgotten_with_all_that_belongs_to_it(ledger):
    """But the acts of people; not while a lane has a range of it in flight, and never another one's."""
    hydration_id, plan_id = planned(ledger, 3)
    other_id = register(ledger, sink_identity="other")
    ledger.save_plan(other_id, make_plan(), cut(2))
    other = ledger.hydration(other_id)
    seq = take(ledger, hydration_id).seq
    take(ledger, hydration_id, lane="silent", lease_seconds=0.001)
    until(lambda: ledger.find_abandoned(hydration_id))
    ledger.pause(hydration_id, who="ada")
    with pytest.raises(LedgerRefused, match=r"1 ranges of hydration .* are in flight"):
        ledger.forget(hydration_id)
    assert commit(ledger, plan_id, seq)
    for _ in range(2):
        ledger.forget(hydration_id)
    assert [one.id for one in ledger.hydrations()] == [other_id]
    assert (ledger.ranges(plan_id), ledger.statistics(hydration_id)) == ([], [])
    assert [act.action for act in ledger.controls(hydration_id)] == ["pause"]
    assert ledger.counts(other.plan.plan_id).planned == 2
    assert register(ledger) != hydration_id


def test_a_hydration_moves_to_other_addresses_with_all_that_belongs_to_it(ledger):
    """One that is there without a plan is forgotten; one with a plan stays, and keeps it out."""
    hydration_id, plan_id = planned(ledger, 3)
    take(ledger, hydration_id)
    before, there = ledger.hydration(hydration_id), {"source_identity": "pg://new/s", "sink_identity": "pg://new/t"}
    register(ledger, **there)
    for _ in range(2):
        ledger.move(hydration_id, **there)
        (found,) = ledger.hydrations()
        assert found == replace(before, **there, plan=replace(before.plan, **there), updated_at=found.updated_at)
    assert register(ledger, **there) == hydration_id
    assert ledger.counts(plan_id).admitted == 1
    other_id, other_plan = planned(ledger, 2)
    with pytest.raises(LedgerRefused, match=other_id):
        ledger.move(hydration_id, source_identity=before.source_identity, sink_identity=before.sink_identity)
    with pytest.raises(LedgerRefused, match="0" * 32):
        ledger.move("0" * 32, **there)
    assert ledger.counts(other_plan).planned == 2
    assert ledger.hydration(hydration_id) == found
