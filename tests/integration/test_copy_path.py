"""The copy path against a real PostgreSQL: equal rows, one commit, whatever is killed, frozen or run twice."""

import os
import socket
from contextlib import closing

import psycopg
import pytest

from airflow_provider_backpressure.connectors.postgres.attempt_sessions import end_connections
from airflow_provider_backpressure.connectors.postgres.connect import Session
from airflow_provider_backpressure.connectors.postgres.tasks import copy_streams
from airflow_provider_backpressure.connectors.postgres.tasks import slice_commit as postgres
from airflow_provider_backpressure.connectors.postgres.tasks.connections import SINK, connect_sink, end_attempts
from airflow_provider_backpressure.connectors.postgres.tasks.copy import run_slice
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import CopyIn, CopyOut
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.progress.bottleneck import Level, find_bottleneck, find_level
from airflow_provider_backpressure.core.snapshot.spark_messages import ChecksumSpec, Column, SliceResult
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, State, flow_of
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused, SinkUnavailable, SourceUnavailable
from airflow_provider_backpressure.spark.value_hash import checksum_slice
from tests import types_postgres
from tests.integration.attempts import (
    Begun,
    another,
    backends,
    begin,
    columns_of,
    difference,
    execute,
    in_background,
    opened,
    typed,
)
from tests.support.attempt_process import in_process
from tests.support.postgres import new_role
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ORDERS = """
CREATE TABLE orders AS
SELECT i AS id, md5(i::text) AS code, (i * 1.5)::numeric(12, 2) AS price, NULLIF(i % 7, 0) AS gap,
       timestamptz '2024-01-01 00:00+00' + i * interval '1 minute' AS at
FROM generate_series(1, 5000) i
"""


def orders(database: Endpoint, **options: object) -> Begun:
    """A source table of 5,000 rows and a target of the same columns under a plan."""
    execute(database, ORDERS)
    return begin(database, database, table="raw.orders", columns=columns_of(database, "orders"), **options)


def copy(begun: Begun, query: str = "SELECT * FROM orders", **changes: object):
    """Run one attempt at a range of one slice in this process."""
    spec = begun.spec(query, **changes)
    return run_slice(spec, spec.slices[0], begun.source, begun.sink)


@pytest.mark.statement("X1", "X4")
def test_rows_and_marker_arrive_together(database: Endpoint) -> None:
    """X1, X4: the target equals the source, and the marker says what the source's own checksum says."""
    begun = orders(database)
    result = copy(begun)
    assert difference(database, "SELECT * FROM orders", database, "SELECT * FROM raw.orders") == (5000, 5000, 0)
    marker = begun.markers()["0.0"]
    assert (marker.rows, marker.bytes, marker.checksum) == (5000, result.bytes, result.checksum)
    assert (marker.attempt, marker.epoch) == (1, begun.plan.epoch)
    assert result.peak_memory_bytes > 10_000_000
    for query in ("SELECT * FROM orders ORDER BY code", "SELECT * FROM raw.orders"):
        read_back = checksum_slice(ChecksumSpec(kind="postgres", conn_id="sink", query=query), begun.sink)
        assert (read_back.rows, read_back.bytes, read_back.checksum) == (5000, result.bytes, result.checksum)


