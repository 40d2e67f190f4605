"""The forecast of how long the log that is kept may still grow, and slots in danger."""

import math
from dataclasses import replace

import pytest

from airflow_provider_backpressure.connectors.postgres.hours_of_log_left import Forecast, KeptLog
from airflow_provider_backpressure.connectors.postgres.replication_slots import Slot, lsn, position
from airflow_provider_backpressure.core.config import SlotLag, WalHeadroom
from airflow_provider_backpressure.core.gate.signals import HealthReading, decide, health
from airflow_provider_backpressure.testing import ManualClock

MIB = 2**20
KEPT = KeptLog(slot="backpressure_x", held=100 * MIB, safe=None, written=0)


def forecast(watched: WalHeadroom, *looks: KeptLog) -> float:
    """Look once a minute."""
    clock = ManualClock()
    made = Forecast(clock=clock)
    for look in looks:
        clock.sleep(60)
        made.take(look)
    return made.hours(looks[-1], watched).value


@pytest.mark.statement("T7")
def test_hours_are_what_is_left_by_how_fast_the_log_grows():
    """T7: with a limit of ours, and with the server's."""
    grown = replace(KEPT, written=60 * MIB)
    assert forecast(WalHeadroom(hours=1, limit_bytes=3700 * MIB), KEPT, grown) == pytest.approx(1.0)
    assert forecast(WalHeadroom(hours=1), KEPT, replace(grown, safe=1800 * MIB)) == pytest.approx(0.5)
    assert forecast(WalHeadroom(hours=1, limit_bytes=50 * MIB), KEPT, grown) == 0


def test_nothing_is_in_danger_without_a_slot_a_limit_or_growth():
    grown = replace(KEPT, written=60 * MIB)
    assert forecast(WalHeadroom(hours=1), KEPT, grown) == math.inf
    assert forecast(WalHeadroom(hours=1, limit_bytes=10**12), KEPT, KEPT) == math.inf
    assert forecast(WalHeadroom(hours=1, limit_bytes=1), replace(KEPT, slot="")) == math.inf


@pytest.mark.statement("T7")
def test_log_that_is_kept_warns_and_never_closes_the_gate():
    """T7, FINEPRINT 12: replaying is what frees it."""
    lag, headroom = SlotLag(bytes=5 * MIB), WalHeadroom(hours=12)
    signals = [
        health(lag, HealthReading(value=10.0 * MIB, age_seconds=0, note="s", trouble=""), deadline=15),
        health(headroom, HealthReading(value=3.0, age_seconds=0, note="n", trouble=""), deadline=15),
    ]
    decision = decide(signals, in_flight=1)
    assert decision.open
    assert decision.pressure == 0
    assert decision.warnings == ("source slot lag 10.0 MiB (s) >= 5.0 MiB", "source WAL headroom 3.0 h (n) <= 12 h")


def test_a_slot_is_in_danger_at_our_limit_and_short_of_the_servers():
    slot = Slot(
        name="s",
        database="d",
        plugin="pgoutput",
        active_pid=None,
        confirmed=lsn(7),
        lost=False,
        status="reserved",
        safe_bytes=None,
        held_bytes=900,
        flushed=lsn(9),
    )
    assert not slot.endangers(None)
    assert not slot.endangers(3)
    assert slot.endangers(2), "so much was not replayed"
    assert replace(slot, safe_bytes=99).endangers(None)
    assert not replace(slot, safe_bytes=101).endangers(None)
    assert replace(slot, status="unreserved").endangers(None)
    assert replace(slot, lost=True).endangers(None)


def test_positions_come_back_from_their_text():
    assert position("1A/2B").at == (0x1A << 32) + 0x2B
    assert lsn(position("1A/2B").at).text == "1A/2B"
