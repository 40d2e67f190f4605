"""Cases for the simulation, and what is looked at in a run. A range's time is told in pressure.

``each`` is the pressure that one range in flight adds.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_backpressure.core.config import Budget
from tests.support.cluster import GIB, Cluster, EventClock, Station
from tests.support.flow import Flow, Moment, run

ROWS = 100_000.0
MEBIBYTE = 2**20
DROWNED = 60.0
"""``Budget.commit_seconds``: the latency that is a pressure of 1."""


def skewed(seed: int, most: float = 2.0) -> Callable[[int], tuple[float, int]]:
    """Return ranges of a mean of about ``ROWS`` rows that differ by up to ``most``, their memory alike."""

    def shape(seq: int) -> tuple[float, int]:
        size = random.Random(seed * 1_000_003 + seq).uniform(1.0, most)
        return ROWS * size, int(64 * MEBIBYTE * size)

    return shape


@dataclass
class Case:
    """One hydration into a sink that is its bound."""

    each: float
    credits: int
    ranges: int = 300
    fifo: bool = False
    law: str = "graded"
    lanes: int = 1
    shape: Callable[[int], tuple[float, int]] = lambda seq: (ROWS, MEBIBYTE)

    def __post_init__(self) -> None:
        self.clock = EventClock()
        self.rate = ROWS / (self.each * DROWNED)
        self.sink = Station(self.clock, self.rate, fifo=self.fifo)
        self.cluster = Cluster(self.clock, executors=200, slots=10, limit=64 * GIB)
        self.flow = Flow(
            clock=self.clock,
            sink=self.sink,
            cluster=self.cluster,
            ranges=self.ranges,
            lanes=self.lanes,
            budget=Budget(credits=self.credits, range_rows=1, commit_seconds=DROWNED, law=self.law),
            shape=self.shape,
        )

    @classmethod
    def of(cls, seed: int, **changes: Any) -> "Case":
        """Return a case drawn by its seed: from a sink that is bored by all credits to one that drowns in two."""
        draw = random.Random(seed)
        values = {"each": 10 ** draw.uniform(-2.5, -0.4), "credits": draw.randint(1, 48), "fifo": draw.random() < 0.5}
        return cls(**{**values, **changes})

    def fall(self, to: float, *, after: int, lasting: float | None = None) -> float:
        """Let the sink fall to a share of its rate after so many ranges' time, and come back; return when."""
        at = after * ROWS / self.rate
        self.clock.at(at, lambda: self.sink.set_rate(self.rate * to))
        if lasting is not None:
            self.clock.at(at + lasting, lambda: self.sink.set_rate(self.rate))
        return at

    def run(self) -> Flow:
        """Run to the end; what holds always is checked."""
        run(self.clock, self.flow)
        check_always(self.flow)
        return self.flow


def check_always(flow: Flow) -> None:
    """Check what no load may break: the faucet, the floor, and that nothing was lost or locked up."""
    assert sorted(flow.target.rows) == list(range(flow.ranges))
    for admission in flow.admissions:
        assert admission.in_flight <= admission.credits, "more in flight than credits, or one more after they fell"
        assert admission.seen, "admitted while the memory was not seen"
    assert all(1 <= moment.credits <= flow.budget.credits for moment in flow.moments)


def settled(flow: Flow) -> list[int]:
    """Return the credits of a steady load's last two thirds."""
    return [moment.credits for moment in flow.moments[len(flow.moments) // 3 :]]


def after_fall(flow: Flow, fell: float) -> list[Moment]:
    """Return the commits of ranges that were admitted after a fall."""
    late = {admission.seq for admission in flow.admissions if admission.at > fell}
    return [moment for moment in flow.moments if moment.seq in late]


def check_steady(each: float, credits: int) -> None:
    """Check that the credits of a steady load come to rest, where the pressure is neither low nor high for nothing."""
    flow = Case(each=each, credits=credits).run()
    credits_then = settled(flow)
    assert max(credits_then) - min(credits_then) <= 1, "the credits swing"
    pressure = flow.moments[-credits // 2 - 1].pressure
    assert pressure <= 0.72 or max(credits_then) == 1, "the sink is pressed on and on"
    assert min(credits_then) == credits or pressure > 0.2, "credits are kept back for nothing"


def check_relief(each: float, credits: int, to: float) -> None:
    """Check that credits are few enough for what the sink is now, and soon, and that the gate's own pressure follows.

    Those in flight when it fell must come in at its new pace first: nobody can take them back.
    """
    case = Case(each=each, credits=credits, ranges=40 + 5 * credits)
    fell = case.fall(to, after=20 + credits)
    flow = case.run()
    late = after_fall(flow, fell)
    few = next(number for number, moment in enumerate(late, 1) if moment.credits * each / to < 0.72)
    low = next(number for number, moment in enumerate(late, 1) if moment.pressure < 0.72)
    assert few <= 5, "the law is too slow"
    assert low <= 5 + 2 * late[0].credits, "what it has learned lasts too long"
