"""Signals of real servers: graded below their threshold, closed at it, open again below."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.admission.health_measurements import HealthWatch
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import (
    ActiveSessions,
    Budget,
    Checkpoints,
    Mode,
    Query,
    ReplicaLag,
    ThreadsRunning,
    WalRate,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.gate.signals import Decision, Signal
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.exceptions import SinkRefused, SourceRefused
from airflow_provider_backpressure.hooks.metrics import Places
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import MySQLSource, PostgresSource
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource
from dev.services import Server
from tests.conftest import endpoint_of
from tests.support import mysql as on_mysql
from tests.support.postgres import connected, new_role, run

pytestmark = pytest.mark.integration
SECONDS = 60.0


class Gate:
    """The limiter of a planned hydration in memory, whose budget watches real servers."""

    def __init__(self, stack: ExitStack, watched: Watched, *, source: Any = None, sink: Any = None) -> None:
        self.budget = Budget(credits=1, range_rows=10, signals=(watched,), signal_interval=0.5, signal_deadline=3)
        self.source = MemorySource(keys=range(100))
        self.target = MemorySink()
        self.runner = MemoryRunner(source=self.source, sink=self.target)
        self.ledger = MemoryLedger()
        planned = Planner(
            source=self.source,
            sink=self.target,
            runner=self.runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="test",
            cluster="spark",
        ).plan()
        self.plan, self.hydration_id = planned.plan, planned.hydration.id
        places = Places(source=lambda: source, sink=lambda: sink)
        self.watch = HealthWatch(budget=self.budget, open=places.open)
        self.watch.start()
        stack.callback(self.watch.close_and_wait)
        self.limiter = Limiter(
            ledger=self.ledger,
            hydration_id=self.hydration_id,
            budget=self.budget,
            memory=self.runner.memory,
            health=self.watch.readings,
        )

    def look(self) -> Decision:
        return self.limiter.look()[1]

    def until(self, condition: Callable[[Signal, Decision], bool]) -> Signal:
        """Wait until the declared signal is as wanted, and return it."""
        deadline = time.monotonic() + SECONDS
        while True:
            decision = self.look()
            signal = decision.signals[-1]
            assert signal.declared
            assert decision.open is not signal.closed, "nothing else closes it"
            if condition(signal, decision):
                return signal
            assert time.monotonic() < deadline, signal.sentence
            time.sleep(0.05)

    def graded(self, sentence: str = "") -> Signal:
        return self.until(lambda signal, _: 0 < signal.utilisation < 1 and sentence in signal.sentence)

    def closed(self) -> Signal:
        return self.until(lambda signal, decision: signal.closed and "seen" not in signal.sentence)

    def opened(self) -> Signal:
        return self.until(lambda signal, decision: decision.open)


@pytest.fixture
def gate() -> Iterator[Callable[..., Gate]]:
    """Make gates; their looks end with the test."""
    with ExitStack() as stack:
        yield lambda watched, **sides: Gate(stack, watched, **sides)


@contextmanager
def busy(statement: Callable[[], Any], end: Callable[[], Any]) -> Iterator[None]:
    """Run a statement in a thread for as long as the block takes."""
    thread = threading.Thread(target=statement)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join(30)


@contextmanager
def session(database: Endpoint) -> Iterator[None]:
    """Keep one session of PostgreSQL at work."""
    link = connected(database)

    def work() -> None:
        with pytest.raises(Exception, match="terminating connection"):
            link.execute("SELECT pg_sleep(600)")

    with link, busy(work, lambda: run(database, f"SELECT pg_terminate_backend({link.info.backend_pid})")):
        yield


def pg_sink(database: Endpoint) -> Any:
    return PostgresSink(conn_id="sink", table="public.t").open(replace(database, conn_id="sink"))


def pg_source(database: Endpoint) -> Any:
    return PostgresSource(conn_id="source", table="public.t").open(replace(database, conn_id="source"))


def sessions_now(database: Endpoint) -> int:
    """Return how many others are at work on the server, the session's other tests among them."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state = 'active'"
    return int(run(database, query)[0][0]) - 1