@pytest.mark.statement("X1")
@pytest.mark.parametrize(("chosen", "ours"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
def test_a_marker_that_was_told_is_on_the_disk(database: Endpoint, chosen: str, ours: str) -> None:
    """X1: what a target's database chooses for speed does not let its commits be forgotten once the ledger has them."""
    execute(database, f'ALTER DATABASE "{database.database}" SET synchronous_commit = {chosen}')
    begun = orders(database)
    execute(
        database,
        "CREATE TABLE seen (said text)",
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO public.seen VALUES (current_setting(''synchronous_commit'')); RETURN NEW; END'",
        "CREATE TRIGGER look BEFORE INSERT ON raw.backpressure_commit FOR EACH ROW EXECUTE FUNCTION look()",
        "CREATE TRIGGER look BEFORE UPDATE ON raw.backpressure_plan FOR EACH ROW EXECUTE FUNCTION look()",
    )
    copy(begun)
    begun.superseded()
    assert execute(database, "SELECT said FROM seen") == [(ours,), (ours,), (ours,)]


@pytest.mark.statement("X3", "X4")
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.UPSERT])
@pytest.mark.fault(15)
def test_every_type_arrives_and_is_verified_across_databases(database: Endpoint, mode: Mode) -> None:
    """X3, X4: also arrays and composites of the user's own types, whose numbers differ between the databases."""
    with another(database) as sink:
        columns = typed(database, sink)
        begun = begin(database, sink, table="raw.every", columns=columns, mode=mode, key=("id",))
        result = copy(begun, "SELECT * FROM every")
        assert result.rows == types_postgres.row_count()
        assert difference(database, "TABLE every", sink, "TABLE raw.every")[2] == 0
        for endpoint, query in ((begun.source, "SELECT * FROM every"), (begun.sink, "SELECT * FROM raw.every")):
            there = checksum_slice(ChecksumSpec(kind="postgres", conn_id="any", query=query), endpoint)
            assert (there.rows, there.checksum, there.bytes) == (result.rows, result.checksum, result.bytes)


@pytest.mark.fault(15)
def test_a_row_of_64_megabytes_arrives(database: Endpoint) -> None:
    """A value is larger than every buffer: it goes through in pieces, and is what it was."""
    execute(database, "CREATE TABLE large AS SELECT 1 AS id, repeat(md5('x'), 2 * 1024 * 1024) AS body")
    begun = begin(database, database, table="raw.large", columns=columns_of(database, "large"))
    assert copy(begun, "SELECT * FROM large").rows == 1
    found = execute(database, "SELECT a.body = b.body, length(b.body) FROM large a, raw.large b")
    assert found == [(True, 64 * 1024 * 1024)]


def test_an_upsert_replaces_rows_by_key(database: Endpoint) -> None:
    """Rows with a known key are replaced, the others added."""
    begun = orders(database, mode=Mode.UPSERT, key=("id",))
    execute(database, "INSERT INTO raw.orders SELECT id, 'old', 0, 0, now() FROM orders WHERE id <= 100")
    assert copy(begun).rows == 5000
    assert difference(database, "SELECT * FROM orders", database, "SELECT * FROM raw.orders") == (5000, 5000, 0)


@pytest.mark.parametrize(
    ("type_", "old", "new"),
    [
        ("numeric", "1.0", "1.00"),
        ("bpchar", "'a'", "'a  '"),
        ("float8", "0", "'-0'"),
        ("citext", "'Foo'", "'FOO'"),
        ("amount", "1.0", "1.00"),
        ("numeric[]", "'{1.0}'", "'{1.00}'"),
        ("interval", "'1 day'", "'24:00'"),
        ("jsonb", "'1.0'", "'1.00'"),
        ("numrange", "'[1.0,2)'", "'[1.00,2)'"),
        ("pair", "ROW(1.0, 1)", "ROW(1.00, 1)"),
        ("text COLLATE folding", "'Foo'", "'FOO'"),
    ],
)
def test_an_upsert_replaces_a_key_by_an_equal_one(database: Endpoint, type_: str, old: str, new: str) -> None:
    """X3: equal keys may be different values; the source's arrives, also where there is nothing but the key."""
    execute(database, "CREATE EXTENSION citext")
    execute(database, "CREATE DOMAIN amount AS numeric")
    execute(database, "CREATE TYPE pair AS (a numeric, b int)")
    execute(database, "CREATE COLLATION folding (provider=icu, locale='und-u-ks-level2', deterministic=false)")
    execute(database, f"CREATE TABLE keys (id {type_})", f"INSERT INTO keys VALUES ({new})")
    columns = columns_of(database, "keys")
    for target in ("raw.keys", "raw.values"):
        both = (*columns, Column(name="v", type="integer")) if target == "raw.values" else columns
        execute(database, "CREATE SCHEMA IF NOT EXISTS raw")
        execute(database, f"CREATE TABLE {target} (id {type_} PRIMARY KEY{', v int' if both is not columns else ''})")
        begun = begin(database, database, table=target, columns=both, mode=Mode.UPSERT, key=("id",))
        execute(database, f"INSERT INTO {target} (id) VALUES ({old})")
        copy(begun, "SELECT id FROM keys" if both is columns else "SELECT id, 5 FROM keys")
        assert execute(database, f"SELECT id::text FROM {target}") == execute(database, "SELECT id::text FROM keys")


