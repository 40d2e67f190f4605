"""``catch_up`` on a real server with room for little log: what happens before it is full, and once it was."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.sdk import AsyncCallback

from airflow_provider_backpressure.connectors.postgres.source.change_log import IDLE_BYTES
from airflow_provider_backpressure.core.config import Budget, SlotLag
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.exceptions import LogLost, SnapshotLost, SourceRefused
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.triggers.between_runs import IdleMaintenance
from airflow_provider_backpressure.triggers.event_callbacks import as_callbacks
from airflow_provider_backpressure.triggers.followed_sources_poller import Unread
from dev.proxy import Proxy
from dev.services import Server, Services
from tests.conftest import fresh_database
from tests.support.catching_up import FILL, TABLE, Followed, follow
from tests.support.composed import IN_PROCESS, Composed
from tests.support.marks import mark_long
from tests.support.postgres import connected
from tests.support.server_images import Image
from tests.support.waiting import beside, until

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.timeout(600)]

SMALL = "postgres:small"
MIB = 2**20
KEPT = 48 * MIB
"""``max_slot_wal_keep_size``."""
SECONDS = 120.0
SAFE = {"reserved", "extended"}
"""States of a slot that lacks nothing."""
ROOM = "SELECT wal_status, safe_wal_size, pg_wal_lsn_diff(pg_current_wal_flush_lsn(), restart_lsn)::bigint"


@pytest.fixture(scope="module")
def small(services: Services) -> Iterator[Server]:
    """A server that removes its log early, also from under a slot."""
    kept = {"max_slot_wal_keep_size": f"{KEPT // MIB}MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    yield services.up(SMALL, settings={"postgres": kept})[SMALL]
    services.down(SMALL)


@pytest.fixture
def proxy(database: Endpoint) -> Iterator[Proxy]:
    """The way to the sink, which a test makes slow."""
    made = Proxy(database.host, database.port)
    yield made
    made.close()


@pytest.fixture
def followed(
    small: Server,
    database: Endpoint,
    proxy: Proxy,
    ledger_url: str,
    runner: Runner,
    logins: dict[str, Endpoint],
) -> Iterator[Followed]:
    """``public.t`` of the small server into ``raw.t`` of another one."""
    with fresh_database(small) as source:
        sink = replace(database, host="127.0.0.1", port=proxy.port)
        composed = Composed(source=source, sink=sink, ledger_url=ledger_url, remote=IN_PROCESS)
        yield follow(composed, runner, logins)


@dataclass
class Flood:
    """Writes log into a server that keeps it for a slot, and sees how the slot fares."""

    endpoint: Endpoint
    write: Callable[["Flood", psycopg.Connection], float]
    """One step of it, which returns the seconds to the next."""
    written: int = 0
    statuses: set[str | None] = field(default_factory=set)
    least: int | None = None
    """Fewest bytes that were left until the server would have given the slot up."""

    @contextmanager
    def rising(self) -> Iterator["Flood"]:
        """Write until the block is left."""
        with beside(self._run):
            yield self

    def room(self, connection: psycopg.Connection) -> tuple[int, int]:
        """Return the bytes that are left and those that are kept; 0 of both where there is no slot."""
        row = connection.execute(f"{ROOM} FROM pg_replication_slots WHERE database = current_database()").fetchone()
        if row is None:
            return 0, 0
        status, safe, held = row
        self.statuses.add(status)
        self.least = safe if self.least is None else min(self.least, safe)
        return safe, held

    def pour(self, connection: psycopg.Connection, size: int) -> None:
        """Write so many bytes of log that no slot has to tell of."""
        connection.execute("SELECT pg_logical_emit_message(false, 'flood', repeat('x', %s))", (size,))
        self.written += size

    def _run(self, over: threading.Event) -> None:
        pause = 0.0
        with connected(self.endpoint) as connection:
            while not over.wait(pause):
                pause = self.write(self, connection)


def up_to_the_brim(flood: Flood, connection: psycopg.Connection) -> float:
    """Write fast, and near the limit so slowly that two looks of a lane are less apart than what is left."""
    safe, held = flood.room(connection)
    if not held:
        flood.pour(connection, 1)
        return 0.25
    near = safe < 0.15 * (safe + held)
    flood.pour(connection, 100_000 if near else MIB)
    return 0.25 if near else 0.02


def beside_the_table(flood: Flood, connection: psycopg.Connection) -> float:
    """Write 3 MB of log a second, of which some kilobytes are changes of the table."""
    flood.room(connection)
    connection.execute("UPDATE t SET v = v + 1, doc = repeat('d', 1000) WHERE id %% 100 = %s", (flood.written % 97,))
    flood.pour(connection, 600_000)
    return 0.2


@pytest.mark.long
@pytest.mark.statement("T10")
def test_windows_are_landed_and_the_slot_moves_on_though_the_sink_is_slow(followed: Followed, proxy: Proxy) -> None:
    """T10: three times the room for the log goes by, and the server never comes near to giving the slot up."""
    followed.source(TABLE, FILL.format(2000), "ANALYZE t")
    followed.go()
    ((_, before),) = followed.slots()
    proxy.bytes_per_second = 200_000
    deadline = time.monotonic() + 4 * SECONDS
    with Flood(followed.composed.source, beside_the_table).rising() as flood:
        while flood.written < 3 * KEPT:
            followed.go()
            assert time.monotonic() < deadline
    followed.go()
    ((_, after),) = followed.slots()
    assert after - before > 3 * KEPT
    assert flood.statuses <= SAFE
    assert followed.differs() == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["stop_and_keep", "drop_slot_and_restart"])
def test_the_policy_acts_before_the_server_gives_the_slot_up(followed: Followed, proxy: Proxy, policy: str) -> None:
    """FINEPRINT 12: the limit is the server's own; ranges go slowly into the sink while others fill the log."""
    limited = replace(followed, composed=replace(followed.composed, reading={"at_wal_limit": policy}))
    followed.source(TABLE, FILL.format(60_000), "ANALYZE t")
    limited.plan()
    proxy.bytes_per_second = 60_000
    stops = policy == "stop_and_keep"
    with (
        Flood(followed.composed.source, up_to_the_brim).rising() as flood,
        pytest.raises(SourceRefused if stops else SnapshotLost, match="more than it may"),
    ):
        limited.drain()
    assert flood.statuses <= SAFE
    assert flood.least is not None
    assert flood.least >= 0
    proxy.bytes_per_second = None
    if stops:
        assert len(followed.slots()) == 1
        with allowed_more(followed):
            followed.go()
    else:
        assert followed.slots() == []
        with limited.ports() as ports:
            ports.close_plan()
        limited.drain()
        limited.finish()
    assert followed.differs() == (0, 0)


