"""What somebody should hear of, when, and that it is told once for each time that it happens."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.gate.signals import Decision, Signal, decide
from airflow_provider_backpressure.core.progress.lag import Sight, advance
from airflow_provider_backpressure.core.progress.notified_events import (
    Kind,
    Notice,
    conditions,
    from_json,
    note_alerts,
    to_json,
)
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import planned, take

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
LOOKED = frozenset({"a", "b"})


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def told(*steps: tuple[float, dict[str, float]]) -> list[tuple[str, ...]]:
    occurring, found = {}, []
    for seconds, present in steps:
        occurring, notice = note_alerts(from_json(to_json(occurring)), present, LOOKED, at(seconds))
        found.append(notice.due)
    return found


def test_an_event_is_told_once_for_each_time_that_it_happens():
    steps = [(0, {"a": 0.0}), (10, {"a": 0.0}), (20, {}), (30, {"a": 0.0}), (40, {"a": 0.0})]
    assert told(*steps) == [("a",), (), (), ("a",), ()]


def test_it_has_to_last_as_long_as_is_wanted():
    assert told((0, {"a": 60.0}), (59, {"a": 60.0}), (60, {"a": 60.0}), (70, {"a": 60.0})) == [(), (), ("a",), ()]
    assert told((0, {"a": 60.0}), (30, {}), (61, {"a": 60.0})) == [(), (), ()]


def test_when_the_next_one_is_due_is_known():
    occurring, notice = note_alerts({}, {"a": 60.0, "b": 0.0}, LOOKED, at(0))
    assert notice == Notice(due=("b",), later=60.0)
    _, notice = note_alerts(occurring, {"a": 60.0, "b": 0.0}, LOOKED, at(20))
    assert notice == Notice(due=(), later=40.0)


def test_what_was_not_looked_for_goes_on():
    occurring, _ = note_alerts({}, {"a": 0.0}, LOOKED, at(0))
    occurring, _ = note_alerts(occurring, {}, frozenset({"b"}), at(10))
    _, notice = note_alerts(occurring, {"a": 0.0}, LOOKED, at(20))
    assert notice.due == ()


def gate_with(ledger, hydration_id, *signals: Signal):
    decision: Decision = decide(signals, in_flight=ledger.gate(hydration_id).in_flight)
    ledger.record_decision(hydration_id, decision)
    return ledger.hydration(hydration_id), ledger.gate(hydration_id)


CLOSED = Signal(name="executor memory", utilisation=1.2, sentence="executor memory 96% >= 80%")
WARNS = Signal(name="source retention", utilisation=1.5, sentence="it is deleted in 2.0 h", warns=True)


def test_a_closed_gate_is_one_that_nothing_goes_through():
    """A full gate whose ranges come through is at work; the hand closes it as well."""
    ledger = MemoryLedger()
    hydration_id, _ = planned(ledger, 2)
    hydration, gate = gate_with(ledger, hydration_id, CLOSED)
    assert conditions(hydration, gate, None, closed_seconds=60) == {Kind.GATE_CLOSED: CLOSED.sentence}
    take(ledger, hydration_id)
    gate = ledger.gate(hydration_id)
    assert conditions(hydration, gate, None, closed_seconds=60) == {}
    old = replace(gate, oldest_seconds=61.0)
    assert Kind.GATE_CLOSED in conditions(hydration, old, None, closed_seconds=60)
    paused = replace(gate, in_flight=0, paused_by="ada", paused_why="night")
    assert conditions(hydration, paused, None, closed_seconds=60) == {Kind.GATE_CLOSED: "paused by ada: night"}
    assert conditions(hydration, replace(gate, in_flight=0, waiting=0), None, closed_seconds=60) == {}


@pytest.mark.statement("F7", "M9", "M10")
def test_data_at_risk_not_keeping_up_and_a_source_that_went_back():
    """F7, M9, M10: each with its figures."""
    ledger = MemoryLedger()
    hydration_id, _ = planned(ledger, 2)
    hydration, gate = gate_with(ledger, hydration_id, WARNS)
    course = None
    for step in range(5):
        sight = Sight(
            at=at(10 * step), unit=Unit.OFFSETS, known={0: 100 * step}, committed={0: 10 * step}, working=True
        )
        course = advance(course, sight, least_seconds=5)
    found = conditions(hydration, gate, course, closed_seconds=60)
    assert found[Kind.DATA_AT_RISK] == WARNS.sentence
    assert found[Kind.NOT_KEEPING_UP].startswith("NO: 1.0 offsets/s committed, the source makes 10 offsets/s")
    back = advance(course, Sight(at=at(60), unit=Unit.OFFSETS, known={0: 5}, committed={0: 40}), least_seconds=5)
    assert "ends at offset 5 now" in conditions(hydration, gate, back, closed_seconds=60)[Kind.SOURCE_TROUBLE]
