"""Memory on a cluster of many executors, by simulation: Spark puts each range where it likes and where cores are."""

import random
from collections.abc import Sequence

import pytest

from airflow_provider_backpressure.core.admission.permits_and_reservations import (
    Limiter,
    count_task_cpus,
    memory_signals,
)
from airflow_provider_backpressure.core.config import Budget, Law
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.hydration_record import Permit
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import commit, register, replan
from tests.support.marks import mark_long
from tests.unit.core.admission.test_gate import state

LIMIT, JVM = 1_000_000, 100_000
"""Of one executor, and what its JVM holds."""
HIGH = 0.9
ROUNDS = 3


class Cluster:
    """Executors with their cores, and a hydration for each size of range; a range waits until its cores are free."""

    def __init__(
        self, sizes: Sequence[int], *, seed: int, executors: int = 200, cores: int = 2, settable: bool = True
    ) -> None:
        self.sizes, self.cores, self.settable = sizes, (cores,) * executors, settable
        self.chance = random.Random(seed)
        self.free = [*self.cores]
        self.used = [JVM] * executors
        self.waiting: list[tuple[int, int, int]] = []
        self.running: dict[tuple[int, int], tuple[int, int]] = {}
        """By hydration and range: the executor and the cores."""
        self.most, self.fullest = 0, 0
        self.ledger = MemoryLedger()
        budget = Budget(credits=cores * executors, executor_memory=HIGH, law=Law.FIXED)
        self.ledger.share(Shared.HYDRATIONS, "spark_default", len(sizes), who="test")
        named = [{"source_identity": f"source {number}", "credits": budget.credits} for number in range(len(sizes))]
        self.ids = [register(self.ledger, **each) for each in named]
        self.plans = [replan(self.ledger, each, 5 * sum(self.cores)) for each in self.ids]
        self.lanes = [
            Limiter(ledger=self.ledger, hydration_id=each, budget=budget, memory=self.memory) for each in self.ids
        ]

    def memory(self) -> MemoryReading:
        """See ``Runner.memory``: of the fullest executor."""
        return MemoryReading(
            used_bytes=max(self.used) if self.running else None,
            limit_bytes=LIMIT,
            age_seconds=0.0,
            slots=sum(self.cores),
            slots_each=max(self.cores),
            jvm_bytes=JVM,
            cores=self.cores if self.settable else (),
            idle=not self.running,
        )

    def admit(self, number: int) -> bool:
        """Take a permit for a hydration, if the gate gives one, and begin the range."""
        answer = self.lanes[number].acquire(lane=f"lane {number}", session_id="session")
        if not isinstance(answer, Permit):
            return False
        self.waiting.append((number, answer.range.seq, self.lanes[number].task_cpus))
        self.start()
        return True

    def start(self) -> None:
        """Give waiting ranges, the oldest first, the cores of an executor by chance."""
        for one in [*self.waiting]:
            number, seq, cpus = one
            fitting = [executor for executor, free in enumerate(self.free) if free >= cpus]
            if fitting:
                self.waiting.remove(one)
                executor = self.chance.choice(fitting)
                self.free[executor] -= cpus
                self.used[executor] += self.sizes[number]
                self.running[number, seq] = executor, cpus
                self.fullest = max(self.fullest, self.used[executor])
        self.most = max(self.most, len(self.running))

    def commit(self, number: int, seq: int) -> None:
        """End a range; what it took is learned."""
        executor, cpus = self.running.pop((number, seq))
        self.free[executor] += cpus
        self.used[executor] -= self.sizes[number]
        commit(self.ledger, self.plans[number], seq, memory_bytes=self.sizes[number])
        self.start()

    def run(self) -> None:
        """Learn from one range of each hydration, and fill the cluster some times."""
        for number in range(len(self.sizes)):
            assert self.admit(number)
            self.commit(number, 0)
        self.fullest = 0
        for _ in range(ROUNDS):
            for number in range(len(self.sizes)):
                while self.admit(number):
                    pass
            for number, seq in self.chance.sample(sorted(self.running), len(self.running) // 2 or 1):
                self.commit(number, seq)


@pytest.mark.long
def test_where_every_slot_fits_memory_never_limits_the_number_of_ranges() -> None:
    """S1 by simulation: 200 executors are filled to their last slot."""
    cluster = Cluster([350_000], seed=0)
    cluster.run()
    assert (cluster.most, cluster.fullest) == (400, JVM + 2 * 350_000)


@pytest.mark.statement("S1")
@pytest.mark.parametrize("executors", mark_long([40, 200], quick=[40]))
def test_with_memory_for_one_range_each_executor_has_one(executors: int) -> None:
    """S1 by simulation: a range takes both cores, so that all executors work and never two ranges are on one."""
    cluster = Cluster([500_000], seed=0, executors=executors)
    cluster.run()
    assert (cluster.most, cluster.fullest) == (executors, JVM + 500_000)


@pytest.mark.parametrize("seed", mark_long(range(2), quick=range(1)))
def test_where_cores_cannot_be_set_one_range_runs_on_the_whole_cluster(seed: int) -> None:
    """Its safe half: nothing makes Spark spread them."""
    cluster = Cluster([500_000], seed=seed, settable=False)
    cluster.run()
    assert (cluster.most, cluster.fullest) == (1, JVM + 500_000)


@pytest.mark.parametrize("seed", mark_long(range(6), quick=range(2)))
def test_ranges_of_different_sizes_fit_beside_each_other(seed: int) -> None:
    """Hydrations that share a cluster of eight cores an executor: each takes cores by its own ranges' memory."""
    sizes = [random.Random(seed).randrange(50_000, 800_000) for _ in range(3)]
    cluster = Cluster(sizes, seed=seed, executors=5, cores=8)
    cluster.run()
    assert cluster.most >= 5
    assert cluster.fullest <= LIMIT * HIGH


@pytest.mark.parametrize(
    ("each", "cores", "cpus"),
    [
        (100, 4, 1),
        (200, 4, 1),
        (201, 4, 2),
        (400, 4, 2),
        (401, 4, 3),
        (800, 4, 4),
        (900, 4, 4),
        (320, 5, 2),
        (None, 4, 1),
    ],
)
def test_the_share_of_the_cores_is_that_of_the_memory(each: int | None, cores: int, cpus: int) -> None:
    """800 of 1,000 bytes are for ranges; what is not known takes one core, as ever."""
    reading = MemoryReading(used_bytes=None, limit_bytes=1_125, age_seconds=0.0, jvm_bytes=100, cores=(cores,) * 3)
    assert count_task_cpus(state(range_memory_bytes=each), reading, Budget()) == cpus
    spread = reading.with_task_cpus(cpus)
    assert (spread.slots, spread.slots_each) == (3 * (cores // cpus), cores // cpus)


def test_executors_of_different_sizes_have_slots_by_their_own_cores() -> None:
    """A range goes by the largest; what is too small for it has no slot."""
    reading = MemoryReading(used_bytes=None, limit_bytes=1_125, age_seconds=0.0, jvm_bytes=100, cores=(8, 4, 2))
    cpus = count_task_cpus(state(range_memory_bytes=250), reading, Budget())
    assert (cpus, reading.with_task_cpus(cpus).slots, reading.with_task_cpus(cpus).slots_each) == (3, 3, 2)


@pytest.mark.statement("S3")
def test_the_prediction_contains_the_jvm_and_the_workers() -> None:
    """S3: the JVM once for each executor, what a range's own worker takes for each range; strangers include a JVM."""
    reading = MemoryReading(used_bytes=None, limit_bytes=1_000, age_seconds=0.0, jvm_bytes=300, slots=6, slots_each=2)
    learned = state(range_memory_bytes=250, in_flight=3)
    assert not memory_signals(learned, reading, Budget())[0].closed
    assert memory_signals(state(range_memory_bytes=251, in_flight=3), reading, Budget())[0].closed
    assert memory_signals(learned, reading, Budget(), baseline_bytes=301)[0].closed
    assert not memory_signals(learned, reading, Budget(), baseline_bytes=299)[0].closed
