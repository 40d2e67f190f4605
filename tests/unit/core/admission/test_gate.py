"""Signals, the decision over them, and the law of the credits."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter, gate_decision
from airflow_provider_backpressure.core.config import Budget, Law
from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit, GradedLimit, Pace, PacedLimit, limit_for
from airflow_provider_backpressure.core.gate.hydration_record import GateState, Phase, Refusal
from airflow_provider_backpressure.core.gate.signals import (
    MemoryReading,
    decide,
    live_memory,
    manual_pause,
    predict_memory,
    sink_commit,
)
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import planned


def reading(share: float, age: float = 0.0) -> MemoryReading:
    """Return a reading of one executor of 1 GiB."""
    return MemoryReading(used_bytes=round(share * 10**6), limit_bytes=10**6, age_seconds=age, executor="3")


def live(value: MemoryReading | None, *, was_closed: bool = False):
    """Return the live signal at the statement's marks."""
    return live_memory(value, high=0.8, low=0.6, was_closed=was_closed, deadline=15)


def state(**changes) -> GateState:
    """Return an open gate with one credit taken, changed as given."""
    values = {
        "phase": Phase.HYDRATION,
        "credits": 4,
        "in_flight": 1,
        "waiting": 1,
        "reserved_bytes": 0,
        "oldest_seconds": 1.0,
        "commit_seconds": 1.0,
        "range_memory_bytes": 1000,
        "paused_by": None,
        "paused_why": None,
        "memory_closed": False,
    }
    return GateState(**{**values, **changes})


@pytest.mark.statement("T6")
@pytest.mark.parametrize(
    ("share", "was_closed", "closed"),
    [(0.79, False, False), (0.80, False, True), (0.70, True, True), (0.60, True, True), (0.59, True, False)],
)
def test_live_memory_stops_at_the_high_mark_and_goes_on_below_the_low_one(share, was_closed, closed):
    """T6: 0.80 stops, below 0.60 goes on, between the marks the gate stays as it is."""
    signal = live(reading(share), was_closed=was_closed)
    assert signal.closed is closed
    assert f"{share:.0%}" in signal.sentence


@pytest.mark.statement("T6")
def test_memory_not_seen_closes_the_gate_with_that_reason():
    """T6: a signal not seen for 15 s is 1.0, and says so."""
    assert not live(reading(0.1, age=15)).closed
    late = live(reading(0.1, age=16))
    assert late.closed
    assert "not seen for 16 s" in late.sentence
    assert "never seen" in live(None).sentence


@pytest.mark.statement("T6")
def test_ranges_with_executors_of_their_own_do_not_take_from_each_other():
    """T6: there is nothing live to see, which closes nothing; one that would not fit its own executor is held."""
    own = MemoryReading(used_bytes=0, limit_bytes=10**6, age_seconds=0.0, isolated=True)
    many = state(reserved_bytes=10**7, in_flight=3, range_memory_bytes=700_000)
    decision = gate_decision(many, own, Budget(), baseline_bytes=10**7)
    assert decision.open
    assert not gate_decision(many, replace(own, isolated=False), Budget()).open
    assert "each range has executors of its own" in next(
        signal.sentence for signal in decision.signals if signal.name == "executor memory"
    )
    large = state(in_flight=1, range_memory_bytes=900_000)
    assert not gate_decision(large, own, Budget()).open
    assert gate_decision(replace(large, in_flight=0), own, Budget()).open


@pytest.mark.statement("T6")
def test_a_past_peak_never_holds_the_gate_closed():
    """T6: only the present reading counts, however high an earlier one was."""
    assert live(reading(0.95)).closed
    assert not live(reading(0.10), was_closed=True).closed


def missing(*, age: float, idle: bool = False) -> MemoryReading:
    """Return a reading without a figure."""
    return MemoryReading(used_bytes=None, limit_bytes=10**6, age_seconds=age, idle=idle)


@pytest.mark.statement("T6")
@pytest.mark.parametrize("idle", [False, True])
def test_a_reading_without_a_figure_leaves_the_gate_as_it_is(idle):
    """T6: it is no pressure, closes nothing that was open and opens nothing while ranges are in flight."""
    open_, closed = live(missing(age=1, idle=idle)), live(missing(age=1, idle=idle), was_closed=True)
    assert (open_.closed, closed.closed) == (False, True)
    assert not open_.measured
    assert not closed.measured
    assert decide([closed], in_flight=1).pressure == 0.0
    assert decide([closed], in_flight=0).open, "the gate cannot lock itself shut"


