"""The gate in a simulation of sources, sinks and clusters far larger than this machine: does it settle, and how soon?

Everything that decides is the product's own, see :mod:`tests.support.flow`. A case is a seed.
"""

import random

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from tests.support.cases import (
    DROWNED,
    MEBIBYTE,
    ROWS,
    Case,
    check_always,
    check_relief,
    settled,
    skewed,
)
from tests.support.cluster import GIB, Cluster, EventClock, Station
from tests.support.flow import DEFERRAL_SECONDS, LOOK_SECONDS, Flow, install, run
from tests.support.marks import mark_long


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.mark.parametrize("seed", mark_long(range(30), quick=range(2)))
def test_a_steady_load_brings_the_credits_to_rest(seed: int) -> None:
    """Whatever sink and maximum: after a third of the run the credits differ by one at the most."""
    flow = Case.of(seed).run()
    credits = settled(flow)
    assert max(credits) - min(credits) <= 1


@pytest.mark.parametrize("lanes", [2, 3, 5])
@pytest.mark.parametrize("seed", mark_long(range(4), quick=range(1)))
def test_lanes_that_learn_each_for_itself_come_to_rest_together(seed: int, lanes: int) -> None:
    """Each knows its own ranges only, and how many the others have in flight; a step counts at once for all."""
    credits = settled(Case.of(seed, lanes=lanes).run())
    assert max(credits) - min(credits) <= 1