@pytest.mark.statement("T7")
@pytest.mark.parametrize("side", ["source", "sink"])
def test_active_sessions(database, gate, side):
    """T7: sessions that do something count; idle ones, and the look itself, do not."""
    most = sessions_now(database) + 2
    at = gate(ActiveSessions(on=side, most=most), **{side: (pg_source if side == "source" else pg_sink)(database)})
    with connected(database), session(database):
        at.graded(f"{side} active sessions {most - 1} < {most}")
        with session(database):
            assert at.closed().sentence == f"{side} active sessions {most} >= {most}"
        assert at.opened().utilisation < 1


@pytest.mark.statement("T7")
def test_active_sessions_as_a_share_of_max_connections(database, gate):
    """T7: of what the server lets in."""
    at = gate(ActiveSessions(on="sink", share=0.02), sink=pg_sink(database))
    with ExitStack() as stack:
        stack.enter_context(session(database))
        assert "% (" in at.graded().sentence
        for _ in range(3):
            stack.enter_context(session(database))
        assert re.fullmatch(r"sink active sessions \d% \(\d of 200\) >= 2% of max_connections", at.closed().sentence)
    at.opened()


@pytest.mark.statement("T7")
def test_wal_rate(database, gate):
    """T7: bytes per second between two readings; once nothing is written it falls again."""
    run(database, "CREATE TABLE w (v text)")
    at = gate(WalRate(on="sink", bytes_per_second=2**20), sink=pg_sink(database))
    at.opened()
    run(database, "INSERT INTO w SELECT repeat(md5(i::text), 30) FROM generate_series(1, 40000) i")
    assert re.fullmatch(r"sink WAL rate [\d.]+ MiB/s >= 1\.0 MiB/s", at.closed().sentence)
    assert at.opened().utilisation < 1


@pytest.mark.statement("T7")
def test_requested_checkpoints(database, gate):
    """T7: how many in the last minute."""
    at = gate(Checkpoints(on="sink", per_minute=2), sink=pg_sink(database))
    at.until(lambda signal, _: "never" not in signal.sentence)
    run(database, "CREATE TABLE c (v int)", "CHECKPOINT")
    at.graded("sink requested checkpoints 1 in the last minute < 2")
    run(database, "INSERT INTO c VALUES (1)", "CHECKPOINT")
    assert at.closed().sentence == "sink requested checkpoints 2 in the last minute >= 2"


@pytest.mark.statement("T7")
@pytest.mark.parametrize("side", ["source", "sink"])
def test_a_query_of_the_user_s(database, gate, side):
    """T7: any number that SQL gives, ``%`` and all; NULL is not seen."""
    run(database, "CREATE TABLE load (v numeric, what text)", "INSERT INTO load VALUES (5, 'a%')")
    sql = "SELECT max(v) FROM load WHERE what LIKE 'a%';"
    opened = pg_source if side == "source" else pg_sink
    at = gate(Query(on=side, sql=sql, most=10, name="load"), **{side: opened(database)})
    at.graded(f"load on {side} 5 < 10")
    run(database, "UPDATE load SET v = 10")
    assert at.closed().sentence == f"load on {side} 10 >= 10"
    run(database, "UPDATE load SET v = 9.5")
    assert at.opened().utilisation == pytest.approx(0.95)
    run(database, "UPDATE load SET v = NULL")
    assert "gave NULL" in at.until(lambda signal, _: signal.closed).sentence


def test_a_user_s_query_cannot_write_and_cannot_hold_the_look(database):
    """Read-only, one statement, and ended by the server after seconds; none of it raises."""
    run(database, "CREATE TABLE load (v int)", "INSERT INTO load VALUES (1)")
    sink = pg_sink(database)

    def look(sql: str) -> str:
        query = Query(on="sink", sql=sql, most=1)
        health = sink.health([query], seconds=0.5)
        found = health.look()[query]
        health.close()
        return str(found)

    assert "read-only transaction" in look("UPDATE load SET v = 2 RETURNING v")
    assert "multiple commands" in look("SELECT 1; UPDATE load SET v = 2")
    assert "no number but a str" in look("SELECT 'x'")
    assert "no row" in look("SELECT 1 WHERE false")
    assert "does not exist" in look("SELECT v FROM nowhere")
    began = time.monotonic()
    assert "statement timeout" in look("SELECT pg_sleep(60)")
    assert time.monotonic() - began < 10
    assert run(database, "SELECT v FROM load") == [(1,)]


