"""Lanes on a real ledger: turns on a cluster, and a hand that is felt within a second. Spark is not the subject."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.gate.cluster_queue import Change, Shared
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from tests.conformance.ledger.support import address

pytestmark = pytest.mark.integration

CLUSTER = "spark"
SOON = 1.0
"""Seconds within which a lane that waits inline has to follow."""


class Lane:
    """A hydration in memory, drained in a thread through a gate in a real ledger; a job ends when a test says so."""

    def __init__(self, url: str, name: str, *, credits: int = 2) -> None:
        self.ledger = SqlLedger(url)
        self.source, self.sink = MemorySource(keys=range(100)), MemorySink()
        self.source.identity, self.sink.identity = f"memory://{name}", f"memory://{name}"
        self.runner = MemoryRunner(source=self.source, sink=self.sink, held=True)
        self.budget = Budget(credits=credits, range_rows=10)
        self.planned = Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="dag",
            cluster=CLUSTER,
        ).plan()
        self.id, self.plan_id = self.planned.hydration.id, self.planned.plan.plan_id
        self.thread = threading.Thread(target=self._drain)

    def _drain(self) -> None:
        Hydrator(
            hydration_id=self.id,
            plan=self.planned.plan,
            lane=self.source.identity,
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=Limiter(ledger=self.ledger, hydration_id=self.id, budget=self.budget, memory=self.runner.memory),
            budget=self.budget,
            share=8,
            inline_wait=60,
            poll=settings.poll_policy(),
        ).run()
        self.ledger.finish(self.id)

    @property
    def submitted(self) -> int:
        """Jobs so far."""
        return len(self.runner.submitted)

    def complete(self, wanted: int = 10) -> None:
        """Let jobs end until so many were submitted."""
        within(30, lambda: self.runner.complete() is None or self.submitted >= wanted)
        self.runner.complete()


def within(seconds: float, found: Callable[[], object]) -> None:
    """Wait until ``found`` is true; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s"
        time.sleep(0.01)


@contextmanager
def lanes(url: str, number: int, **values: int) -> Iterator[list[Lane]]:
    """Give so many lanes at work, and let them end in the end."""
    every = [Lane(url, f"t{index}", **values) for index in range(number)]
    try:
        yield every
    finally:
        every[0].ledger.share(Shared.HYDRATIONS, CLUSTER, number, who="test")
        for lane in every:
            lane.ledger.resume(lane.id, who="test")
            lane.runner.held = False
        for lane in every:
            within(30, lambda lane=lane: lane.runner.complete() is None or not lane.thread.is_alive())
            lane.ledger.close()


@pytest.fixture
def url(database) -> str:
    migrate(found := address(database))
    return found.render_as_string(hide_password=False)


@pytest.mark.statement("H1", "H3")
def test_one_more_source_starts_within_a_second_of_being_let(url: str) -> None:
    """H1, H3: three lanes for one token; raised to two exactly one more begins, and lowered none is stopped."""
    with lanes(url, 3) as every, closing(SqlLedger(url)) as ledger:
        ledger.share(Shared.HYDRATIONS, CLUSTER, 1, who="ada")
        for lane in every:
            lane.thread.start()
        within(10, lambda: sum(lane.submitted for lane in every) == 2)
        within(10, lambda: len(ledger.queue(CLUSTER)) == 3)
        assert sorted(lane.submitted for lane in every) == [0, 0, 2]
        ledger.share(Shared.HYDRATIONS, CLUSTER, 2, who="ada")
        within(SOON, lambda: sorted(lane.submitted for lane in every) == [0, 2, 2])
        ledger.share(Shared.HYDRATIONS, CLUSTER, 1, who="ada")
        first = next(lane for lane in every if lane.submitted)
        first.complete(4)
        within(10, lambda: first.submitted >= 4)
        assert sorted(lane.submitted > 0 for lane in every) == [False, True, True]
        assert sum(entry.running for entry in ledger.queue(CLUSTER)) == 2


def test_a_hand_is_felt_within_a_second(url: str) -> None:
    """Paused, no range begins any more; resumed, and with more or fewer credits, they go on at once."""
    with lanes(url, 1) as (lane,), closing(SqlLedger(url)) as ledger:
        lane.thread.start()
        within(10, lambda: lane.submitted == 2)
        ledger.steer(lane.id, Change(credits=4), who="ada")
        within(SOON, lambda: lane.submitted == 4)
        ledger.pause(lane.id, who="ada")
        lane.runner.complete()
        within(10, lambda: ledger.gate(lane.id).in_flight == 0)
        assert lane.submitted == 4
        ledger.steer(lane.id, Change(credits=1), who="ada")
        ledger.resume(lane.id, who="ada")
        within(SOON, lambda: lane.submitted == 5)
        assert ledger.gate(lane.id).in_flight == 1