@pytest.mark.parametrize("seed", mark_long(range(12), quick=range(1)))
def test_ranges_of_different_sizes_move_the_credits_little(seed: int) -> None:
    """Sizes that differ by two are noise: the credits stay within a quarter of each other, or two."""
    flow = Case.of(seed, shape=skewed(seed)).run()
    credits = settled(flow)
    assert max(credits) - min(credits) <= max(2, max(credits) // 4)


FALLS = [(each, credits, to) for each in (0.01, 0.05, 0.15) for credits in (4, 8, 16, 48) for to in (0.5, 0.1)]


@pytest.mark.parametrize(("each", "credits", "to"), [fall for fall in FALLS if fall[0] / fall[2] <= 0.6])
def test_a_sink_that_falls_is_relieved_within_five_ranges(each: float, credits: int, to: float) -> None:
    """Where one range alone is not too much for it: with the fifth range that was admitted after the fall."""
    check_relief(each, credits, to)


@pytest.mark.parametrize(("to", "lasting"), [(0.5, 600.0), (0.1, 600.0), (0.02, 600.0), (0.0, 60.0), (0.0, 600.0)])
@pytest.mark.parametrize("seed", mark_long(range(4), quick=range(1)))
def test_what_was_taken_comes_back_with_the_sink(seed: int, to: float, lasting: float) -> None:
    """A sink that falls, or stands still, and comes back has credits again: all, or as many as the law grows to."""
    draw = random.Random(seed)
    case = Case.of(seed, each=draw.uniform(0.01, 0.1), credits=draw.randint(2, 12), ranges=400)
    case.fall(to, after=100, lasting=lasting)
    flow = case.run()
    assert min(case.credits, int(GradedLimit().grow / case.each)) <= flow.moments[-1].credits + 1


@pytest.mark.long
def test_a_cluster_of_two_hundred_executors_is_shared() -> None:
    """Three hydrations with 300 credits each share 2,000 slots and a sink: each settles, none starves."""
    clock = EventClock()
    sink = Station(clock, 600 * ROWS / DROWNED, each=ROWS / 4)
    cluster = Cluster(clock, executors=200, slots=10, limit=64 * GIB)
    flows = [
        Flow(
            clock=clock,
            sink=sink,
            cluster=cluster,
            ranges=1_500,
            budget=Budget(credits=300, range_rows=1),
            name=name,
            shape=lambda seq: (ROWS, 16 * MEBIBYTE),
        )
        for name in ("a", "b", "c")
    ]
    run(clock, *flows)
    for flow in flows:
        check_always(flow)
        credits = [moment.credits for moment in flow.moments[700:1_200]]
        assert max(credits) - min(credits) <= max(credits) // 8
    ends = [flow.done_at or 0.0 for flow in flows]
    assert max(ends) < 1.2 * min(ends)


@pytest.mark.parametrize("seed", mark_long(range(8), quick=range(2)))
def test_executors_come_and_go(seed: int) -> None:
    """Their number changes all the time: the faucet holds, what was lost is done again, and nothing locks up."""
    draw = random.Random(seed)
    case = Case.of(seed, each=draw.uniform(0.005, 0.05), credits=draw.randint(4, 64))
    for number in range(12):
        executors = draw.choice((1, 2, 20, 200))
        case.clock.at((number + 1) * 20 * ROWS / case.rate, lambda executors=executors: case.cluster.scale(executors))
    case.run()


@pytest.mark.statement("T6")
@pytest.mark.parametrize("seed", mark_long(range(12), quick=range(3)))
def test_learned_memory_never_passes_the_limit(seed: int) -> None:
    """T6: all credits on one executor, ranges that differ by up to two: together they never take more than it has."""
    draw = random.Random(seed)
    case = Case.of(seed, each=0.002, credits=draw.randint(2, 40), shape=skewed(seed))
    case.cluster = case.flow.cluster = Cluster(
        case.clock, slots=64, limit=int(draw.uniform(1.5, 6) * GIB), baseline=GIB // 2
    )
    case.run()
    assert GIB // 2 < case.cluster.peak <= case.cluster.limit


@pytest.mark.statement("T6")
@pytest.mark.parametrize("fifo", [True, False])
def test_ranges_that_are_suddenly_twice_as_large_find_room(fifo: bool) -> None:
    """T6: prediction knows of them with the first; until then there is what the law has left, and the live reading."""
    case = Case(each=0.002, credits=40, fifo=fifo, shape=lambda seq: (ROWS, (256 if seq < 100 else 512) * MEBIBYTE))
    case.cluster = case.flow.cluster = Cluster(case.clock, slots=64, limit=4 * GIB, baseline=GIB // 2)
    case.run()
    assert case.cluster.limit // 2 <= case.cluster.peak <= case.cluster.limit


@pytest.mark.statement("T6")
def test_a_range_that_alone_is_too_large_is_still_let_through() -> None:
    """T6: prediction never locks the gate: with nothing in flight one range goes, and only one."""
    case = Case(each=0.01, credits=8, shape=lambda seq: (ROWS, 3 * GIB), ranges=40)
    case.cluster = case.flow.cluster = Cluster(case.clock, slots=64, limit=4 * GIB)
    flow = case.run()
    learned = flow.admissions[8:]
    assert {admission.in_flight for admission in learned} == {1}


@pytest.mark.statement("T6")
@pytest.mark.parametrize("seed", mark_long(range(6), quick=range(2)))
def test_nothing_is_admitted_while_the_memory_is_not_seen(seed: int) -> None:
    """T6: fail closed, for as long as it takes; then it goes on by itself."""
    case = Case.of(seed, each=0.02, credits=6)
    unseen = []
    for began in (200.0, 300.0):

        def blind(seen: bool) -> None:
            case.cluster.seen = seen

        case.clock.at(began, lambda: blind(False))
        case.clock.at(began + 60.0, lambda: blind(True))
        unseen.append((began + case.flow.budget.signal_deadline + 0.1, began + 59.9))
    flow = case.run()
    assert not [one for one in flow.admissions if any(begin < one.at < end for begin, end in unseen)]
    again = next(one.at for one in flow.admissions if one.at > 360.0)
    assert again - 360.0 <= LOOK_SECONDS + DEFERRAL_SECONDS


@pytest.mark.parametrize("seed", mark_long(range(12), quick=range(1)))
def test_an_idle_gate_with_every_signal_fine_lets_one_through(seed: int) -> None:
    """However drowned the sink was: between one range's end and the next admission lies no more than a deferral."""
    case = Case.of(seed, each=random.Random(seed).uniform(0.5, 6.0), credits=1 + seed, ranges=30)
    flow = case.run()
    idle = [moment.at for moment in flow.moments[:-1] if not moment.in_flight]
    assert idle
    for began in idle:
        assert min(one.at for one in flow.admissions if one.at >= began) - began <= LOOK_SECONDS + DEFERRAL_SECONDS


@pytest.mark.statement("T5")
def test_a_slow_source_costs_no_credit() -> None:
    """T5: the source is the bound and each range is quick enough: all credits stay."""
    case = Case(each=0.001, credits=8)
    case.flow.reads.set_rate(8 * ROWS / 20.0)
    assert settled(case.run()) == [8] * 200


def test_the_fixed_law_stays_where_it_is() -> None:
    """It never gives a credit up; the gate closes all the same."""
    flow = Case(each=0.3, credits=8, law="fixed", ranges=60).run()
    assert {moment.credits for moment in flow.moments} == {8}
    assert max(moment.pressure for moment in flow.moments) >= 1
