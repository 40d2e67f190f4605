"""Replica lag on real servers with a real replica behind them."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import ReplicaLag
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.signals import HealthReading, Signal, health
from airflow_provider_backpressure.core.health_signal_declarations import Figure
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import MySQLSource, PostgresSource
from dev.services import Services
from tests.conftest import endpoint_of
from tests.support import mysql as on_mysql
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.statement("T7")]
REPLICA = "mysql:replica"
SECONDS = 60.0


@pytest.fixture(scope="module")
def replica(services: Services, mysql: Endpoint) -> Iterator[Endpoint]:
    """A replica of the session's MySQL, from now on, which applies what comes four seconds late."""
    folder = services.home / REPLICA.replace(":", "-")
    folder.mkdir()
    # What the source writes of its account comes here too.
    shutil.copy(services.home / "mysql" / "password", folder / "password")
    server = services.up(REPLICA, settings={"mysql": {"server_id": "2"}})[REPLICA]
    made = endpoint_of(server, "mysql")
    ((position,),) = on_mysql.run(mysql, "SELECT @@GLOBAL.gtid_executed")
    on_mysql.run(
        made,
        "RESET MASTER",
        f"SET GLOBAL gtid_purged = '{position}'",
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{mysql.host}', SOURCE_PORT={mysql.port}, "
        f"SOURCE_USER='{mysql.user}', SOURCE_PASSWORD='{mysql.password}', SOURCE_AUTO_POSITION=1, SOURCE_DELAY=4",
        "START REPLICA",
    )
    yield made
    services.down(REPLICA)


def until(endpoint: Endpoint, watched: ReplicaLag, *, closed: bool) -> Signal:
    """Look until the signal is closed or open."""
    opened = (PostgresSource if watched.on == "source" else PostgresSink)(conn_id="c", table="t").open(endpoint)
    return looked_until(opened, watched, closed=closed)


def looked_until(opened: Any, watched: ReplicaLag, *, closed: bool) -> Signal:
    """Look at a side until the signal is closed or open."""
    deadline = time.monotonic() + SECONDS
    with closing(opened), closing(opened.health([watched], seconds=5)) as looking:
        while True:
            found = looking.look()[watched]
            if isinstance(found, Figure):
                signal = health(watched, HealthReading(value=found.value, age_seconds=0.0), deadline=15)
                if signal.closed is closed:
                    return signal
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


def test_lag_closes_the_gate_while_replay_stands_still_and_opens_it_again(pair: tuple[Endpoint, Endpoint]) -> None:
    """T7: asked of the standby, and of the primary that it follows, in seconds and in bytes."""
    primary, standby = pair
    run(primary, "CREATE TABLE t (v text)")
    asked = [
        (standby, ReplicaLag(on="source", seconds=1.5)),
        (standby, ReplicaLag(on="source", bytes=2**20)),
        (primary, ReplicaLag(on="sink", seconds=1.5)),
        (primary, ReplicaLag(on="sink", bytes=2**20)),
    ]
    for endpoint, watched in asked:
        until(endpoint, watched, closed=False)
    run(standby, "SELECT pg_wal_replay_pause()")
    run(primary, "INSERT INTO t SELECT repeat(md5(i::text), 30) FROM generate_series(1, 3000) i")
    sentences = [until(endpoint, watched, closed=True).sentence for endpoint, watched in asked]
    assert "source replica lag" in sentences[0]
    assert sentences[0].endswith("s >= 1.5 s")
    assert sentences[3].startswith("sink replica lag")
    assert sentences[3].endswith("MiB >= 1.0 MiB")
    run(standby, "SELECT pg_wal_replay_resume()")
    for endpoint, watched in asked:
        until(endpoint, watched, closed=False)


def test_an_idle_primary_does_not_make_its_standby_look_behind(pair: tuple[Endpoint, Endpoint]) -> None:
    """T7: the last transaction grows old, and the standby has it all the same."""
    primary, standby = pair
    run(primary, "CREATE TABLE IF NOT EXISTS i (v int)", "INSERT INTO i VALUES (1)")
    deadline = time.monotonic() + SECONDS
    while run(standby, "SELECT now() - pg_last_xact_replay_timestamp() > interval '3 s'") != [(True,)]:
        assert time.monotonic() < deadline
    assert until(standby, ReplicaLag(on="source", seconds=1.5), closed=False).utilisation == 0


def test_a_replica_of_mysql(replica: Endpoint, mysql_database: Endpoint) -> None:
    """T7: what it is behind while it waits with what has come; nothing is known while replication stands still."""
    watched = ReplicaLag(on="source", seconds=2)
    opened = MySQLSource(conn_id="c", table="t").open(replica)
    looked_until(opened, watched, closed=False)
    on_mysql.run(mysql_database, "CREATE TABLE t (v int)", "INSERT INTO t VALUES (1)")
    assert re.fullmatch(r"source replica lag [2-9]\.0 s >= 2\.0 s", looked_until(opened, watched, closed=True).sentence)
    looked_until(opened, watched, closed=False)
    on_mysql.run(replica, "STOP REPLICA SQL_THREAD")
    with closing(opened.health([watched], seconds=5)) as looking:
        assert "stands still" in str(looking.look()[watched])
    on_mysql.run(replica, "START REPLICA SQL_THREAD")
    looked_until(opened, watched, closed=False)
    opened.close()