def test_a_role_that_sees_only_itself_is_told_what_to_grant(database):
    """Else every other session would look as if it did nothing."""
    with new_role(database) as role:
        watched = ActiveSessions(on="sink", most=5)
        health = pg_sink(role).health([watched], seconds=5)
        found = health.look()[watched]
        assert isinstance(found, SinkRefused)
        assert f'GRANT pg_monitor TO "{role.user}"' in str(found)
        assert role.password not in str(found)
        run(database, f"GRANT pg_monitor TO {role.user}")
        assert not isinstance(health.look()[watched], Exception)
        health.close()


@pytest.mark.statement("T7")
def test_a_host_that_is_away_is_not_seen_and_seen_again(postgres, database, gate):
    """T7: fail closed with the reason; no error reaches the lane."""
    with new_role(database) as role:
        run(database, f"GRANT pg_monitor TO {role.user}")
        at = gate(ActiveSessions(on="sink", most=1000), sink=pg_sink(role))
        at.opened()
        run(database, f"ALTER ROLE {role.user} NOLOGIN")
        run(database, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role.user}'")
        gone = at.until(lambda signal, _: signal.closed).sentence
        assert re.match(r"sink active sessions not seen for \d+ s, deadline 3 s \(.*not permitted to log in", gone)
        assert role.password not in gone
        run(database, f"ALTER ROLE {role.user} LOGIN")
        at.opened()


@pytest.mark.statement("T7")
def test_replica_lag_of_a_primary_that_nobody_follows(database, gate):
    """T7: nobody is behind."""
    for watched in (ReplicaLag(on="source", seconds=30), ReplicaLag(on="source", bytes=2**20)):
        signal = gate(watched, source=pg_source(database)).opened()
        assert signal.utilisation == 0
        assert signal.sentence.startswith("source replica lag 0")


def my_source(database: Endpoint) -> Any:
    return MySQLSource(conn_id="source", table="t").open(replace(database, conn_id="source"))


@contextmanager
def thread(database: Endpoint) -> Iterator[None]:
    """Keep one thread of MySQL at work."""
    lock = f"{database.database}-{threading.get_ident()}-{time.monotonic_ns()}"
    with busy(
        lambda: on_mysql.run(database, f"SELECT /* {lock} */ sleep(600)"),
        lambda: on_mysql.run(
            database,
            f"SET @id = (SELECT max(id) FROM information_schema.processlist WHERE info LIKE 'SELECT /* {lock} */%')",
            "SET @kill = concat('KILL QUERY ', @id)",
            "PREPARE stop FROM @kill",
            "EXECUTE stop",
        ),
    ):
        deadline = time.monotonic() + 30
        query = f"SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'SELECT /* {lock} */%'"
        while on_mysql.run(database, query) != [(1,)]:
            assert time.monotonic() < deadline
        yield


@pytest.mark.statement("T7")
def test_threads_running(mysql_database, gate):
    """T7: threads that do something; the look itself is not one of them."""
    before = int(on_mysql.run(mysql_database, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1]) - 1
    most = before + 2
    at = gate(ThreadsRunning(on="source", most=most), source=my_source(mysql_database))
    with thread(mysql_database):
        at.graded(f"source threads running {most - 1} < {most}")
        with thread(mysql_database):
            assert at.closed().sentence == f"source threads running {most} >= {most}"
        assert at.opened().utilisation < 1


