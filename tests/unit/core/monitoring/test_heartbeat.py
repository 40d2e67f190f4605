"""A task is heard while it works, also while nothing is committed; and its log gets a line again and again."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.gate.task_activity import Activity, Step
from airflow_provider_backpressure.core.monitoring import heartbeat as module
from airflow_provider_backpressure.core.monitoring.heartbeat import Heartbeat, beat_for
from airflow_provider_backpressure.core.progress.displayed_state import State
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import planned, register, replan


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "in time"
        time.sleep(0.01)


@pytest.fixture
def clock():
    return [datetime(2026, 1, 1, tzinfo=UTC)]


@pytest.fixture
def ledger(clock):
    return MemoryLedger(now=lambda: clock[0])


def beating(ledger, hydration_id, *, step, lines):
    return Heartbeat(
        ledger=ledger,
        hydration_id=hydration_id,
        activity=Activity(step=step, lane="dag/run/task/-1", try_number=1),
        write=lambda: lines.append(1),
        tick=0.01,
        line_seconds=0.05,
    )


@pytest.mark.statement("C5")
def test_it_beats_counts_and_writes(ledger, clock, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.05)
    hydration_id, _ = planned(ledger, 3)
    ledger.hold(hydration_id, run="run")
    lines = []
    with beating(ledger, hydration_id, step=Step.VERIFYING, lines=lines) as heartbeat:
        clock[0] += timedelta(hours=1)
        until(lambda: ledger.hydration(hydration_id).heard_at == clock[0])
        heartbeat.count(2, 3)
        until(lambda: ledger.hydration(hydration_id).activity.done == 2)
        (now,) = ledger.glances(ids=[hydration_id], limit=1)
        assert (now.state, now.state_note) == (State.VERIFYING, "2 of 3 ranges")
        until(lambda: len(lines) >= 2)


def test_a_plan_that_is_made_is_not_being_planned(ledger):
    hydration_id = register(ledger)
    ledger.hold(hydration_id, run="run")

    def state():
        (now,) = ledger.glances(ids=[hydration_id], limit=1)
        return now.state

    with beating(ledger, hydration_id, step=Step.PLANNING, lines=[]):
        until(lambda: ledger.hydration(hydration_id).activity is not None)
        assert state() is State.PLANNING
    assert ledger.hydration(hydration_id).activity.step is Step.RANGES


def test_a_ledger_that_fails_fails_nothing_else(ledger):
    with beating(ledger, "0" * 32, step=Step.RANGES, lines=[]) as heartbeat:
        pass
    assert heartbeat.activity.step is Step.RANGES


def test_a_table_that_waits_for_others_of_its_task_is_not_stale(ledger, clock):
    """The task is heard of all that it has; one that it does not have is not."""
    mine, _ = planned(ledger, 3)
    other = register(ledger, sink_identity="postgres://warehouse:5432/warehouse/raw.others")
    replan(ledger, other, 3)
    for hydration_id in (mine, other):
        ledger.hold(hydration_id, run="run")
    clock[0] += timedelta(hours=1)

    def states():
        return {now.hydration.id: now.state for now in ledger.glances(ids=[mine, other], limit=2)}

    assert set(states().values()) == {State.STALE}
    with beat_for(ledger, lambda: [mine], every=0.01):
        until(lambda: states()[mine] is not State.STALE)
    assert states()[other] is State.STALE


def test_what_is_over_within_the_delay_is_written_only_where_planning_has_failed(ledger):
    """Most of many tables are done before anything has to be said of them; what follows is kept with their plans."""
    hydration_id = register(ledger)
    verifying = beating(ledger, hydration_id, step=Step.VERIFYING, lines=[])
    with replace(verifying, delay=60.0):
        pass
    assert ledger.hydration(hydration_id).activity is None
    planning = replace(beating(ledger, hydration_id, step=Step.PLANNING, lines=[]), delay=60.0)
    with replace(planning):
        pass
    assert ledger.hydration(hydration_id).activity is None
    with pytest.raises(SourceRefused), replace(planning):
        raise SourceRefused("There is no such table.")
    assert ledger.hydration(hydration_id).activity == planning.after
    assert planning.after.step is Step.RANGES