@pytest.mark.statement("T6")
def test_a_figure_that_stays_missing_closes_a_gate_over_running_stages_only():
    """T6: stages that run for 15 s unseen close it with that reason; on an idle cluster the past peak is forgotten."""
    assert live(missing(age=16)).closed
    assert "not seen for 16 s" in live(missing(age=16)).sentence
    assert not live(missing(age=16, idle=True), was_closed=True).closed
    assert not live(missing(age=math.inf, idle=True)).closed


@pytest.mark.statement("T6")
def test_prediction_decides_before_the_memory_is_taken():
    """T6: baseline, in flight and the next range together must fit the budget."""
    facts = {"baseline_bytes": 300, "reserved_bytes": 400, "limit_bytes": 1000, "high": 0.8}
    assert not predict_memory(next_bytes=100, **facts).closed
    refused = predict_memory(next_bytes=101, **facts)
    assert refused.closed
    assert "budget" in refused.sentence
    assert predict_memory(next_bytes=None, **facts).utilisation == 0.0


@pytest.mark.statement("T6")
def test_a_hydration_with_nothing_in_flight_waits_for_the_memory_that_others_have():
    """T6: as the ledger refuses it a permit. Where nobody has any in flight, one range always goes."""
    full = reading(0.1)
    first = state(in_flight=0, range_memory_bytes=full.limit_bytes, reserved_bytes=0)
    assert gate_decision(first, full, Budget()).open
    shared = gate_decision(replace(first, reserved_bytes=1), full, Budget())
    assert shared.closing == {"predicted memory"}
    assert gate_decision(replace(first, reserved_bytes=1), replace(full, isolated=True), Budget()).open


@pytest.mark.statement("T2")
def test_a_sink_that_commits_nothing_is_seen_by_its_oldest_range():
    """T2: the age of what is in flight is a reading too, not only what was committed."""
    assert not sink_commit(1.0, oldest_seconds=59, threshold=60).closed
    stuck = sink_commit(1.0, oldest_seconds=61, threshold=60)
    assert stuck.closed
    assert "oldest uncommitted range 61.0 s >= 60 s" in stuck.sentence
    assert sink_commit(None, oldest_seconds=None, threshold=60).utilisation == 0


def test_all_reasons_are_kept_not_just_the_first():
    """A closed gate names each signal that closes it."""
    decision = gate_decision(
        state(paused_by="ada", paused_why="lunch", in_flight=4, oldest_seconds=99.0), reading(0.9), Budget()
    )
    assert not decision.open
    text = " | ".join(decision.reasons)
    for part in ("paused by ada: lunch", "4 of 4 credits in flight", "99.0 s >= 60 s", "executor memory 90% of"):
        assert part in text


def test_the_gate_cannot_lock_itself_shut():
    """With nothing in flight learned signals do not bind: one probe range goes through."""
    drowned = state(in_flight=0, oldest_seconds=None, commit_seconds=900.0, range_memory_bytes=2**60)
    assert gate_decision(drowned, reading(0.1), Budget()).open
    assert not gate_decision(drowned, reading(0.9), Budget()).open
    assert not gate_decision(state(in_flight=1, commit_seconds=900.0), reading(0.1), Budget()).open


def test_a_hand_and_spent_credits_close_the_gate_but_are_no_pressure():
    """Credits do not halve because a person paused or because they are in use."""
    decision = gate_decision(state(paused_by="ada", in_flight=4), reading(0.1), Budget())
    assert not decision.open
    assert decision.pressure < 0.4
    assert decide([manual_pause("ada")], in_flight=0).reasons == ("paused by ada",)


@pytest.mark.parametrize(
    ("pressure", "after"), [(0.0, 5), (0.39, 5), (0.4, 4), (0.7, 4), (0.71, 3), (0.99, 3), (1.0, 2), (9.0, 2)]
)
def test_the_graded_law(pressure, after):
    """Below 0.4 grow by one, to 0.7 hold, to 1.0 shrink by one, from there halve."""
    assert GradedLimit().after(4, pressure, maximum=8) == after


@given(st.integers(1, 100), st.floats(0, 10), st.integers(1, 100))
def test_credits_stay_between_one_and_the_configured(credits, pressure, maximum):
    """Never more than configured, never fewer than one."""
    assert 1 <= GradedLimit().after(credits, pressure, maximum) <= maximum
    assert FixedLimit().after(credits, pressure, maximum) == maximum