@pytest.mark.statement("T7")
def test_a_query_of_the_user_s_on_mysql(mysql_database, gate, monkeypatch):
    """T7: the same of the source and of a third connection."""
    on_mysql.run(mysql_database, "CREATE TABLE pressure (v decimal(5,2))", "INSERT INTO pressure VALUES (5)")
    monkeypatch.setenv("AIRFLOW_CONN_THIRD", on_mysql.address(mysql_database).render_as_string(hide_password=False))
    sql = "SELECT v FROM pressure"
    for watched, place in (
        (Query(on="source", sql=sql, most=10), "source"),
        (Query(conn_id="third", sql=sql, most=10), "connection third"),
    ):
        on_mysql.run(mysql_database, "UPDATE pressure SET v = 5")
        at = gate(watched, source=my_source(mysql_database))
        at.graded(f"query on {place} 5 < 10")
        on_mysql.run(mysql_database, "UPDATE pressure SET v = 12.5")
        assert at.closed().sentence == f"query on {place} 12.5 >= 10"
        on_mysql.run(mysql_database, "UPDATE pressure SET v = 1")
        at.opened()


def test_a_user_s_query_on_mysql_cannot_write_and_cannot_hold_the_look(mysql_database):
    """Read-only, one statement, and ended after seconds."""
    on_mysql.run(mysql_database, "CREATE TABLE pressure (v int)", "INSERT INTO pressure VALUES (1)")

    def look(sql: str) -> str:
        query = Query(on="source", sql=sql, most=1)
        health = my_source(mysql_database).health([query], seconds=0.5)
        found = health.look()[query]
        health.close()
        return str(found)

    assert "READ ONLY" in look("UPDATE pressure SET v = 2")
    assert "syntax" in look("SELECT 1; UPDATE pressure SET v = 2")
    assert "no number" in look("SELECT 'x'")
    began = time.monotonic()
    # MySQL cuts a sleep short without an error; a real statement ends with one.
    assert "maximum statement execution time" in look(
        "SELECT count(*) FROM information_schema.columns a, information_schema.columns b, information_schema.columns c"
    )
    assert time.monotonic() - began < 10
    assert on_mysql.run(mysql_database, "SELECT v FROM pressure") == [(1,)]


def test_a_mysql_that_is_no_replica_says_so(mysql_database):
    """A server does not tell how far others are behind it."""
    watched = ReplicaLag(on="source", seconds=30)
    health = my_source(mysql_database).health([watched], seconds=5)
    assert "is no replica" in str(health.look()[watched])
    health.close()


@pytest.mark.statement("T7")
def test_a_hydration_pauses_while_the_user_s_sql_says_too_much(database, gate):
    """T7: not one range is submitted meanwhile; then all go through."""
    run(database, "CREATE TABLE load (v int)", "INSERT INTO load VALUES (99)")
    at = gate(Query(on="sink", sql="SELECT v FROM load", most=50, name="load"), sink=pg_sink(database))
    at.closed()

    def lane(inline_wait: float) -> Hydrator:
        return Hydrator(
            hydration_id=at.hydration_id,
            plan=at.plan,
            lane="lane",
            ledger=at.ledger,
            source=at.source,
            sink=at.target,
            runner=at.runner,
            limiter=at.limiter,
            budget=at.budget,
            inline_wait=inline_wait,
            poll=PollPolicy(initial=0.05, maximum=0.2),
        )

    refused = lane(0.5).run()
    assert refused.outcome is Outcome.CLOSED
    assert refused.decision is not None
    assert refused.decision.reasons == ("load on sink 99 >= 50",)
    assert not at.runner.submitted
    results = []
    waiting = threading.Thread(target=lambda: results.append(lane(SECONDS).run()))
    waiting.start()
    run(database, "UPDATE load SET v = 1")
    waiting.join(SECONDS)
    assert [result.outcome for result in results] == [Outcome.DONE]
    assert at.target.rows == list(range(100))


def test_a_plan_is_refused_where_a_signal_cannot_be_watched(database):
    """At the plan, by the first look."""
    source = pg_source(database)
    for watched, words in (
        (Query(on="source", sql="SELECT nonsense", most=1), 'column "nonsense" does not exist'),
        (ThreadsRunning(on="source", most=1), "PostgreSQL has no ThreadsRunning"),
    ):
        places = Places(source=lambda: source, sink=lambda: None)
        with pytest.raises(SourceRefused, match=words):
            HealthWatch(budget=Budget(signals=(watched,)), open=places.open).check()
    source.close()


def test_servers_are_the_session_s(postgres: Server) -> None:
    """The share above counts on this."""
    assert run(endpoint_of(postgres, "postgres"), "SHOW max_connections") == [("200",)]
