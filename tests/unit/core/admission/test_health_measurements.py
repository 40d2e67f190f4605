"""Declared signals of source and sink: what is refused, how they are graded, and how looks grow old."""

import itertools
import json
import math
import threading
import time
from dataclasses import asdict

import pytest

from airflow_provider_backpressure.connectors.mysql.errors import Errors as MySQLErrors
from airflow_provider_backpressure.connectors.mysql.health import MySQLHealth
from airflow_provider_backpressure.core.admission import health_measurements as looking
from airflow_provider_backpressure.core.admission.gate_watcher import SIGNALS, Watch, part
from airflow_provider_backpressure.core.admission.health_measurements import HealthWatch, Lookout
from airflow_provider_backpressure.core.admission.permits_and_reservations import gate_decision
from airflow_provider_backpressure.core.config import (
    ActiveSessions,
    Budget,
    Checkpoints,
    Query,
    ReplicaLag,
    Retention,
    ThreadsRunning,
    WalRate,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.signals import HealthReading, health, snapshot_age
from airflow_provider_backpressure.core.health_signal_declarations import TAKEN
from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, lag, unread_offsets
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.sinks import DeltaSink, PostgresSink
from airflow_provider_backpressure.sources import KafkaSource, PostgresSource
from airflow_provider_backpressure.testing import ManualClock, MemoryHealth
from tests.unit.core.admission.test_gate import reading, state

NOWHERE = Endpoint(conn_id="c", host="127.0.0.1", port=1, database="d", user="u", password="hunter2-is-secret")
EVERY = (
    ActiveSessions(on="sink", most=80),
    ActiveSessions(on="source", share=0.5),
    ReplicaLag(on="source", seconds=30),
    ReplicaLag(on="sink", bytes=2**20),
    WalRate(on="sink", bytes_per_second=16 * 2**20),
    Checkpoints(on="sink", per_minute=6),
    ThreadsRunning(on="source", most=50),
    Retention(hours=6),
    Query(on="sink", sql="SELECT 1", most=10, name="backlog"),
    Query(conn_id="third", sql="SELECT 2", most=10),
)
ACTIVE = EVERY[0]


def seen(value: float, **changes) -> HealthReading:
    return HealthReading(**{"value": value, "age_seconds": 0.0, **changes})


@pytest.mark.statement("T7")
@pytest.mark.parametrize(
    ("watched", "figure", "utilisation", "sentence"),
    [
        (EVERY[0], seen(40), 0.5, "sink active sessions 40 < 80"),
        (EVERY[0], seen(80), 1.0, "sink active sessions 80 >= 80"),
        (
            EVERY[1],
            seen(0.25, note="25 of 100"),
            0.5,
            "source active sessions 25% (25 of 100) < 50% of max_connections",
        ),
        (EVERY[2], seen(60), 2.0, "source replica lag 60.0 s >= 30.0 s"),
        (EVERY[3], seen(2**19), 0.5, "sink replica lag 512.0 KiB < 1.0 MiB"),
        (EVERY[4], seen(4 * 2**20), 0.25, "sink WAL rate 4.0 MiB/s < 16.0 MiB/s"),
        (EVERY[5], seen(3), 0.5, "sink requested checkpoints 3 in the last minute < 6"),
        (EVERY[6], seen(50), 1.0, "source threads running 50 >= 50"),
        (EVERY[8], seen(12), 1.2, "backlog on sink 12 >= 10"),
        (EVERY[9], seen(5), 0.5, "query on connection third 5 < 10"),
    ],
)
def test_a_signal_is_graded_below_its_threshold_and_closes_at_it(watched, figure, utilisation, sentence):
    """T7: value over threshold; the sentence has figure, unit and threshold."""
    signal = health(watched, figure, deadline=15)
    assert signal.utilisation == pytest.approx(utilisation)
    assert signal.closed is (utilisation >= 1)
    assert signal.sentence == sentence


@pytest.mark.statement("T7")
def test_a_signal_that_is_not_seen_closes_the_gate_and_says_why():
    """T7: fail closed; up to the deadline the last figure counts."""
    assert not health(ACTIVE, seen(1, age_seconds=15), deadline=15).closed
    late = health(ACTIVE, seen(1, age_seconds=16, trouble="The sink does not answer."), deadline=15)
    assert late.closed
    assert late.sentence == "sink active sessions not seen for 16 s, deadline 15 s (The sink does not answer)"
    never = health(ACTIVE, HealthReading(), deadline=15)
    assert never.closed
    assert never.sentence == "sink active sessions never seen, deadline 15 s"


@pytest.mark.statement("F7")
def test_retention_warns_and_never_closes_the_gate():
    """F7: a closed gate would lose what is about to be deleted; it is no pressure on the credits either."""
    watched = Retention(hours=6)
    near = health(watched, seen(3.0, note="offset 5 of partition 0 is the oldest"), deadline=15)
    assert (near.utilisation, near.closed, near.warning) == (2.0, False, True)
    assert near.sentence.startswith("source retention deletes in 3.0 h what has not been read (offset 5")
    assert near.sentence.endswith("<= 6 h")
    assert health(watched, seen(0.0, note="gone"), deadline=15).warning
    assert not health(watched, seen(12.0), deadline=15).warning
    assert health(watched, seen(math.inf, note="nothing"), deadline=15).sentence == "nothing"
    assert not health(watched, HealthReading(), deadline=15).warning
    decision = gate_decision(state(), reading(0.1), Budget(signals=(watched,)), seen={watched: seen(1.0)})
    assert decision.open
    assert decision.pressure < 0.4
    assert len(decision.warnings) == 1
    assert decision.signals[-1].to_json()["warning"] is True


@pytest.mark.statement("T7")
def test_the_gate_closes_by_the_budget_s_own_signals_and_opens_again():
    """T7: one function for lanes, sensors and triggers; a signal that nobody looked at is one that was never seen."""
    budget = Budget(signals=(ACTIVE,))
    idle = state(in_flight=0)
    for value, opened in ((79, True), (80, False), (10, True)):
        decision = gate_decision(idle, reading(0.1), budget, seen={ACTIVE: seen(value)})
        assert decision.open is opened
        assert decision.pressure == pytest.approx(max(value / 80, 0.125))
        assert part(decision, Watch.COMMIT, in_flight=0).open is opened
        assert part(decision, Watch.MEMORY, in_flight=0).open
    assert gate_decision(idle, reading(0.1), budget).reasons == ("sink active sessions never seen, deadline 15 s",)


def test_a_budget_travels_as_json():
    """What a waiting trigger carries is what was declared; so does a plain ``asdict``."""
    budget = Budget(signals=EVERY, signal_interval=1)
    assert Budget(**json.loads(json.dumps(budget.to_json()))) == budget
    assert Budget(**json.loads(json.dumps(asdict(budget)))) == budget
    assert len({each.name for each in EVERY}) == len(EVERY)
    assert budget.fit(30.0).signals == EVERY


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: ActiveSessions(on="lake", most=1), "'source' or 'sink', not 'lake'"),
        (lambda: ActiveSessions(on="sink"), "most or share"),
        (lambda: ActiveSessions(on="sink", most=1, share=0.5), "one of them only"),
        (lambda: ActiveSessions(on="sink", most=0), "above 0"),
        (lambda: ReplicaLag(on="sink", seconds=-1), "above 0"),
        (lambda: WalRate(on="sink", bytes_per_second=math.inf), "above 0"),
        (lambda: Checkpoints(on="", per_minute=1), "not ''"),
        (lambda: Retention(hours=0), "Retention.hours"),
        (lambda: Query(sql="SELECT 1", most=1), "conn_id"),
        (lambda: Query(on="sink", conn_id="third", sql="SELECT 1", most=1), "one of them only"),
        (lambda: Query(on="sink", sql=" ", most=1), "Query.sql"),
        (lambda: Query(on="sink", sql="SELECT 1", most=1, name="credits"), "has a signal of that name"),
        (lambda: Query(on="sink", sql="SELECT 1", most=1, name="snapshot age"), "has a signal of that name"),
        (lambda: Budget(signals=(ACTIVE, ActiveSessions(on="sink", share=0.9))), "name them apart"),
        (lambda: Budget(signals=("active sessions",)), "not str"),
        (lambda: Budget(signals=ACTIVE), "tuple"),
        (lambda: Budget(signals=(ACTIVE,), signal_interval=0.1), "at least 0.5 s"),
        (lambda: Budget(signals=(ACTIVE,), signal_interval=10), "at least 30 s"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(declare, words):
    """While the DAG is parsed, in one sentence."""
    with pytest.raises(InvalidDeclaration, match=words) as refused:
        declare()
    assert str(refused.value).count(". ") == 0


def test_the_gate_s_own_names_are_taken():
    """A query of that name would pass for another signal."""
    assert {*frozenset.union(*SIGNALS.values()), *(each.name for each in snapshot_age(1.0, most=2.0))} == TAKEN


def test_a_deadline_of_before_stays_good_without_signals():
    """The interval binds only where something is looked at."""
    assert Budget(signal_deadline=1.0).signal_deadline == 1.0


def test_what_a_side_cannot_give_is_refused_by_name():
    """Before anything is asked of a server."""
    table = PostgresSource(conn_id="c", table="t").open(NOWHERE)
    with pytest.raises(SourceRefused, match="PostgreSQL has no ThreadsRunning"):
        table.health([EVERY[6]], seconds=1)
    with pytest.raises(SourceRefused, match="PostgreSQL has no Retention"):
        table.health([EVERY[7]], seconds=1)
    with pytest.raises(SinkRefused, match="PostgreSQL has no ThreadsRunning"):
        PostgresSink(conn_id="c", table="t").open(NOWHERE).health([ThreadsRunning(on="sink", most=1)], seconds=1)
    with pytest.raises(SourceRefused, match="A topic has no Query"):
        KafkaSource(conn_id="c", topic="t").open(NOWHERE).health([Query(on="source", sql="x", most=1)], seconds=1)
    with pytest.raises(SinkRefused, match="no server whose WAL rate"):
        DeltaSink(path="/tmp/none").open(NOWHERE).health([EVERY[4]], seconds=1)
    errors = MySQLErrors(refused=SourceRefused, unavailable=SourceUnavailable)
    for refused, words in ((EVERY[1], "MySQL has no ActiveSessions"), (EVERY[3], "ReplicaLag in bytes")):
        with pytest.raises(SourceRefused, match=words):
            MySQLHealth(NOWHERE, [refused], errors=errors, seconds=1)


def test_a_look_that_fails_lets_the_last_figure_grow_old():
    """A host that is away is no error of the lane: its signals are not seen."""
    clock, figures = ManualClock(), {ACTIVE.name: 8.0}
    lookout = Lookout(MemoryHealth(figures=figures, watched=[ACTIVE]), [ACTIVE], interval=2, clock=clock)
    assert lookout.readings()[ACTIVE].value is None
    lookout.look()
    clock.now = 4.0
    figures[ACTIVE.name] = SourceUnavailable("The host is away.")
    lookout.look()
    assert lookout.readings()[ACTIVE] == HealthReading(value=8.0, age_seconds=4.0, trouble="The host is away.")
    figures[ACTIVE.name] = 9.0
    lookout.look()
    assert lookout.readings()[ACTIVE] == HealthReading(value=9.0, age_seconds=0.0)


def counted(watched, *samples: tuple[float, float]) -> float | None:
    """Return what a counter's samples (second, count) make of a signal."""
    clock, figures = ManualClock(), {watched.name: 0.0}
    lookout = Lookout(MemoryHealth(figures=figures, watched=[watched]), [watched], interval=2, clock=clock)
    for clock.now, figures[watched.name] in samples:
        lookout.look()
    return lookout.readings()[watched].value


def test_counters_are_told_by_their_growth():
    """WAL in bytes per second over ten; checkpoints in the last minute; a counter that went back begins again."""
    wal, points = WalRate(on="sink", bytes_per_second=100), Checkpoints(on="sink", per_minute=6)
    assert counted(wal, (0, 500)) is None
    assert counted(wal, (0, 500), (2, 700)) == 100
    assert counted(wal, (0, 0), (10, 1000), (20, 1000)) == 0
    assert counted(wal, (0, 10**9), (2, 5)) is None
    assert counted(points, (0, 7), (2, 8)) == 1
    assert counted(points, (0, 0), *((at, 1 + at // 30) for at in range(2, 202, 2))) == pytest.approx(2, abs=1)
    assert counted(points, (0, 0), (2, 9), *((at, 9) for at in range(4, 70, 2))) == 0


def test_a_process_looks_once_for_all_its_waiters_and_ends_with_the_last(monkeypatch):
    """Never more than one look per interval, however many lanes, sensors and triggers wait."""
    budget = Budget(signals=(ACTIVE,), signal_interval=0.5)
    made: list[MemoryHealth] = []
    figures, looks = {ACTIVE.name: 8.0}, []

    class Counting(MemoryHealth):
        def look(self):
            looks.append(time.monotonic())
            return super().look()

    def opened(watched, seconds):
        made.append(Counting(figures=figures, watched=watched))
        return made[-1]

    watches = [HealthWatch(budget=budget, open=opened) for _ in range(5)]
    for watch in watches:
        watch.start()
        watch.start()
        watch.settle()
    assert all(watch.readings()[ACTIVE].value == 8.0 for watch in watches)
    assert len(looks) == 1
    deadline = time.monotonic() + 10
    while len(looks) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert all(after - before > 0.45 for before, after in itertools.pairwise(looks))
    for watch in watches[1:]:
        watch.close_and_wait()
    assert not made[0].closed
    watches[0].close_and_wait()
    assert made[0].closed
    assert not looking._shared
    assert not [thread for thread in threading.enumerate() if thread.name == "backpressure-health"]


def test_a_look_that_hangs_holds_nobody_up():
    """A frozen server: the signal is not seen, the lane ends in time, and the thread gives back what it holds."""
    budget = Budget(signals=(ACTIVE,), signal_interval=0.5, signal_deadline=1.5)
    thawed, made = threading.Event(), []

    class Frozen(MemoryHealth):
        def look(self):
            thawed.wait(60)
            return super().look()

    def opened(watched, seconds):
        made.append(Frozen(figures={}, watched=watched))
        return made[-1]

    watch = HealthWatch(budget=budget, open=opened)
    began = time.monotonic()
    watch.start()
    watch.settle()
    assert not gate_decision(state(), reading(0.1), budget, seen=watch.readings()).open
    watch.close_and_wait()
    assert time.monotonic() - began < 10
    thawed.set()
    deadline = time.monotonic() + 10
    while not made[0].closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_is_looked_at_where_one_side_cannot_be_opened():
    """All or nothing: no thread is left behind."""

    def opened(watched, seconds):
        if watched[0].on == "source":
            raise InvalidDeclaration("There is no such connection.")
        return MemoryHealth(figures={}, watched=watched)

    watch = HealthWatch(budget=Budget(signals=(EVERY[4], EVERY[2])), open=opened)
    with pytest.raises(InvalidDeclaration):
        watch.start()
    assert not looking._shared
    assert watch.readings() == {}


def test_a_plan_is_refused_by_the_first_signal_that_cannot_be_watched():
    """One look at each side before anything is planned, and closed again; what may pass is left to the gate."""
    made: list[MemoryHealth] = []

    def opened(watched, seconds):
        figures = {EVERY[2].name: SourceUnavailable("Away."), EVERY[4].name: SinkRefused("No right.")}
        made.append(MemoryHealth(figures=figures, watched=watched))
        return made[-1]

    with pytest.raises(SinkRefused, match="No right"):
        HealthWatch(budget=Budget(signals=(EVERY[2], EVERY[4])), open=opened).check()
    assert [each.closed for each in made] == [True, True]
    HealthWatch(budget=Budget(signals=(EVERY[2],)), open=opened).check()


@pytest.mark.statement("F7")
def test_what_is_unread_of_a_log_follows_the_open_ranges():
    """F7: lag per partition: a failed range in the middle counts, what was committed does not."""
    window = LogWindow(topic="t", topic_id="x", start={0: 10, 1: 0, 2: 5}, end={0: 30, 1: 20, 2: 25})
    still = [OffsetBounds(pieces=((0, 20, 25),)), OffsetBounds(pieces=((2, 15, 25),))]
    assert unread_offsets(window, still, whole=True) == {0: 20, 1: 20, 2: 15}
    assert unread_offsets(window, [], whole=True) == window.end
    assert unread_offsets(window, still[:1], whole=False) == {0: 20, 1: 0, 2: 5}
    assert lag({0: 20, 1: 20, 2: 15}, {0: 30, 1: 20, 2: 40}) == {0: 10, 1: 0, 2: 25}
