"""One waiter's looks at the gate: what it asks the ledger for, in which order, and when it stops to wait."""

from typing import Any

import pytest

from airflow_provider_backpressure.core.admission.gate_watcher import Watch, Watcher, Why
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import commit, planned, take

LANE = "orders/manual__1/range-1"


class Asked:
    """A ledger that notes what it is asked for."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self.ledger, self.names = ledger, list[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.ledger, name)
        if callable(found):
            self.names.append(name)
        return found


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


def watcher(ledger: Any, hydration_id: str, plan_id: str, *, lane: str = LANE) -> Watcher:
    return Watcher(
        ledger=ledger,
        hydration_id=hydration_id,
        budget=Budget(credits=2),
        watch=Watch.COMMIT,
        plan_id=plan_id,
        seq=1,
        lane=lane,
    )


def test_a_credit_that_is_free_is_taken_without_a_read_between(ledger: MemoryLedger) -> None:
    """P1: after the gate's own state the reservation comes first; a gate that stays closed costs reads, and no try."""
    hydration_id, plan_id = planned(ledger, 3, credits=1)
    first, asked = take(ledger, hydration_id), Asked(ledger)
    waiting = watcher(asked, hydration_id, plan_id)
    assert waiting.look() is None
    assert "admit" not in asked.names
    commit(ledger, plan_id, first.seq)
    asked.names.clear()
    assert waiting.look() is Why.OPEN
    assert asked.names == ["gate", "admit"]
    assert ledger.range(plan_id, 1).lane == LANE


def test_its_own_reservation_is_renewed_at_a_closed_gate(ledger: MemoryLedger) -> None:
    hydration_id, plan_id = planned(ledger, 3, credits=1)
    waiting = watcher(ledger, hydration_id, plan_id)
    assert [waiting.look(), waiting.look()] == [Why.OPEN, Why.OPEN]
    assert ledger.gate(hydration_id).in_flight == 1


def test_what_somebody_else_has_is_waited_for_and_what_is_in_is_settled(ledger: MemoryLedger) -> None:
    """An open gate gives no second credit for a range that is out, nor for one that is committed."""
    hydration_id, plan_id = planned(ledger, 3, credits=2)
    other, waiting = (watcher(ledger, hydration_id, plan_id, lane=lane) for lane in ("orders/manual__2/range-1", LANE))
    assert other.look() is Why.OPEN
    assert waiting.look() is None
    assert ledger.gate(hydration_id).in_flight == 1
    commit(ledger, plan_id, 1)
    assert waiting.look() is Why.SETTLED
    assert ledger.gate(hydration_id).in_flight == 0