@contextmanager
def allowed_more(followed: Followed) -> Iterator[None]:
    """Do what the error asks a person for: make room."""
    setting = "SHOW max_slot_wal_keep_size"
    before = followed.source(setting)
    followed.source("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'", "SELECT pg_reload_conf()")
    until(lambda: followed.source(setting) != before, SECONDS)
    yield
    followed.source("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    until(lambda: followed.source(setting) == before, SECONDS)


def test_a_slot_that_the_server_gave_up_is_named_and_nothing_is_skipped(followed: Followed) -> None:
    """Between two runs, and in the middle of one; a restart makes everything again."""
    followed.source(TABLE, FILL.format(50))
    followed.go()
    followed.source("UPDATE t SET v = 3", "DELETE FROM t WHERE id = 7")
    give_up(followed)
    with pytest.raises(LogLost, match=r"was invalidated: .* from \S+ on \(max_slot_wal_keep_size\): .*restart"):
        followed.plan()
    assert followed.sink("SELECT count(*), max(v) FROM raw.t") == [(50, 0)]
    followed.plan(restart=True)
    give_up(followed)
    with pytest.raises(LogLost, match=r"was invalidated: .*\(max_slot_wal_keep_size\): .*restart"):
        followed.drain()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


def test_a_slot_that_was_idle_for_too_long_is_named_by_its_setting(followed: Followed) -> None:
    """As the server has it, not as if there had been too much log."""
    followed.source(TABLE, FILL.format(50))
    followed.go()
    followed.source("UPDATE t SET v = 3")
    followed.source("ALTER SYSTEM SET idle_replication_slot_timeout = '1s'", "SELECT pg_reload_conf()")
    try:
        lost = "SELECT 1 FROM pg_replication_slots WHERE wal_status = 'lost' AND database = current_database()"
        until(lambda: followed.source("CHECKPOINT", lost), SECONDS)
        with pytest.raises(LogLost, match=r"was invalidated: .*\(idle_replication_slot_timeout\): .*restart"):
            followed.plan()
    finally:
        followed.source("ALTER SYSTEM RESET idle_replication_slot_timeout", "SELECT pg_reload_conf()")
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)