def test_several_rows_of_one_key_are_one_sentence(database: Endpoint) -> None:
    """Which of them the target keeps would be left to chance."""
    begun = orders(database, mode=Mode.UPSERT, key=("id",))
    twice = "SELECT * FROM orders UNION ALL SELECT * FROM orders WHERE id = 7"
    with pytest.raises(SinkRefused, match=r"^A range holds several rows of one key \(id\), and raw\.orders can hold"):
        copy(begun, twice)
    assert begun.markers() == {}


def test_an_empty_slice_leaves_a_marker(database: Endpoint) -> None:
    """No rows are a result like any other."""
    begun = orders(database)
    assert copy(begun, "SELECT * FROM orders WHERE id < 0").checksum == "pgcopy-xxh3:0000000000000000"
    assert begun.markers()["0.0"].rows == 0


@pytest.mark.statement("X1")
def test_a_committed_slice_is_not_read_again(database: Endpoint) -> None:
    """X1: a later attempt returns what the marker says; its query would fail if it ran."""
    begun = orders(database)
    first = copy(begun)
    again = copy(begun, "SELECT 1 / 0", attempt=2)
    assert (again.rows, again.bytes, again.checksum) == (first.rows, first.bytes, first.checksum)
    assert begun.markers()["0.0"].attempt == 1


@pytest.mark.statement("X1")
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.UPSERT])
@pytest.mark.fault(12)
def test_of_two_equal_attempts_one_commits(database: Endpoint, mode: Mode) -> None:
    """X1: a task that Spark runs twice at once leaves its rows once; both copies return the same."""
    begun = orders(database, mode=mode, key=("id",))
    for seq in range(5):
        execute(database, "TRUNCATE raw.orders")
        both = [in_background(begun, begun.spec("SELECT * FROM orders", seq=seq)) for _ in range(2)]
        results = [future.result(60) for future in both]
        assert len({(result.rows, result.checksum) for result in results}) == 1
        assert difference(database, "TABLE orders", database, "TABLE raw.orders") == (5000, 5000, 0)
    assert len(begun.markers()) == 5


@pytest.mark.statement("X1")
@pytest.mark.fault(13)
def test_a_frozen_attempt_is_ended_by_its_retry(database: Endpoint) -> None:
    """X1: it holds its rows uncommitted; the retry does not wait for it, and thawed it cannot commit."""
    begun = orders(database, mode=Mode.UPSERT, key=("id",))
    slow = "SELECT id, code, price, gap, at FROM orders WHERE id <> 4000 OR pg_sleep(600) IS NOT NULL"
    with in_process(run_slice, begun.spec(slow), begun.source, begun.sink) as zombie:
        pid = until(lambda: backends(database, "bp:", "wait_event = 'ClientRead' AND state = 'active'"))[0]
        zombie.freeze()
        assert copy(begun, attempt=2).rows == 5000
        until(lambda: pid not in backends(database, "bp:"))
        zombie.thaw()
        assert isinstance(zombie.outcome(), SinkUnavailable | SourceUnavailable)
    assert difference(database, "TABLE orders", database, "TABLE raw.orders") == (5000, 5000, 0)
    assert begun.markers()["0.0"].attempt == 2


@pytest.mark.statement("X1")
def test_a_login_that_acts_as_another_role_ends_its_own_attempts(database: Endpoint) -> None:
    """X1: set for the role, so that what is made belongs to a group. Connections are of who has logged in."""
    with new_role(database) as owner, new_role(database) as login:
        execute(database, f"GRANT {owner.user} TO {login.user}", f"ALTER ROLE {login.user} SET role = {owner.user}")
        with closing(Session(login, errors=SINK)) as session, connect_sink(login, name="bp:plan:0.0:2") as later:
            with connect_sink(login, name="bp:plan:0.0:1") as frozen:
                end_attempts(later, "bp:plan:0.0:2", below=2)
                with pytest.raises(psycopg.errors.AdminShutdown):
                    frozen.execute("SELECT 1")
            assert later.execute("SELECT current_user").fetchone() == (owner.user,)
            assert end_connections(session, "bp:plan:0.0:", poll=PollPolicy(), clock=SystemClock()) == 1


