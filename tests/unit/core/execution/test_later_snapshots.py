"""Snapshots that are lost at any moment, by chance: the target ends as the source was in the last one."""

import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.planning import planner
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec, Slice, SliceResult
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.exceptions import PlanOutdated, RangeFailed, SnapshotLost
from airflow_provider_backpressure.testing import ManualClock, MemoryRunner, MemorySink, MemorySource
from airflow_provider_backpressure.testing.sink import checksum_of, select_keys
from airflow_provider_backpressure.testing.source import MemoryKeeper
from tests.support.ledger_model import LedgerModel

SEEDS = 40
LIVES = 12


class Died(BaseException):
    """A lane ends as by kill -9."""


@dataclass(kw_only=True)
class ChangingSource(MemorySource):
    """A source that changes; a snapshot has the keys of its moment."""

    held: dict[str, Sequence[int]] = field(default_factory=dict)

    def keep(self, plan: Plan) -> MemoryKeeper:
        keeper = super().keep(plan)
        self.held[keeper.snapshot] = list(self.keys)
        return keeper


@dataclass(kw_only=True)
class LateRunner(MemoryRunner):
    """Attempts read in their snapshot when they begin, and some write only when the test says so."""

    draw: random.Random
    late: float
    frozen: list[tuple[RangeSpec, "Future[RangeResult]"]] = field(default_factory=list)

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        future: Future[RangeResult] = Future()
        if self.late and self.draw.random() < 0.1:
            future.set_exception(RangeFailed("The worker was lost."))
            return future
        if self.draw.random() >= self.late:
            return super().run(spec)
        self.frozen.append((spec, future))
        return future

    def thaw(self) -> None:
        """Let a frozen attempt do the rest of its work, however late that is."""
        if self.frozen:
            self._carry_out(*self.frozen.pop(self.draw.randrange(len(self.frozen))))

    def _copy(self, spec: RangeSpec, piece: Slice) -> SliceResult:
        assert isinstance(self.source, ChangingSource)
        assert spec.read.snapshot is not None
        keys = select_keys(self.source.held[spec.read.snapshot], piece.query)
        found = SliceResult(slice_id=piece.slice_id, rows=len(keys), bytes=8 * len(keys), checksum=checksum_of(keys))
        if spec.is_unchanged(found):
            return replace(found, unchanged=True)
        marker = self.sink.commit(spec, piece, keys)
        return replace(found, rows=marker.rows, checksum=marker.checksum)


@dataclass(kw_only=True)
class Course:
    """One hydration under one seed."""

    seed: int
    mode: Mode
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(f"{self.mode} {self.seed}")
        self.source = ChangingSource(keys=range(0, 200, 2))
        self.sink = MemorySink()
        self.ledger = LedgerModel()
        self.runner = LateRunner(source=self.source, sink=self.sink, draw=self.draw, late=0.0)
        self.budget = Budget(credits=self.draw.choice((1, 3)), range_rows=10, max_deletes=1)
        self.clock = ManualClock()

    def plan(self) -> Plan:
        made = Planner(
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=self.mode,
            consistency=Consistency.SNAPSHOT,
            owner="test",
            cluster="spark",
        )
        planned = made.plan()
        self.id = planned.hydration.id
        return planned.plan

    def change(self) -> None:
        """Add and remove some keys, many in one place or few in many, or bring back those of an earlier snapshot."""
        if self.source.held and self.draw.random() < 0.3:
            self.source.keys = list(self.draw.choice(list(self.source.held.values())))
            return
        keys, first = set(self.source.keys), self.draw.randrange(200)
        for _ in range(self.draw.choice((0, 1, 5, 30))):
            key = first + self.draw.randrange(20) if self.draw.random() < 0.7 else self.draw.randrange(200)
            keys ^= {key}
        self.source.keys = sorted(keys)

    def lane(self, *, dies: bool) -> Hydrator:
        """Return a lane; one that ``dies`` loses its snapshot or is killed after some steps."""
        plan = self.hydration.plan
        assert plan is not None
        lane = Hydrator(
            hydration_id=self.hydration.id,
            plan=plan,
            lane="lane",
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=Limiter(
                ledger=self.ledger, hydration_id=self.hydration.id, budget=self.budget, memory=self.runner.memory
            ),
            budget=self.budget,
            share=self.budget.credits,
            clock=self.clock,
            poll=PollPolicy(initial=0.001, maximum=0.001),
        )
        renew = lane._renew

        def wait() -> None:
            renew()
            if self.draw.random() < 0.5:
                self.runner.thaw()

        lane._renew = wait  # type: ignore[method-assign]
        left = iter(range(self.draw.randrange(1, 25)))

        def step() -> None:
            if self.draw.random() < 0.3:
                self.change()
            if self.draw.random() < 0.2:
                self.runner.thaw()
            if dies and next(left, None) is None:
                if self.draw.random() < 0.5:
                    raise Died
                self.source.keepers[-1].lost = True

        lane.on_commit = step
        return lane

    @property
    def hydration(self) -> Any:
        return self.ledger.hydration(self.id)

    def live(self, *, dies: bool) -> bool:
        self.runner.late = 0.2 if dies else 0.0
        try:
            return self.lane(dies=dies).run().outcome is Outcome.DONE
        except PlanOutdated:
            raise
        except (Died, RangeFailed, SnapshotLost):
            return False


@pytest.fixture(autouse=True)
def surviving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans between ports in memory may be continued in another snapshot."""
    monkeypatch.setattr(
        planner, "find_rewrite_key", lambda draft, snapshot, sink, *, budget: (replace(draft, rewrite_key=("id",)), "")
    )


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.REPLACE, Mode.UPSERT, Mode.MIRROR])
def test_the_target_ends_as_the_source_was_in_the_last_snapshot(mode: Mode) -> None:
    """Lanes die and lose their snapshot, attempts of any of them write late, and the source changes all the while."""
    lives = 0
    for seed in range(SEEDS):
        course = Course(seed=seed, mode=mode)
        planned = course.plan()
        for life in range(LIVES):
            lives += 1
            if course.live(dies=life < LIVES - 1):
                break
            course.change()
        else:
            raise AssertionError(f"seed {seed}: the lanes come to no end")
        plan = course.hydration.plan
        assert plan.plan_id == planned.plan_id, seed
        Completion(plan=plan, ledger=course.ledger, sink=course.sink).check()
        course.sink.publish(plan)
        while course.runner.frozen:
            course.runner.thaw()
        last = course.source.held[course.source.keepers[-1].snapshot]
        assert sorted(course.sink.rows) == list(last), f"seed {seed}"
    assert lives > SEEDS
