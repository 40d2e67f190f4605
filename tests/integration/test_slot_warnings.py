"""Warnings of the log that a source keeps, on a real server, before the limit is reached."""

import logging
from collections.abc import Iterator
from contextlib import closing

import pytest

from airflow_provider_backpressure.connectors.postgres.health import PostgresHealth
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.replication_slots import position
from airflow_provider_backpressure.connectors.postgres.source.change_log import ERRORS, PostgresLog
from airflow_provider_backpressure.core.config import SlotLag
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import Figure
from airflow_provider_backpressure.exceptions import SnapshotLost
from tests.support.postgres import connected, run

pytestmark = pytest.mark.integration

LIMIT = 6_000_000
WRITE = "INSERT INTO busy SELECT i FROM generate_series(1, 55000) i"
"""About 3.5 MB of log."""
WINDOW = 25_000_000
"""Bytes of log of 400,000 such rows, roughly."""


def kept(database: Endpoint, number: int, most: int | None) -> PostgresLog:
    return PostgresLog(database, QualifiedName.parse("public.t"), f"{number:032x}", most=most, restarts=True)


@pytest.fixture
def source(database: Endpoint) -> Iterator[Endpoint]:
    """A table that is followed, and another one that fills the log."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE busy (n int)")
    yield database
    run(
        database,
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()",
    )


def test_a_log_is_warned_of_once_at_each_level_and_dropped_at_the_limit(
    source: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """FINEPRINT 42: at 50 %, then at the limit; the process that holds the log is named where it is not ours."""
    with closing(kept(source, 1, LIMIT)) as log, caplog.at_level(logging.WARNING):
        log.begin()
        log.guard(replaying=True)
        assert caplog.messages == []
        run(source, WRITE)
        for _ in range(2):
            log.guard(replaying=True)
        (warning,) = caplog.messages
        assert "50 % of the 5.7 MiB that it may" in warning
        assert "dropped at the limit, and the table is read again" in warning
        run(source, WRITE)
        with pytest.raises(SnapshotLost, match="more than it may: it was dropped"):
            log.guard(replaying=True)
        assert run(source, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]


def test_a_log_that_nothing_bounds_is_warned_of_at_its_beginning(
    source: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(kept(source, 2, None)) as log, caplog.at_level(logging.WARNING):
        log.begin()
        assert "Nothing bounds the log" in caplog.text
        log.drop()


def look_at_lag(source: Endpoint) -> Figure:
    """Return what the signal shows on the page."""
    lag = SlotLag(bytes=1)
    with closing(PostgresHealth(source, [lag], errors=ERRORS, seconds=5)) as health:
        found = health.look()[lag]
    assert isinstance(found, Figure)
    return found


@pytest.mark.statement("W4")
def test_a_foreign_transaction_that_holds_the_log_is_named(source: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """W4: in the task's log, and by the signal. What is not confirmed is small, and that transaction holds the rest."""
    with closing(kept(source, 3, LIMIT)) as log, connected(source, autocommit=False) as other:
        log.begin()
        pid = other.execute("SELECT pg_backend_pid()").fetchall()[0][0]
        other.execute("INSERT INTO busy VALUES (0)")
        run(source, WRITE)
        (place,) = run(source, "SELECT pg_current_wal_lsn()::text")[0]
        run(source, f"SELECT pg_replication_slot_advance('{log.stream}', '{place}')")
        with caplog.at_level(logging.WARNING):
            log.guard(replaying=True)
        assert f"the open transaction of process {pid} holds it, not the hydration" in caplog.text
        held = f"{log.stream}, held by the open transaction of process {pid}"
        assert look_at_lag(source).note == held
        other.rollback()
        assert look_at_lag(source).note != held


def test_a_window_that_was_let_go_is_not_kept_by_the_server(source: Endpoint) -> None:
    """A slot that is moved on once still keeps it, from the first place in it at which decoding can begin."""
    held = "SELECT (pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = %s"
    with closing(kept(source, 4, None)) as log, connected(source) as connection:
        log.begin()
        for _ in range(2):
            connection.execute("CHECKPOINT")
            connection.execute("INSERT INTO busy SELECT i FROM generate_series(1, 400000) i")
            connection.execute("CHECKPOINT")
            ((place,),) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchall()
            log.release(position(place))
            ((size,),) = connection.execute(held, (log.stream,)).fetchall()
            assert size < WINDOW / 10
