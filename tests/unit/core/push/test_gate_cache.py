"""The copy of a gate: exact by diffs in order, and never wrong for longer than until the next read."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.gate.gate_event import Diff
from airflow_provider_backpressure.core.gate.hydration import GateState, Phase
from airflow_provider_backpressure.core.push.wait_queue import Mirror

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


def seen(state: GateState = GATE) -> Mirror:
    mirror = Mirror()
    mirror.saw(state, mirror.mark())
    return mirror


def test_nothing_is_known_before_the_first_read():
    mirror = Mirror()
    assert mirror.stale
    assert mirror.may_open
    assert not mirror.hear(diff(1))
    mirror.saw(GATE, mirror.mark())
    assert not mirror.stale
    assert not mirror.may_open


@pytest.mark.statement("P6")
def test_the_next_number_applies():
    """P6: last + 1 goes in."""
    mirror = seen()
    assert mirror.hear(diff(6, in_flight=-1))
    assert mirror.state == replace(GATE, number=6, in_flight=1)
    assert mirror.may_open
    assert mirror.hear(diff(7, changes={"paused_by": "ada", "paused_why": "lunch"}))
    assert not mirror.may_open
    assert mirror.hear(diff(8, changes={"paused_by": None, "paused_why": None}, in_flight=1))
    assert not mirror.may_open


@pytest.mark.statement("P6")
@pytest.mark.parametrize(
    "wrong", [diff(8), diff(6), diff(1), diff(7, changes=None)], ids=["gap", "double", "old", "bare"]
)
def test_anything_else_has_to_be_read(wrong):
    """P6: a gap, a double, an old one, and one that tells no more than its number."""
    mirror = seen()
    assert mirror.hear(diff(6))
    assert not mirror.hear(wrong)
    assert mirror.stale
    assert mirror.may_open
    assert not mirror.hear(diff(7))
    mirror.saw(replace(GATE, number=8), mirror.mark())
    assert not mirror.stale
    assert mirror.hear(diff(9))


@pytest.mark.statement("P6")
def test_what_a_read_has_overtaken_needs_no_other_one():
    """P6: it does not go in cleanly; the ledger was read since."""
    mirror = seen()
    mirror.saw(replace(GATE, number=7), mirror.mark())
    assert not mirror.hear(diff(6))
    assert not mirror.hear(diff(7))
    assert not mirror.stale
    assert mirror.hear(diff(8))
    assert not mirror.hear(diff(8))
    assert mirror.stale


def test_a_read_that_began_before_a_loss_does_not_heal_it():
    mirror = seen()
    mark = mirror.mark()
    mirror.lose()
    mirror.saw(replace(GATE, number=6), mark)
    assert mirror.stale
    mirror.saw(replace(GATE, number=6), mirror.mark())
    assert not mirror.stale


def test_what_is_heard_during_a_read_is_not_lost():
    mirror = seen()
    mark = mirror.mark()
    assert mirror.hear(diff(6, in_flight=-1))
    mirror.saw(GATE, mark)
    assert mirror.number == 6
    mirror.lose()
    mark = mirror.mark()
    assert not mirror.hear(diff(9))
    mirror.saw(replace(GATE, number=8), mark)
    assert mirror.stale


def test_a_restored_ledger_is_followed():
    """Its numbers begin lower."""
    mirror = seen(replace(GATE, number=100))
    mirror.saw(replace(GATE, number=50), mirror.mark())
    assert mirror.number == 50
    assert mirror.hear(diff(51))


def test_a_number_that_is_a_lie_does_not_stay_in_the_way():
    mirror = seen()
    assert not mirror.hear(diff(10**12))
    mirror.saw(replace(GATE, number=6), mirror.mark())
    assert not mirror.stale


@given(seed=st.integers(0, 10_000), loss=st.floats(0, 0.6))
def test_whatever_happens_on_the_way_a_copy_that_is_not_stale_is_right(seed, loss):
    """Lost, doubled and late messages, and reads at any moment: a copy that counts as good equals some ledger that was,
    and once everything has come and was read, the ledger as it is.
    """
    dice, mirror = random.Random(seed), Mirror()
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
            mirror.hear(wire.pop(dice.choice([0, 0, len(wire) - 1])))
        elif act < 0.9:
            mark, state = mirror.mark(), truth
            if wire and dice.random() < 0.5:
                mirror.hear(wire.pop(0))
            mirror.saw(state, mark)
        if not mirror.stale:
            assert mirror.state == history[mirror.number]
    while wire:
        mirror.hear(wire.pop(0))
    mirror.saw(truth, mirror.mark())
    assert mirror.state == truth
