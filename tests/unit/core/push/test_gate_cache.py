"""The copy of a gate: exact by diffs in order, and never wrong for longer than until the next read."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.gate.gate_event import Diff
from airflow_provider_backpressure.core.gate.hydration_record import GateState, Phase
from airflow_provider_backpressure.core.push.wait_queue import GateCopy

GATE = GateState(
    phase=Phase.HYDRATION,
    credits=2,
    in_flight=2,
    waiting=1,
    reserved_bytes=0,
    oldest_seconds=None,
    commit_seconds=None,
    range_memory_bytes=None,
    paused_by=None,
    paused_why=None,
    memory_closed=False,
    number=5,
)


def diff(number: int, **values) -> Diff:
    return Diff(**{"hydration_id": "h", "number": number, "moment": 0.0, **values})


def seen(state: GateState = GATE) -> GateCopy:
    gate = GateCopy()
    gate.saw(state, gate.mark())
    return gate


def test_nothing_is_known_before_the_first_read():
    gate = GateCopy()
    assert gate.stale
    assert gate.may_open
    assert not gate.hear(diff(1))
    gate.saw(GATE, gate.mark())
    assert not gate.stale
    assert not gate.may_open


@pytest.mark.statement("P6")
def test_the_next_number_applies():
    """P6: last + 1 goes in."""
    gate = seen()
    assert gate.hear(diff(6, in_flight=-1))
    assert gate.state == replace(GATE, number=6, in_flight=1)
    assert gate.may_open
    assert gate.hear(diff(7, changes={"paused_by": "ada", "paused_why": "lunch"}))
    assert not gate.may_open
    assert gate.hear(diff(8, changes={"paused_by": None, "paused_why": None}, in_flight=1))
    assert not gate.may_open


@pytest.mark.statement("P6")
@pytest.mark.parametrize(
    "wrong", [diff(8), diff(6), diff(1), diff(7, changes=None)], ids=["gap", "double", "old", "bare"]
)
def test_anything_else_has_to_be_read(wrong):
    """P6: a gap, a double, an old one, and one that tells no more than its number."""
    gate = seen()
    assert gate.hear(diff(6))
    assert not gate.hear(wrong)
    assert gate.stale
    assert gate.may_open
    assert not gate.hear(diff(7))
    gate.saw(replace(GATE, number=8), gate.mark())
    assert not gate.stale
    assert gate.hear(diff(9))


@pytest.mark.statement("P6")
def test_what_a_read_has_overtaken_needs_no_other_one():
    """P6: it does not go in cleanly; the ledger was read since."""
    gate = seen()
    gate.saw(replace(GATE, number=7), gate.mark())
    assert not gate.hear(diff(6))
    assert not gate.hear(diff(7))
    assert not gate.stale
    assert gate.hear(diff(8))
    assert not gate.hear(diff(8))
    assert gate.stale


def test_a_read_that_began_before_a_loss_does_not_heal_it():
    gate = seen()
    mark = gate.mark()
    gate.lose()
    gate.saw(replace(GATE, number=6), mark)
    assert gate.stale
    gate.saw(replace(GATE, number=6), gate.mark())
    assert not gate.stale


def test_what_is_heard_during_a_read_is_not_lost():
    gate = seen()
    mark = gate.mark()
    assert gate.hear(diff(6, in_flight=-1))
    gate.saw(GATE, mark)
    assert gate.number == 6
    gate.lose()
    mark = gate.mark()
    assert not gate.hear(diff(9))
    gate.saw(replace(GATE, number=8), mark)
    assert gate.stale


def test_a_restored_ledger_is_followed():
    """Its numbers begin lower."""
    gate = seen(replace(GATE, number=100))
    gate.saw(replace(GATE, number=50), gate.mark())
    assert gate.number == 50
    assert gate.hear(diff(51))


def test_a_number_that_is_a_lie_does_not_stay_in_the_way():
    gate = seen()
    assert not gate.hear(diff(10**12))
    gate.saw(replace(GATE, number=6), gate.mark())
    assert not gate.stale


@given(seed=st.integers(0, 10_000), loss=st.floats(0, 0.6))
def test_whatever_happens_on_the_way_a_copy_that_is_not_stale_is_right(seed, loss):
    """Lost, doubled and late messages, and reads at any moment: a copy that counts as good equals some ledger that was,
    and once everything has come and was read, the ledger as it is.
    """
    dice, gate = random.Random(seed), GateCopy()
    truth, history, wire = GATE, {GATE.number: GATE}, []
    for _ in range(60):
        act = dice.random()
        if act < 0.4:
            step = dice.choice([-1, 1]) if truth.in_flight else 1
            truth = replace(truth, number=truth.number + 1, in_flight=truth.in_flight + step)
            history[truth.number] = truth
            message = diff(truth.number, in_flight=step)
            wire += [message] * (0 if dice.random() < loss else dice.choice([1, 1, 2]))
        elif act < 0.8 and wire:
            gate.hear(wire.pop(dice.choice([0, 0, len(wire) - 1])))
        elif act < 0.9:
            mark, state = gate.mark(), truth
            if wire and dice.random() < 0.5:
                gate.hear(wire.pop(0))
            gate.saw(state, mark)
        if not gate.stale:
            assert gate.state == history[gate.number]
    while wire:
        gate.hear(wire.pop(0))
    gate.saw(truth, gate.mark())
    assert gate.state == truth
