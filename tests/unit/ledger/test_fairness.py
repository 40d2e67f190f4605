"""Connections to a server of sinks under every order of asking: nobody starves, and none is left unused for long."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.cluster_queue import STAND_BY_SECONDS, Change
from airflow_provider_backpressure.core.gate.hydration_record import Permit
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.testing import ManualClock
from tests.conformance.ledger.support import LIMIT, make_plan, register
from tests.support.ledger_model import LedgerModel

SERVER, RANGES = "postgres://warehouse:5432", 400
APART = MemoryReading(used_bytes=0, limit_bytes=1, age_seconds=0.0, isolated=True)
"""Of executors that nothing has to be known of."""


@dataclass
class Server:
    """Hydrations that all want more connections than there are, and ask through the gate as lanes do."""

    hydrations: int
    connections: int
    clock: ManualClock = field(default_factory=ManualClock)
    flying: list[tuple[int, str, int]] = field(default_factory=list)
    """Number of the hydration, plan and range."""
    admitted: list[int] = field(default_factory=list)
    """Numbers of hydrations, in the order of their admissions."""
    passed: dict[int, int] = field(default_factory=dict)
    """How many others were admitted since a hydration with nothing in flight began to wait."""
    longest: int = 0

    def __post_init__(self) -> None:
        noon = datetime(2026, 1, 1, tzinfo=UTC)
        self.ledger = LedgerModel(now=lambda: noon + timedelta(seconds=self.clock.now))
        budget = Budget(credits=8, sink_connections=self.connections)
        self.ids, self.limiters = [], []
        for number in range(self.hydrations):
            self.ids.append(
                register(
                    self.ledger,
                    sink_identity=str(number),
                    sink_server=SERVER,
                    cluster=str(number),
                    credits=8,
                    connections=self.connections,
                )
            )
            bounds = KeyBounds.of_column(column="id", start=None, end=None)
            ranges = [PlannedRange(seq=seq, bounds=bounds, rows=1, bytes=1) for seq in range(RANGES)]
            self.ledger.save_plan(self.ids[-1], make_plan(), ranges)
            limiter = Limiter(
                ledger=self.ledger, hydration_id=self.ids[-1], budget=budget, memory=lambda: APART, clock=self.clock
            )
            self.limiters.append(limiter)

    def ask(self, number: int) -> bool:
        """Let one lane look at the gate; whether it was admitted."""
        self.clock.sleep(0.001)
        answer = self.limiters[number].acquire(lane=str(number), session_id="s")
        assert len(self.flying) + isinstance(answer, Permit) <= self.connections
        if not isinstance(answer, Permit):
            if number not in {flown for flown, _, _ in self.flying}:
                self.passed.setdefault(number, 0)
            return False
        self.flying.append((number, answer.range.plan_id, answer.range.seq))
        self.admitted.append(number)
        self.passed.pop(number, None)
        self.passed = {each: count + 1 for each, count in self.passed.items()}
        self.longest = max(self.longest, *self.passed.values(), 0) if self.passed else self.longest
        return True

    def commit(self, index: int) -> int:
        """Let one range come in, and return whose it was."""
        number, plan_id, seq = self.flying.pop(index)
        self.ledger.commit(plan_id, seq, worker="w", attempt=1, rows=1, bytes=1, checksum="", limit=LIMIT, pressure=0.0)
        return number


@pytest.mark.parametrize("seed", range(16))
def test_nobody_waits_for_more_than_one_admission_of_each_other(seed: int) -> None:
    """Whoever commits asks first, so that he would take each connection that he gives back."""
    draw = random.Random(seed)
    server = Server(hydrations=draw.randint(2, 7), connections=draw.randint(1, 4))
    while len(server.flying) < server.connections:
        server.ask(0)
    for _ in range(60):
        server.clock.sleep(draw.uniform(0.0, 2.0))
        committed = server.commit(draw.randrange(len(server.flying)))
        others = draw.sample(range(server.hydrations), server.hydrations)
        for number in (committed, *others):
            server.ask(number)
        assert len(server.flying) == server.connections, "all that wait have asked, so none is left unused"
    assert server.longest <= server.hydrations - 1
    counts = [server.admitted.count(number) for number in range(server.hydrations)]
    assert min(counts) > 0


def test_with_one_connection_they_take_turns() -> None:
    """As peers on a round."""
    server = Server(hydrations=3, connections=1)
    server.ask(0)
    for _ in range(9):
        server.clock.sleep(1.0)
        for number in range(3):
            server.ask(number)
        committed = server.commit(0)
        for number in (committed, 0, 1, 2):
            server.ask(number)
    assert server.admitted == [*[0, 1, 2] * 3, 0]


def test_one_that_dies_while_it_waits_costs_its_lease_and_no_more() -> None:
    """The connection that is kept for it is used again as soon as it counts as silent."""
    server = Server(hydrations=2, connections=1)
    server.ask(0)
    server.ask(1)
    server.commit(0)
    server.clock.sleep(STAND_BY_SECONDS - 1)
    assert not server.ask(0)
    server.clock.sleep(2)
    assert server.ask(0)


def test_a_persons_priority_goes_first() -> None:
    """Before one that waits longer, as in the queue."""
    server = Server(hydrations=3, connections=1)
    server.ledger.steer(server.ids[2], Change(priority=1), who="ada")
    server.ask(0)
    for number in (1, 2):
        server.ask(number)
    server.commit(0)
    for number in (0, 1, 2):
        server.ask(number)
    assert server.admitted == [0, 2]