@pytest.mark.statement("X1")
@pytest.mark.fault(13)
def test_a_twin_frozen_before_its_commit_is_ended(database: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: with the same attempt number, marker written and not committed: after a short wait the slice goes on."""
    monkeypatch.setattr(postgres, "MARKER_WAIT", 1)
    begun = orders(database)
    with opened(database) as twin:
        twin.autocommit = False
        twin.execute(f"SET application_name = '{begun.spec('').tag}'")
        twin.execute(
            "INSERT INTO raw.backpressure_commit (plan_id, slice_id, target, epoch, attempt, bounds)"
            f" VALUES ('{begun.plan.plan_id}', '0.0', 'raw.orders', 1, 1, '{{}}')"
        )
        assert copy(begun).rows == 5000
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            twin.commit()
    assert begun.markers()["0.0"].rows == 5000


def test_a_locked_target_holds_the_job_back(database: Endpoint) -> None:
    """The job waits for the lock, reads nothing further, and goes on when it is gone."""
    begun = orders(database)
    with opened(database) as holder:
        with holder.transaction():
            holder.execute("LOCK TABLE raw.orders IN ACCESS EXCLUSIVE MODE")
            job = in_background(begun, begun.spec("SELECT * FROM orders"))
            until(lambda: backends(database, "bp:", "wait_event_type = 'Lock'"))
            assert not job.done()
        assert job.result(30).rows == 5000


@pytest.mark.statement("X1")
def test_a_plan_superseded_before_the_start_is_refused(database: Endpoint) -> None:
    """X1: the fence names a newer epoch: not a row is read."""
    begun = orders(database)
    newer = begun.superseded()
    with pytest.raises(PlanSuperseded, match="no longer holds"):
        copy(begun, "SELECT 1 / 0")
    assert copy(newer).rows == 5000


@pytest.mark.statement("X1")
@pytest.mark.fault(13)
def test_a_plan_superseded_in_mid_copy_is_refused(database: Endpoint) -> None:
    """X1: the fence is read again under a lock in the transaction that commits."""
    begun = orders(database)
    with opened(database) as holder:
        with holder.transaction():
            holder.execute("LOCK TABLE raw.orders IN ACCESS EXCLUSIVE MODE")
            job = in_background(begun, begun.spec("SELECT * FROM orders"))
            until(lambda: backends(database, "bp:", "wait_event_type = 'Lock'"))
            execute(database, "UPDATE raw.backpressure_plan SET epoch = epoch + 1")
        with pytest.raises(PlanSuperseded, match="no longer holds"):
            job.result(30)
    assert execute(database, "SELECT count(*) FROM raw.orders") == [(0,)]
    assert begun.markers() == {}


@pytest.mark.statement("X1")
def test_a_revoked_slice_is_refused(database: Endpoint) -> None:
    """X1: re-cut or skipped: commit and revoke exclude each other by the marker's key."""
    begun = orders(database)
    execute(
        database,
        "INSERT INTO raw.backpressure_commit (plan_id, slice_id, target, epoch, attempt, bounds, revoked)"
        f" VALUES ('{begun.plan.plan_id}', '0.0', 'raw.orders', 1, 0, '{{}}', true)",
    )
    with pytest.raises(PlanSuperseded, match="revoked"):
        copy(begun)
    assert execute(database, "SELECT count(*) FROM raw.orders") == [(0,)]


@pytest.mark.statement("X1")
@pytest.mark.parametrize(("side", "error"), [("bp-read:", SourceUnavailable), ("bp:", SinkUnavailable)])
def test_a_copy_that_breaks_off_leaves_nothing(database: Endpoint, side: str, error: type[Exception]) -> None:
    """X1: a backend of the source or the sink is killed in mid-copy: neither rows nor marker stay."""
    begun = orders(database)
    job = in_background(begun, begun.spec("SELECT a.* FROM orders a, orders b, orders c"))
    until(lambda: execute(database, "SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > 10000"))
    (pid,) = backends(database, side)
    execute(database, f"SELECT pg_terminate_backend({pid})")
    with pytest.raises(error):
        job.result(30)
    assert execute(database, "SELECT count(*) FROM raw.orders") == [(0,)]
    assert begun.markers() == {}
    assert copy(begun, attempt=2).rows == 5000


@pytest.mark.statement("X4")
@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_an_infinite_interval_is_no_value_of_older_servers(
    database: Endpoint, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """X4: they take its bytes for millions of years, without an error. One server stands for both releases."""
    made = (
        f"CREATE TABLE spans AS SELECT i, ARRAY[interval '1 day', i * interval '{value}'] FROM generate_series(1, 3) i"
    )
    execute(database, made, "CREATE TABLE copies AS TABLE spans WITH NO DATA")
    monkeypatch.setattr(copy_streams, "INFINITE_INTERVALS", 99_00_00)
    for version in (98_00_00, 99_00_00):
        with opened(database) as source, opened(database) as sink:
            (block,) = CopyOut(source, "COPY spans TO STDOUT (FORMAT binary)")
            target = CopyIn(sink, "COPY copies FROM STDIN (FORMAT binary)", source_version=version)
            if version == 99_00_00:
                with pytest.raises(SinkRefused, match="infinite interval"):
                    target.put(b"".join(block))
                sink.close()
                continue
            target.put(b"".join(block))
            target.end()


@pytest.mark.statement("X1")
@pytest.mark.parametrize(
    ("stream", "statement"), [(CopyIn, "COPY orders FROM STDIN"), (CopyOut, "COPY orders TO STDOUT")]
)
def test_a_server_gone_without_a_word_may_come_back(database: Endpoint, stream: type, statement: str) -> None:
    """X1: seen under duplicate submissions: without an SQLSTATE it looked like a refusal, which nobody tries again."""
    execute(database, ORDERS)
    with opened(database) as connection:
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)
        with pytest.raises(SinkUnavailable, match="was lost"), SINK.translate_errors(database):
            stream(connection, statement)


@pytest.mark.statement("T4", "F2", "F4", "F6")
@pytest.mark.fault(21)
def test_memory_stays_flat_while_the_sink_is_slow(database: Endpoint) -> None:
    """T4, F2: half a gigabyte through a sink that falls behind: the source waits, the worker does not grow.

    F4, F6: the reader's clock says that it was held back, the sink's that it was busy; each adds up to the whole.
    """
    wide = "SELECT i, repeat(md5(i::text), 320) AS body FROM generate_series(1, {}) i"
    execute(
        database,
        f"CREATE TABLE wide AS {wide.format(1)}",
        "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF NEW.i % 500 = 0 THEN PERFORM pg_sleep(0.05); END IF; RETURN NEW; END'",
    )
    begun = begin(database, database, table="raw.wide", columns=columns_of(database, "wide"))
    execute(database, "CREATE TRIGGER linger BEFORE INSERT ON raw.wide FOR EACH ROW EXECUTE FUNCTION linger()")
    with in_process(run_slice, begun.spec(wide.format(500), seq=1), begun.source, begun.sink) as child:
        small = child.outcome()
    with in_process(run_slice, begun.spec(wide.format(50_000), seq=2), begun.source, begun.sink) as child:
        until(lambda: backends(database, "bp-read:", "wait_event = 'ClientWrite'"))
        large = child.outcome(120)
    assert isinstance(small, SliceResult)
    assert isinstance(large, SliceResult)
    assert large.bytes > 500_000_000
    assert large.peak_memory_bytes - small.peak_memory_bytes < 8 * 1024 * 1024
    flow = flow_of(large.times)
    read, written = flow[Stage.READ], flow[Stage.SINK]
    assert abs(read.seconds - written.seconds) < 0.02 * written.seconds
    assert (find_level(read), find_level(written)) == (Level.HIGH, Level.OK)
    assert written.share(State.BUSY) > 0.8
    assert find_bottleneck({Stage.ADMIT: StageTime(backpressured=1.0), **flow}) is Stage.SINK
