"""Who gets the next connection to a server of sinks, where hydrations want more than there are."""

import time

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.gate.cluster_queue import Change
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.ledger.database import make_engine
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.conformance.ledger.support import admit, commit, take
from tests.conformance.ledger.test_steering import sharing
from tests.support.waiting import until


def waiting(ledger, names, *, connections=1):
    """Hydrations that share a server, the first one with all connections, and their plans."""
    made = [sharing(ledger, name, connections=connections) for name in names]
    for _ in range(connections):
        take(ledger, made[0][0])
    return made


def begin_to_wait(ledger, hydration_id):
    """Stand by in a later millisecond than every call before: SQLite's clock knows no smaller step."""
    before = time.time_ns() // 1_000_000
    until(lambda: time.time_ns() // 1_000_000 > before, pause=0.001)
    ledger.stand_by(hydration_id)


def test_who_waits_longest_gets_the_next_one(ledger):
    """Also who has just given one back, and asks first: it begins behind the others."""
    (one, first), (two, second), (three, third) = waiting(ledger, "abc")
    for hydration_id in (two, three, one, two):
        begin_to_wait(ledger, hydration_id)
    assert [ledger.gate(each).connections_before for each in (one, two, three)] == [2, 0, 1]
    commit(ledger, first, 0)
    assert admit(ledger, one) is None
    assert admit(ledger, three) is None
    take(ledger, two)
    begin_to_wait(ledger, two)
    commit(ledger, second, 0)
    assert admit(ledger, two) is None
    assert admit(ledger, one) is None
    take(ledger, three)
    commit(ledger, third, 0)
    assert [ledger.gate(each).connections_before for each in (one, two, three)] == [0, 1, 2]
    assert admit(ledger, two) is None
    take(ledger, one)


def test_a_higher_priority_goes_before_a_longer_wait(ledger):
    (_, first), (two, _), (three, _) = waiting(ledger, "abc")
    ledger.stand_by(two)
    ledger.stand_by(three)
    ledger.steer(three, Change(priority=5), who="ada")
    commit(ledger, first, 0)
    assert admit(ledger, two) is None
    take(ledger, three)


def test_as_many_as_are_free_may_go_at_once(ledger):
    """One waits; of two that are free, one is for it."""
    (one, first), (two, _), (three, _) = waiting(ledger, "abc", connections=3)
    ledger.stand_by(two)
    commit(ledger, first, 0)
    assert admit(ledger, three) is None
    commit(ledger, first, 1)
    take(ledger, three)
    assert admit(ledger, one) is None
    take(ledger, two)


def test_who_is_silent_or_paused_or_elsewhere_holds_nobody_up(ledger):
    (one, first), (two, _), (three, _) = waiting(ledger, "abc")
    other, _ = sharing(ledger, "elsewhere")
    ledger.register(
        environment="test",
        source_identity=ledger.hydration(other).source_identity,
        sink_identity="elsewhere",
        owner="orders",
        cluster="spark_default",
        credits=8,
        sink_server="postgres://lake:5432",
    )
    ledger.stand_by(other)
    ledger.stand_by(two)
    ledger.stand_by(three, lease_seconds=0.05)
    ledger.pause(two, who="ada")
    until(lambda: ledger.gate(one).connections_before == 0)
    commit(ledger, first, 0)
    take(ledger, one)
    ledger.resume(two, who="ada")
    assert ledger.gate(one).connections_before == 1, "it has not lost its place"


def test_who_was_silent_begins_behind_the_others(ledger):
    (one, _), (two, _), (three, _) = waiting(ledger, "abc")
    ledger.stand_by(two, lease_seconds=0.05)
    until(lambda: ledger.gate(one).connections_before == 0)
    begin_to_wait(ledger, three)
    begin_to_wait(ledger, two)
    assert [ledger.gate(each).connections_before for each in (two, three)] == [1, 0]


def test_lists_say_who_goes_first(ledger):
    (one, first), (two, _) = waiting(ledger, "ab")
    ledger.stand_by(two)
    commit(ledger, first, 0)
    found = {glance.hydration.id: glance for glance in ledger.glances(owners={"orders"}, limit=9, offset=0)}
    assert found[one].reasons == [
        "0 of 1 connections to the sink's server in use, 1 of the next for others that go first"
    ]
    assert found[two].reasons == []


def test_what_is_not_there_does_not_wait(ledger):
    with pytest.raises(LedgerRefused, match="no hydration 0000"):
        ledger.stand_by("0" * 32)


def test_an_admission_asks_no_more_however_many_wait(tmp_path):
    """The law is counted by the database, in one statement."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    engine = make_engine(url)
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    ledger = SqlLedger(engine)
    (one, first), *_ = waiting(ledger, ["a"])
    counts = []
    for round_, more in enumerate((0, 1, 30)):
        for number in range(more):
            ledger.stand_by(sharing(ledger, f"{round_}/{number}")[0])
        statements.clear()
        assert admit(ledger, one) is None
        counts.append(len(statements))
    commit(ledger, first, 0)
    statements.clear()
    assert admit(ledger, one) is None
    counts.append(len(statements))
    ledger.close()
    engine.dispose()
    assert len(set(counts)) == 1, counts
