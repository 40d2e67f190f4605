"""Memory on a cluster of many executors, by simulation: Spark puts each range where it likes."""

import random
from collections import Counter

import pytest

from airflow_provider_backpressure.core.admission.gate_decision import Limiter
from airflow_provider_backpressure.core.config import Budget, Law
from airflow_provider_backpressure.core.gate.hydration import Permit
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import commit, planned

EXECUTORS, SLOTS = 200, 2
LIMIT, OWN = 1_000_000, 100_000
"""Of one executor, and what it holds without a range."""
ROUNDS = 3


class Cluster:
    """Executors with their slots; a range takes one of the free slots, by chance."""

    def __init__(self, each: int, seed: int) -> None:
        self.each, self.chance = each, random.Random(seed)
        self.free = [executor for executor in range(EXECUTORS) for _ in range(SLOTS)]
        self.on: dict[int, int] = {}
        self.most, self.busiest = 0, 0
        self.ledger = MemoryLedger()
        self.id, self.plan_id = planned(self.ledger, 2_000, credits=EXECUTORS * SLOTS)
        budget = Budget(credits=EXECUTORS * SLOTS, executor_memory=0.9, law=Law.FIXED)
        self.limiter = Limiter(ledger=self.ledger, hydration_id=self.id, budget=budget, memory=self.memory)

    def memory(self) -> MemoryReading:
        """See ``Runner.memory``: of the fullest executor."""
        fullest = max(Counter(self.on.values()).values(), default=0)
        return MemoryReading(
            used_bytes=OWN + fullest * self.each,
            limit_bytes=LIMIT,
            age_seconds=0.0,
            slots=EXECUTORS * SLOTS,
            slots_each=SLOTS,
            idle=not self.on,
        )

    def admit(self) -> bool:
        """Take a permit, if the gate gives one, and begin the range."""
        answer = self.limiter.acquire(lane="lane", session_id="session")
        if not isinstance(answer, Permit):
            return False
        executor = self.free.pop(self.chance.randrange(len(self.free)))
        self.on[answer.range.seq] = executor
        self.most = max(self.most, len(self.on))
        self.busiest = max(self.busiest, *Counter(self.on.values()).values())
        return True

    def commit(self, seq: int) -> None:
        """End a range; what it took is learned."""
        self.free.append(self.on.pop(seq))
        commit(self.ledger, self.plan_id, seq, memory_bytes=self.each)

    def run(self) -> None:
        """Learn from one range, and fill the cluster some times."""
        assert self.admit()
        self.commit(0)
        for _ in range(ROUNDS):
            while self.admit():
                pass
            for seq in self.chance.sample(sorted(self.on), len(self.on) // 2 or 1):
                self.commit(seq)


@pytest.mark.parametrize("seed", range(1))
def test_where_every_slot_fits_memory_never_limits_the_number_of_ranges(seed: int) -> None:
    """S1 by simulation: 200 executors are filled to their last slot."""
    cluster = Cluster(each=350_000, seed=seed)
    cluster.run()
    assert (cluster.most, cluster.busiest) == (EXECUTORS * SLOTS, SLOTS)


@pytest.mark.parametrize("seed", range(3))
def test_with_memory_for_one_range_never_two_are_on_one_executor(seed: int) -> None:
    """S1 by simulation, its safe half: nothing tells Spark to spread them, so one is in flight on the whole cluster."""
    cluster = Cluster(each=500_000, seed=seed)
    cluster.run()
    assert (cluster.most, cluster.busiest) == (1, 1)
