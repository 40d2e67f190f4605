"""What an executor holds besides our ranges is measured while none of them is in flight, and at no other time."""

import pytest

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import admit, commit, planned

LIMIT = 1_000_000
EACH = 100_000
"""What a range takes."""
OWN = 200_000
"""What the executor holds without one."""


class Executor:
    """Its memory grows with the ranges in flight."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.id, self.plan_id = planned(self.ledger, 10, credits=9)
        self.limiter = Limiter(ledger=self.ledger, hydration_id=self.id, budget=Budget(credits=9), memory=self.memory)

    def memory(self) -> MemoryReading:
        used = OWN + EACH * self.ledger.gate(self.id).in_flight
        return MemoryReading(used_bytes=used, limit_bytes=LIMIT, age_seconds=0.0, executor="1")

    def predicted(self) -> float:
        """Return the share of the budget that the next range would fill, with those in flight."""
        _, decision = self.limiter.look()
        (signal,) = (each for each in decision.signals if each.name == "predicted memory")
        return signal.utilisation * 0.8 * LIMIT


@pytest.mark.statement("T6")
@pytest.mark.parametrize("known", [0, EACH])
def test_what_ranges_in_flight_take_is_not_counted_twice(known: int) -> None:
    """T6: neither where they have reserved memory, nor while nothing has been learned that they could reserve."""
    at = Executor()
    at.predicted()
    for _ in range(4):
        assert admit(at.ledger, at.id, memory_bytes=known) is not None
        at.predicted()
    assert at.limiter._baseline == OWN
    commit(at.ledger, at.plan_id, 0, memory_bytes=EACH)
    assert at.ledger.gate(at.id).range_memory_bytes == EACH
    assert at.predicted() == pytest.approx(OWN + 3 * EACH + EACH, abs=10)


@pytest.mark.statement("T6")
def test_what_it_holds_is_measured_again_when_none_is_in_flight() -> None:
    """T6: a stranger that came meanwhile counts from then on."""
    at = Executor()
    at.limiter.look()
    permit = admit(at.ledger, at.id, memory_bytes=EACH)
    assert permit is not None
    commit(at.ledger, at.plan_id, permit.range.seq, memory_bytes=EACH)
    at.limiter.memory = lambda: MemoryReading(used_bytes=3 * OWN, limit_bytes=LIMIT, age_seconds=0.0, executor="1")
    at.limiter.look()
    assert at.limiter._baseline == 3 * OWN
