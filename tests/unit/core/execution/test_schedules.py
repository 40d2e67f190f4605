"""Thousands of schedules of lanes, Spark tasks, sink and ledger: whoever dies or sleeps, no range is lost or doubled.

A schedule is a list of moves, each of which chooses what happens next; one that fails is printed as short as it goes.
"""

import os
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.mutations import MUTATIONS, Mutation
from tests.support.schedules import account, broken, played, replay, shortest
from tests.support.scripts import MOVES, Script
from tests.support.shrinking import shrunk
from tests.support.simulation import stage

SEEDS = int(os.environ.get("SIMULATED_SCHEDULES", "400"))
"""How many schedules are played by seed."""
ENOUGH = 400
"""Schedules within which a mutation has to be noticed."""
COMMON = (
    "restore ledger",
    "restore sink",
    "restart",
    "driver",
    "twin",
    "kill lane",
    "end lane",
    "kill task",
    "kill planner",
)
SOUGHT = (
    "read again",
    "zombie committed",
    "zombie refused",
    "double refused",
    "commit unknown",
    "older sink named",
    "ranges cut",
)
"""What schedules are there for: it has to come about."""

scripts = st.builds(
    Script,
    ranges=st.integers(1, 4),
    credits=st.integers(1, 3),
    planned=st.integers(0, 1),
    moves=st.lists(st.tuples(st.sampled_from(["step"] * len(MOVES) + MOVES), st.integers(0, 15)), max_size=120).map(
        tuple
    ),
)


@pytest.mark.statement("X1", "X2", "T1")
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=scripts)
def test_no_schedule_loses_or_doubles_a_range(script: Script) -> None:
    """X1, X2, T1: searched for by hypothesis, which shrinks what it finds."""
    with stage():
        what = broken(script)
        assert what is None, account(script)


@pytest.mark.statement("X1", "X2", "T1")
@pytest.mark.fault(3, 4, 5, 6, 8, 11, 12, 13, 22, 23, 24)
def test_schedules_by_seed_lose_and_double_nothing(record_property) -> None:
    """X1, X2, T1: they do contain what they are meant to, each kind often."""
    happened: Counter[str] = Counter()
    began = time.process_time()
    with stage():
        for seed in range(SEEDS):
            schedule = played(Script.of(seed))
            happened += schedule.happened + schedule.world.seen
    record_property("schedules", SEEDS)
    record_property("seconds", time.process_time() - began)
    assert min(happened[name] for name in COMMON) > SEEDS // 10, happened
    assert min(happened[name] for name in SOUGHT) > SEEDS // 100, happened


@pytest.mark.statement("X1", "X2", "T1")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
@pytest.mark.fault(12, 13)
def test_what_is_left_out_is_noticed(mutation: Mutation, record_property) -> None:
    """X1, X2, T1: the simulation is able to fail, within a few hundred schedules, and says why."""
    with stage() as patch:
        mutation.apply(patch)
        number, script = next((seed + 1, script) for seed in range(ENOUGH) if broken(script := Script.of(seed)))
        found = broken(script)
    assert found is not None
    assert any(words in found for words in mutation.noticed), found
    record_property("mutation", str(mutation))
    record_property("after", number)


@pytest.mark.statement("X2")
@pytest.mark.fault(23)
def test_a_zombie_does_not_hide_that_the_sink_is_older() -> None:
    """X2: the simulation's own find: it commits behind the restore, so that as many ranges are there as before."""
    lane, task = ("step", 0), ("step", 1)
    first = (*[lane] * 9, *[task] * 5, *[lane] * 15)
    script = Script(ranges=2, credits=1, moves=(("back up", 0), *first, ("restore sink", 0), *[lane] * 4))
    with stage():
        schedule = played(script)
        assert schedule.world.named
        assert "has 0 of the 1 ranges" in schedule.world.named[0]


def test_a_schedule_is_played_alike_each_time() -> None:
    """By its seed, and by the line that is printed: the same moves, at the same places, with the same names."""
    script = Script.of(14)
    with stage():
        first, second = account(script), account(script)
    assert first == second == replay(str(script))
    assert len(first.splitlines()) > 50


def test_a_failing_schedule_is_printed_as_short_as_it_goes() -> None:
    """Without the fence a lane that stood between its permit and its submission writes into the next plan's target."""
    (mutation,) = (one for one in MUTATIONS if one.name == "the fence is not checked")
    with stage() as patch:
        mutation.apply(patch)
        script = next(script for seed in range(ENOUGH) if broken(script := Script.of(seed)))
        short = shortest(script)
        lines = account(short).splitlines()
    assert len(short.moves) <= 12 < len(script.moves)
    assert lines[0] == "AssertionError: a row is in the sink twice"
    assert any("a person empties the target and restarts" in line for line in lines)
    assert "frozen are: lane a" in lines[-2]
    assert Script.parse(str(short)) == short


def test_shrinking_leaves_what_is_needed() -> None:
    """Also where two things can only go together."""
    found = shrunk(
        list(range(40)),
        lambda items: sum(items) >= 7 and len(items) % 2 == 1,
        simpler=lambda item: iter(range(item)),
    )
    assert found == [7]