def test_laws_are_chosen_by_the_budget():
    """The graded law is the default."""
    assert isinstance(limit_for(Budget().law), GradedLimit)
    assert isinstance(limit_for(Budget(law="fixed").law), FixedLimit)
    assert Budget(law="fixed").law is Law.FIXED
    with pytest.raises(InvalidDeclaration):
        GradedLimit(grow=0.9, hold=0.5)


@pytest.mark.parametrize(
    ("credits", "each", "others", "after"),
    [(4, 0.05, 0.0, 5), (4, 0.15, 0.0, 4), (4, 0.2, 0.0, 3), (4, 0.3, 0.0, 2), (4, 0.05, 0.8, 3), (1, 0.36, 0.0, 1)],
)
def test_a_step_goes_by_the_pressure_at_the_credits_there_are(credits, each, others, after):
    """What was looked at before counts no more, other signals do; a credit that would be taken back is not given."""
    assert PacedLimit(limit=GradedLimit(), each=each, others=others).after(credits, 9.0, maximum=8) == after


def test_many_credits_go_by_an_eighth():
    """A thousand of them one by one would take a thousand ranges."""
    assert GradedLimit().after(1000, 0.9, maximum=1000) == 875
    assert GradedLimit().after(7, 0.9, maximum=8) == 6


def test_the_pace_relates_latency_to_those_who_shared_the_sink():
    """Four together take 40 s, or each waits for those before it: ten seconds for each either way."""
    together = Pace()
    for seq in range(4):
        together.note_admission(seq, now=0.0)
    together.learn_commit(3, now=40.0)
    assert together.seconds == pytest.approx(10.0)
    queued = Pace()
    queued.saw(3, now=0.0)
    queued.note_admission(3, now=0.0)
    for left, now in ((3, 10.0), (2, 20.0), (1, 30.0)):
        queued.saw(left, now=now)
    queued.learn_commit(3, now=40.0)
    assert queued.seconds == pytest.approx(10.0)
    queued.learn_commit(99, now=50.0)
    assert queued.seconds == pytest.approx(10.0), "nothing is learned from what another lane admitted"


@pytest.mark.statement("T6")
def test_ranges_admitted_before_anything_was_learned_count_as_much_as_the_next():
    """T6: three that were admitted with no memory reserved are in flight all the same."""
    early = state(in_flight=3, reserved_bytes=0, range_memory_bytes=210_000)
    assert not gate_decision(early, reading(0.1), Budget()).open
    assert gate_decision(replace(early, in_flight=2), reading(0.1), Budget()).open


@pytest.mark.statement("T6")
def test_no_more_ranges_take_memory_on_an_executor_than_it_has_slots():
    """T6: others wait in Spark without memory; a stranger's larger range counts as one of them."""
    busy = state(in_flight=8, credits=9, reserved_bytes=8_000)
    budget = Budget()

    def predicted(**reading):
        found = MemoryReading(used_bytes=0, limit_bytes=4_000, age_seconds=0.0, **reading)
        (signal,) = (each for each in gate_decision(busy, found, budget).signals if each.name == "predicted memory")
        return signal

    assert predicted().closed
    assert not predicted(slots=12, slots_each=3).closed
    assert predicted(slots=16, slots_each=4).closed
    busy = state(in_flight=1, credits=9, reserved_bytes=3_000, largest_bytes=3_000)
    assert predicted(slots=12, slots_each=3).closed


def test_a_lane_asks_for_no_credit_where_nothing_is_left(monkeypatch):
    """A second look says the same as the ledger's refusal, and takes no lock; a sensor asks for its own range."""
    ledger = MemoryLedger()
    hydration_id, _ = planned(ledger, 1)
    limiter = Limiter(ledger=ledger, hydration_id=hydration_id, budget=Budget(), memory=lambda: reading(0.1))
    limiter.acquire(lane="lane", session_id="session")
    asked: list[object] = []
    looks: list[str] = []
    monkeypatch.setattr(ledger, "admit", lambda *_, **more: asked.append(more["seq"]))
    limiter.read_gate = lambda reader, gate: (looks.append(gate), reader.gate(gate))[1]
    refusal = limiter.acquire(lane="lane", session_id="session")
    assert isinstance(refusal, Refusal)
    assert refusal.exhausted
    assert not asked
    assert len(looks) == 1
    limiter.acquire(lane="lane", session_id="session", seq=0)
    assert asked == [0]