def test_a_slot_that_was_given_up_between_runs_begins_anew_where_that_is_declared(followed: Followed) -> None:
    """FINEPRINT 12, 8: by the server, and the run says so. A slot that somebody else removed is no such case."""
    reading = {"at_wal_limit": "drop_slot_and_restart"}
    limited = replace(followed, composed=replace(followed.composed, reading=reading))
    followed.source(TABLE, FILL.format(50))
    limited.go()
    followed.source("DELETE FROM t WHERE id = 7")
    give_up(followed)
    planned = limited.plan()
    assert planned.verdict is Verdict.PLANNED
    assert "was invalidated" in planned.note
    assert "read again, as declared" in planned.note
    limited.drain()
    limited.finish()
    assert followed.differs() == (0, 0)
    followed.source("DELETE FROM t WHERE id = 8", f"SELECT pg_drop_replication_slot('{followed.slots()[0][0]}')")
    with pytest.raises(LogLost, match="is gone"):
        limited.plan()
    assert followed.sink("SELECT count(*) FROM raw.t") == [(49,)], "the source may be an older one"


TOLD: list[dict[str, str]] = []


async def hear(*, context: dict[str, Any]) -> None:
    """Keep what the triggerer tells."""
    TOLD.append(context["backpressure_event"])


@pytest.mark.parametrize("policy", mark_long(["stop_and_keep", "drop_slot_and_restart"], quick=["stop_and_keep"]))
def test_between_runs_the_triggerer_lets_the_policy_act_and_tells(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """FINEPRINT 12: nobody replays; the server's limit comes near, and what the source declares is done and told."""
    TOLD.clear()
    source = followed.composed.source
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE", json.dumps(connection_of(source)))
    limited = replace(followed, composed=replace(followed.composed, reading={"at_wal_limit": policy}))
    followed.source(TABLE, FILL.format(50))
    limited.go()
    between = IdleMaintenance(
        source=PostgresSource(conn_id="source", table="public.t", at_wal_limit=policy),
        budget=Budget(signals=(SlotLag(bytes=KEPT // 2),)),
        callbacks=as_callbacks(AsyncCallback(hear)),
    )
    look(between, followed)
    assert TOLD == []
    flood = Flood(source, up_to_the_brim)
    with connected(source) as connection:
        while (room := flood.room(connection))[0] >= 0.08 * sum(room):
            flood.pour(connection, MIB)
    followed.source("DELETE FROM t WHERE id = 7")
    for _ in range(2):
        look(between, followed)
    assert flood.statuses <= SAFE
    if policy == "stop_and_keep":
        (told,) = TOLD
        assert told["kind"] == "data_at_risk"
        assert "more than it may, and no run replays it: trigger the DAG" in told["sentence"]
        assert "source slot lag" in told["sentence"]
        assert len(followed.slots()) == 1
        limited.go()
        look(between, followed)
        assert len(TOLD) == 1
    else:
        assert TOLD[0]["kind"] == "log_lost"
        assert "it was dropped, as declared" in TOLD[0]["sentence"]
        assert [told["kind"] for told in TOLD].count("log_lost") == 1
        assert followed.slots() == []
        assert "is gone" in limited.go().note
    assert followed.differs() == (0, 0)


def look(between: IdleMaintenance, followed: Followed) -> None:
    """Look once, as the trigger does while no run is under way."""

    async def once() -> None:
        with followed.ports() as ports:
            unread = Unread(hydration=ports.hydration, course=ports.ledger.course(ports.hydration.id))
            between.look(ports.ledger, unread, working=False)
            await between.settle()
            between.end()

    asyncio.run(once())


def connection_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return Airflow's connection to a database."""
    return {
        "conn_type": "postgres",
        "host": endpoint.host,
        "port": endpoint.port,
        "schema": endpoint.database,
        "login": endpoint.user,
        "password": endpoint.password,
    }


def give_up(followed: Followed) -> None:
    """Write more than the server keeps, and let it remove what is too much."""
    flood = Flood(followed.composed.source, lambda flood, connection: 0.0)
    with connected(followed.composed.source) as connection:
        for _ in range(2 * KEPT // MIB):
            flood.pour(connection, MIB)
    status = "SELECT wal_status FROM pg_replication_slots WHERE database = current_database()"
    until(lambda: followed.source("CHECKPOINT", status) == [("lost",)], SECONDS)


def test_what_an_idle_server_logs_leaves_no_token(followed: Followed) -> None:
    """Each token is log itself, so it would be a reason for the next window."""
    comment = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication"
    followed.source(TABLE, FILL.format(100))
    followed.go()
    followed.source("UPDATE t SET v = 1")
    followed.go()
    before = followed.source(comment)
    assert before[0][0]
    followed.source("SELECT pg_log_standby_snapshot()")
    followed.go()
    assert followed.source(comment) == before
    position = "SELECT pg_current_wal_insert_lsn() - '0/0'"
    ((start,),), ((end,),) = followed.source(position), followed.source("UPDATE t SET v = 2 WHERE id = 1", position)
    assert end - start < IDLE_BYTES
    followed.go()
    assert followed.source(comment) != before, "a change is signed, however little log it takes"
    assert followed.differs() == (0, 0)


def take_image(followed: Followed, services: Services, kept: Path) -> Image:
    """Keep what the disk of the source's server holds now."""
    ((folder,),) = followed.source("SHOW data_directory")
    return Image.take(services, SMALL, folder, kept)


@pytest.mark.statement("X3")
@pytest.mark.long
def test_a_source_that_was_restored_and_written_past_its_log_is_noticed(
    followed: Followed, services: Services, tmp_path: Path
) -> None:
    """An image of the disk holds the slot too, and the server reaches the old positions again with other changes.

    Noticed by the next run, and by the run whose windows are in if it has not ended.
    """
    followed.source(TABLE, FILL.format(100))
    followed.go()
    image = take_image(followed, services, tmp_path / "image")
    followed.source("UPDATE t SET v = 1")
    followed.go()
    assert followed.differs() == (0, 0)
    image.restore()
    followed.source("UPDATE t SET v = 2 WHERE id = 1", FILL.format(5000).replace("(1,", "(101,"))
    with pytest.raises(LogLost, match="restored to an earlier time"):
        followed.plan()
    with followed.ports() as ports, pytest.raises(LogLost, match="restored to an earlier time"):
        ports.planner().follow()


@pytest.mark.statement("X3")
def test_a_source_that_was_restored_while_windows_were_open_is_noticed(
    followed: Followed, services: Services, tmp_path: Path
) -> None:
    """The windows that are left would bring other changes than those that were planned."""
    followed.source(TABLE, FILL.format(100))
    small = Budget(credits=2, range_rows=100, range_bytes=100_000)
    followed = replace(followed, composed=replace(followed.composed, budget=small))
    followed.go()
    image = take_image(followed, services, tmp_path / "image")
    for value in range(20):
        followed.source(f"UPDATE t SET v = {value}")
    followed.plan()
    followed.stopped(1)
    image.restore()
    followed.source("DELETE FROM t WHERE id > 50")
    for value in range(40):
        followed.source(f"UPDATE t SET v = 100 + {value}")
    assert followed.plan().verdict is Verdict.RESUMED
    with pytest.raises(LogLost, match="restored to an earlier time"):
        followed.drain()
    followed.plan(restart=True)
    followed.drain()
    followed.finish()
    assert followed.differs() == (0, 0)
