"""The state that page, API and command line show."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from airflow_provider_backpressure.core.gate.hydration import Phase, State, state_of
from airflow_provider_backpressure.core.gate.queue import NOT_QUEUED, QueuePlace
from airflow_provider_backpressure.core.progress.lag import Course, Sight, lags
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import planned

WAITING = QueuePlace(granted=False, position=2, cluster="spark", concurrency=1, running=1)


@pytest.fixture
def hydration():
    ledger = MemoryLedger()
    return ledger.hydration(planned(ledger, 3)[0])


@pytest.mark.parametrize(
    ("changes", "failed", "in_flight", "place", "state"),
    [
        ({}, 0, 0, NOT_QUEUED, State.HYDRATING),
        ({"phase": Phase.REHYDRATION}, 0, 1, NOT_QUEUED, State.REHYDRATING),
        ({"phase": Phase.STEADY_STATE}, 0, 0, NOT_QUEUED, State.STEADY_STATE),
        ({"plan": None}, 0, 0, NOT_QUEUED, State.NOT_BEGUN),
        ({"plan": None, "failure": "no such table"}, 0, 0, NOT_QUEUED, State.FAILED),
        ({"failure": "differs"}, 0, 0, NOT_QUEUED, State.FAILED),
        ({"failure": "differs", "paused_by": "ada"}, 0, 0, NOT_QUEUED, State.FAILED),
        ({"phase": Phase.STEADY_STATE, "failure": "log lost"}, 0, 0, NOT_QUEUED, State.FAILED),
        ({}, 1, 0, NOT_QUEUED, State.FAILED),
        ({}, 1, 2, NOT_QUEUED, State.HYDRATING),
        ({"paused_by": "ada"}, 0, 0, NOT_QUEUED, State.PAUSED),
        ({"paused_by": "ada"}, 0, 0, WAITING, State.PAUSED),
        ({}, 0, 0, WAITING, State.QUEUED),
    ],
)
def test_the_state_that_is_shown(hydration, changes, failed, in_flight, place, state):
    found = state_of(replace(hydration, **changes), failed=failed, in_flight=in_flight, place=place)
    assert found is state


def sight(**values):
    return Sight(
        at=datetime(2026, 1, 1, tzinfo=UTC), unit=Unit.BYTES, known={"wal": 9, "b": 3}, committed={"wal": 1}, **values
    )


def test_a_snapshot_has_no_lag_and_what_follows_its_source_has():
    """What another run would read of it is still known to those that wait for something new."""
    snapshot, following = (
        Course(latest=one, base=one) for one in (sight(follows=False, open=2), sight(follows=True, open=2))
    )
    assert (snapshot.lag, snapshot.latest.lag, lags(snapshot), snapshot.unread) == (None, None, "", 11)
    assert (following.lag, following.latest.lag) == (11, {"wal": 8, "b": 3})
    assert "held back" in lags(following)
