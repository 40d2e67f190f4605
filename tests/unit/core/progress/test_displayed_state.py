"""The state that page, API, command line and asset events show."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.gate.cluster_queue import QueuePlace, Shared
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.gate.signals import Decision, Signal
from airflow_provider_backpressure.core.gate.task_activity import Activity, Step
from airflow_provider_backpressure.core.progress.displayed_state import STALE_SECONDS, State
from airflow_provider_backpressure.core.progress.lag import Course, Sight, lags
from airflow_provider_backpressure.core.progress.rates_and_eta import Progress
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.core.progress.status_fields import to_dict
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import commit, planned, register, replan, take

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(seconds=STALE_SECONDS + 100)
WAITING = QueuePlace(granted=False, position=2, cluster="spark", concurrency=1, running=1)
SLOW = Signal(name="sink commit", utilisation=1.2, sentence="oldest uncommitted range 12 s >= 10 s", learned=True)
FULL = Signal(name="credits", utilisation=1.0, sentence="4 of 4 credits in flight", measured=False)


def closed_by(*signals):
    decision = Decision(open=False, pressure=1.2, signals=signals)
    return {
        "decision": {"open": False, "pressure": 1.2, "signals": [signal.to_json() for signal in decision.signals]},
    }


def sight(**values):
    return Sight(at=NOW, unit=Unit.BYTES, known={"wal": 9, "b": 3}, committed={"wal": 1}, **values)


def course(**values):
    return Course(latest=sight(**values), base=sight(**values))


def reports(step, **values):
    return {"activity": Activity(step=step, **values), "holder": "run"}


DONE_READING = Progress(total=5, total_exact=True, committed=5, read=5, messages=5, bytes=9)
DONE = {"phase": Phase.STEADY_STATE, "verified": True}
CASES = [
    pytest.param(
        {**DONE, **reports(Step.RANGES), "heard_at": LONG_AGO},
        {"in_flight": 3, "course": course()},
        State.STALE,
        "nothing heard for 3:10",
        id="an increment that was killed",
    ),
    pytest.param(
        {**DONE, "verified": False, "heard_at": LONG_AGO},
        {"course": course()},
        State.STALE,
        "nothing heard for 3:10",
        id="an increment whose verification was killed",
    ),
    pytest.param(
        {**DONE, "paused_by": "ada"},
        {"course": course()},
        State.PAUSED,
        "by ada",
        id="paused while it follows",
    ),
    pytest.param({"plan": None, "holder": None}, {}, State.NOT_BEGUN, "", id="not begun"),
    pytest.param({"plan": None, "holder": "run"}, {}, State.PLANNING, "", id="planning, by its run"),
    pytest.param(reports(Step.PLANNING), {}, State.PLANNING, "", id="planning again"),
    pytest.param(
        {},
        {"place": WAITING, "starts_in_seconds": 250.0},
        State.QUEUED,
        "number 2 on spark, starts in about 4:10",
        id="queued",
    ),
    pytest.param(
        {}, {"place": WAITING}, State.QUEUED, "number 2 on spark, its start cannot be estimated", id="queued, unknown"
    ),
    pytest.param(
        {},
        {"place": replace(WAITING, concurrency=0, running=0)},
        State.QUEUED,
        "number 2 on spark, blocked: its limit is 0 at once",
        id="queued, closed",
    ),
    pytest.param({}, {"in_flight": 2}, State.RUNNING, "2 ranges in flight", id="running"),
    pytest.param(
        {},
        {"in_flight": 0, "progress": DONE_READING},
        State.RUNNING,
        "everything is committed, the completion check follows",
        id="between the last range and its check",
    ),
    pytest.param(
        {"phase": Phase.REHYDRATION},
        {"in_flight": 1},
        State.RUNNING,
        "rehydration, 1 range in flight",
        id="running again",
    ),
    pytest.param({}, {"failed": 1, "in_flight": 2}, State.RUNNING, "2 ranges in flight", id="running after a failure"),
    pytest.param(closed_by(FULL), {"in_flight": 4}, State.RUNNING, "4 ranges in flight", id="running at full credit"),
    pytest.param(
        closed_by(SLOW, FULL),
        {"in_flight": 4},
        State.THROTTLED,
        "by oldest uncommitted range 12 s >= 10 s",
        id="throttled",
    ),
    pytest.param(
        {},
        {"connections": 4, "connections_max": 4},
        State.THROTTLED,
        "by 4 of 4 connections to the sink's server in use",
        id="throttled by the server",
    ),
    pytest.param({"paused_by": "ada"}, {"place": WAITING}, State.PAUSED, "by ada", id="paused in the queue"),
    pytest.param(
        {"paused_by": "ada", "paused_why": "release", "heard_at": LONG_AGO},
        {"in_flight": 2},
        State.PAUSED,
        "by ada: release; 2 in flight",
        id="paused",
    ),
    pytest.param(
        reports(Step.VERIFYING, done=12, total=40), {}, State.VERIFYING, "12 of 40 ranges", id="verifying, counted"
    ),
    pytest.param(reports(Step.VERIFYING), {}, State.VERIFYING, "the target as a whole", id="verifying as a whole"),
    pytest.param({"plan": None, "failure": "no such table"}, {}, State.FAILED, "no such table", id="failed at plan"),
    pytest.param({"failure": "differs", "paused_by": "ada"}, {}, State.FAILED, "differs", id="failed and paused"),
    pytest.param({**DONE, "failure": "log lost"}, {}, State.FAILED, "log lost", id="failed after its end"),
    pytest.param({}, {"failed": 1}, State.FAILED, "1 range used up all attempts", id="failed at a range"),
    pytest.param(
        {"heard_at": LONG_AGO},
        {"failed": 2, "in_flight": 1},
        State.FAILED,
        "2 ranges used up all attempts",
        id="failed, and the others in flight are of a task that is gone",
    ),
    pytest.param(DONE, {}, State.SUCCEEDED, "", id="succeeded"),
    pytest.param({**DONE, "heard_at": LONG_AGO}, {"course": course(follows=False)}, State.SUCCEEDED, "", id="long ago"),
    pytest.param(DONE, {"course": course()}, State.FOLLOWING, "lag 11 B", id="following"),
    pytest.param(
        DONE,
        {"course": course(), "read_at": NOW + timedelta(seconds=190)},
        State.FOLLOWING,
        "lag 11 B, as of 3:10 ago",
        id="following, seen a while ago",
    ),
    pytest.param(
        {"heard_at": LONG_AGO, "holder": "run"},
        {"in_flight": 1},
        State.STALE,
        "nothing heard for 3:10",
        id="stale: its worker was killed",
    ),
    pytest.param(
        {"heard_at": LONG_AGO, **reports(Step.VERIFYING, error="The database is gone.")},
        {},
        State.STALE,
        "nothing heard for 3:10; the last error: The database is gone.",
        id="stale between two tries",
    ),
    pytest.param(
        {"plan": None, "holder": "run", "heard_at": LONG_AGO},
        {},
        State.STALE,
        "nothing heard for 3:10",
        id="stale at plan",
    ),
]


@pytest.fixture
def summary():
    ledger = MemoryLedger()
    planned(ledger, 3)
    (found,) = ledger.glances(limit=1)
    return replace(found, read_at=NOW, hydration=replace(found.hydration, heard_at=NOW, decision=None))


@pytest.mark.parametrize(("changes", "readings", "state", "note"), CASES)
def test_the_state_and_what_it_leaves_open(summary, changes, readings, state, note):
    now = replace(summary, hydration=replace(summary.hydration, **changes), **readings)
    assert (now.state, now.state_note) == (state, note)


def test_every_state_has_a_case():
    assert {case.values[2] for case in CASES} == set(State)


@pytest.mark.parametrize(
    ("changes", "readings"),
    [
        ({"failure": "gone"}, {}),
        ({"heard_at": LONG_AGO}, {}),
        ({"paused_by": "ada"}, {}),
        (DONE, {}),
        ({}, {"place": WAITING}),
        (reports(Step.VERIFYING), {}),
    ],
)
def test_figures_of_the_past_are_not_shown(summary, changes, readings):
    moving = replace(summary, speed=10.0, memory_used=3, memory_limit=4, in_flight=0, recent=(9.0, 10.0, 11.0))
    names = ("rows_per_second", "eta_seconds", "memory_used", "memory_limit", "bottleneck")
    assert to_dict(moving)["rows_per_second"] == 10.0
    assert to_dict(moving)["eta_seconds"] is not None
    now = to_dict(replace(moving, hydration=replace(moving.hydration, **changes), **readings))
    assert {name: now[name] for name in names} == dict.fromkeys(names)


@pytest.mark.statement("C1", "C2")
def test_a_failed_hydration_shows_no_signal_of_the_past(summary):
    """What held the last range back has not made it fail; the signals that the ledger knows are those of now."""
    running = replace(summary, hydration=replace(summary.hydration, **closed_by(SLOW, FULL)), in_flight=1)
    assert running.reasons == [SLOW.sentence]
    assert [signal["sentence"] for signal in running.signals] == [SLOW.sentence, "1 of 3 credits in flight"]
    failed = replace(running, hydration=replace(running.hydration, failure="refused"), in_flight=0)
    assert (failed.reasons, failed.signals, failed.open) == ([], [], True)


def test_a_hydration_of_an_earlier_release_is_heard_by_its_changes(summary):
    hydration = replace(summary.hydration, heard_at=None, updated_at=NOW)
    assert replace(summary, hydration=hydration).state is State.RUNNING


def test_a_snapshot_has_no_lag_and_what_follows_its_source_has():
    """What another run would read of it is still known to those that wait for something new."""
    snapshot, following = course(follows=False, open=2), course(follows=True, open=2)
    assert (snapshot.lag, snapshot.latest.lag, lags(snapshot), snapshot.unread) == (None, None, "", 11)
    assert (following.lag, following.latest.lag) == (11, {"wal": 8, "b": 3})
    assert "held back" in lags(following)


def test_a_hydration_in_the_queue_knows_when_it_starts():
    """By the time that the running ones have left, which are not among those asked for."""
    clock = [NOW]
    ledger = MemoryLedger(now=lambda: clock[0])
    first, plan_id = planned(ledger, 10, credits=2)
    ledger.share(Shared.HYDRATIONS, ledger.hydration(first).cluster, 1, who="ada")
    for _ in range(4):
        commit(ledger, plan_id, take(ledger, first).seq)
        clock[0] += timedelta(seconds=10)
    second = register(ledger, sink_identity="postgres://warehouse:5432/warehouse/raw.other")
    replan(ledger, second)
    ledger.enqueue(second, run="run", lease_seconds=3600)
    (waiting,) = ledger.glances(ids=[second], limit=1)
    assert (waiting.state, waiting.place.position) == (State.QUEUED, 1)
    assert waiting.starts_in_seconds is not None
    assert "starts in about" in waiting.state_note
