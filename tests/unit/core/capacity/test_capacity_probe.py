"""A probe over an in-memory source and sink: what it samples, what it leaves behind, and what it refuses."""

from dataclasses import dataclass, replace

import pytest

from airflow_provider_backpressure.core.capacity.capacity_probe import OWNER, Prober, spread
from airflow_provider_backpressure.core.capacity.saturation_curve import Curve
from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.exceptions import LedgerRefused, RangeFailed, SinkRefused
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource

pytestmark = pytest.mark.statement("T12")


@dataclass
class Table:
    """A hydration that is planned and not begun, and its probe."""

    planner: Planner
    sink: MemorySink
    source: MemorySource
    runner: MemoryRunner

    @property
    def ledger(self) -> MemoryLedger:
        ledger = self.planner.ledger
        assert isinstance(ledger, MemoryLedger)
        return ledger

    @property
    def hydration(self) -> Hydration:
        (found,) = [one for one in self.ledger.hydrations() if one.owner != OWNER]
        return found

    def prober(self) -> Prober:
        plan = self.hydration.plan
        assert plan is not None
        return Prober(planner=self.planner, hydration=self.hydration, plan=plan, seconds=0.2)


@pytest.fixture
def table() -> Table:
    source, sink = MemorySource(keys=range(20_000)), MemorySink()
    runner = MemoryRunner(source=source, sink=sink)
    runner.reading = MemoryReading(used_bytes=0, limit_bytes=2**40, age_seconds=0.0, slots=2)
    planner = Planner(
        source=source,
        sink=sink,
        runner=runner,
        ledger=MemoryLedger(),
        budget=Budget(credits=3, range_rows=20),
        mode=Mode.APPEND,
        owner="dag",
        cluster="spark",
    )
    planner.plan()
    return Table(planner=planner, sink=sink, source=source, runner=runner)


def test_a_probe_leaves_nothing_and_keeps_its_curve(table: Table):
    """Neither rows nor a plan of its own: the hydration goes on with the plan it had."""
    before = table.hydration.plan
    curve = table.prober().run()
    assert [step.credits for step in curve.steps] == [1, 2, 4][: len(curve.steps)]
    assert {step.range_rows for step in curve.sizes} == {80, 5}
    assert (curve.configured, curve.knee.slots) == (3, 2)
    assert (table.sink.rows, table.sink.beside) == ([], {})
    assert [one.owner for one in table.ledger.hydrations()] == ["dag"]
    assert table.hydration.plan == before
    assert before is not None
    assert table.sink.epoch(before.plan_id) == before.epoch
    assert Curve.from_json(table.ledger.probe(table.hydration.id) or "") == curve


def test_no_more_credits_are_tried_than_asked_for(table: Table):
    assert max(step.credits for step in table.prober().run(most=2).steps) <= 2


@pytest.mark.parametrize("error", [RangeFailed("broken"), KeyboardInterrupt()])
def test_a_probe_that_fails_leaves_nothing(table: Table, error: BaseException):
    """Whether a range fails for good or a person interrupts."""
    # Every range, for a step on a slow machine ends before a certain one has had all its attempts.
    table.runner.failures.update({seq: [error] * 30 for seq in range(1_000)})
    with pytest.raises(type(error)):
        table.prober().run()
    assert table.sink.beside == {}
    assert [one.owner for one in table.ledger.hydrations()] == ["dag"]
    assert table.ledger.probe(table.hydration.id) is None


def test_what_a_killed_probe_left_is_removed_by_the_next(table: Table):
    """It stands in the ledger from before the target is made until after it is gone."""
    left = replace(table.planner, sink=table.sink.scratch("0123abcd"), owner=OWNER)
    planned = left.plan()
    table.ledger.admit(planned.hydration.id, lane=OWNER, session_id="s", lease_seconds=-1)
    assert list(table.sink.beside) == ["rows_probe_0123abcd"]
    table.prober().run(most=1)
    assert table.sink.beside == {}
    assert table.runner.interrupted
    assert [one.owner for one in table.ledger.hydrations()] == ["dag"]


def test_a_second_probe_is_refused_while_one_is_under_way(table: Table):
    other = replace(table.planner, sink=table.sink.scratch("0123abcd"), owner=OWNER)
    planned = other.plan()
    table.ledger.admit(planned.hydration.id, lane=OWNER, session_id="s", lease_seconds=60)
    with pytest.raises(LedgerRefused, match="Another probe"):
        table.prober().run()
    assert list(table.sink.beside) == ["rows_probe_0123abcd"]


def test_a_hydration_under_way_is_left_alone(table: Table):
    table.ledger.admit(table.hydration.id, lane="lane", session_id="s", lease_seconds=60)
    with pytest.raises(LedgerRefused, match="is being hydrated: probe it when that is done"):
        table.prober().run()


def test_what_the_ledger_does_not_know_is_refused(table: Table):
    """A part of a table that an earlier release has planned: its condition stands in the DAG alone."""
    table.source.identity = "memory://source#part"
    with pytest.raises(LedgerRefused, match="does not know which rows: run its plan_snapshot task once"):
        table.prober().run()


def test_too_few_ranges_are_no_measure(table: Table):
    with pytest.raises(LedgerRefused, match="too few ranges of 20,000 rows"):
        table.prober().run(range_rows=20_000)


def test_another_plan_keeps_its_target(table: Table):
    sink = table.sink.scratch("0123abcd")
    replace(table.planner, sink=sink, owner=OWNER).plan()
    with pytest.raises(SinkRefused, match="is held by plan"):
        sink.drop("f" * 32)


def test_a_sample_is_spread_over_the_source():
    """Every part of it has its share, in no order, and the numbers have no gap."""
    source = MemorySource(keys=range(10_000))
    chosen = spread(source.ranges(source.snapshot(), rows=1, bytes=2**62), most=1000, seed=1)
    places = [int(one.bounds.to_json()["start"][0] or 0) for one in chosen if one.bounds.to_json()["start"]]
    assert [one.seq for one in chosen] == list(range(1000))
    assert len(set(places)) >= 999
    assert places != sorted(places)
    for part in range(10):
        assert 50 < sum(part * 1000 <= place < (part + 1) * 1000 for place in places) < 150
    assert len(spread(source.ranges(source.snapshot(), rows=1000, bytes=2**62), most=1000, seed=1)) == 10
