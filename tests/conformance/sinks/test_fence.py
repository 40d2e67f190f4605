"""The row of the plan that holds a target is locked by an attempt until it has committed: the race at its commit."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.postgres.sink.target import PostgresTarget
from airflow_provider_backpressure.connectors.postgres.tasks import slice_commit as writer
from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.exceptions import PlanSuperseded
from tests.conformance.sinks.cases import Case, PostgresCase
from tests.conformance.sinks.support import Begun, begin
from tests.support.postgres import connected, run
from tests.support.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.statement("X1"),
    pytest.mark.parametrize("case", ["postgres"], indirect=True),
]

BLOCKED = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
"""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A thread for the side that has to wait."""
    with ThreadPoolExecutor(1) as made:
        yield made


@dataclass(kw_only=True)
class Race:
    """What the other side is seen to do."""

    case: PostgresCase
    seen: list[str] = field(default_factory=list)

    def watch(self, other: "Future[Any]") -> None:
        """Wait until the other side waits for a lock, or did not have to."""
        until(lambda: other.done() or self._blocked())
        self.seen.append("went on" if other.done() else "waits")

    def _blocked(self) -> bool:
        ((number,),) = run(self.case.endpoint, BLOCKED)
        return bool(number)


def test_a_newer_plan_waits_for_an_attempt_that_has_passed_the_fence(
    case: Case, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: it came after connections were ended, and stands before its commit: what the new plan clears, it finds."""
    assert isinstance(case, PostgresCase)
    old, race, newer = begin(case), Race(case=case), []
    monkeypatch.setattr(PostgresTarget, "_end", lambda self, prefix: 0)

    def reached(step: Step, name: str) -> None:
        if step is Step.BEFORE_SINK_COMMIT and not newer:
            newer.append(pool.submit(begin, case, clear=old.plan.plan_id))
            race.watch(newer[0])

    monkeypatch.setattr(writer, "reach", reached)
    old.write(0)
    assert race.seen == ["waits"]
    after: Begun = newer[0].result(timeout=60)
    assert after.plan.epoch > old.plan.epoch
    assert case.rows() == [], "cleared with the rest of the plan before"


def test_an_attempt_waits_for_a_newer_plan_that_is_being_written(case: Case, pool: ThreadPoolExecutor) -> None:
    """X1: and is refused by what it reads then, not let through by what was there when it looked."""
    assert isinstance(case, PostgresCase)
    old, race = begin(case), Race(case=case)
    with connected(case.endpoint, autocommit=False) as connection:
        connection.execute("UPDATE raw.backpressure_plan SET plan_id = 'f', epoch = epoch + 1")
        attempt = pool.submit(old.write, 0)
        race.watch(attempt)
        connection.commit()
    assert race.seen == ["waits"]
    with pytest.raises(PlanSuperseded, match="plan f"):
        attempt.result(timeout=60)
    assert case.rows() == []
