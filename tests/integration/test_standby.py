"""A standby of PostgreSQL as the source, while its primary goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import SnapshotLost, SourceRefused
from tests.support.composed import Composed, difference
from tests.support.postgres import run
from tests.support.standby import wait_for_replay
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("V5")]


@pytest.fixture
def composed(pair: tuple[Endpoint, Endpoint], hydration: Composed) -> Iterator[Composed]:
    """``public.t`` of 20,000 rows on a standby into ``raw.t`` elsewhere, in 10 ranges."""
    primary, standby = pair
    run(
        primary,
        "DROP TABLE IF EXISTS t",
        "CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1, 20000) i",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "ANALYZE t",
    )
    wait_for_replay(primary, standby)
    yield replace(hydration, source=standby, budget=Budget(credits=2, range_rows=2_000))
    run(primary, "DROP TABLE t")


def test_a_standby_is_read_as_it_stands(composed: Composed, pair: tuple[Endpoint, Endpoint]) -> None:
    """V5: static; read again and compared on both sides."""
    planned = composed.plan()
    assert planned.ranges == 10
    with composed.open() as ports:
        ports.hydrator().run()
        report = ports.verifier().verify(ports.ledger.ranges(planned.plan.plan_id), Verify.FULL)
    assert report.equal, report.mismatches
    primary, _ = pair
    assert difference(primary, "t", composed.sink, "raw.t") == (0, 0)


def test_a_snapshot_of_a_standby_is_one_moment(composed: Composed, pair: tuple[Endpoint, Endpoint]) -> None:
    """V5: snapshot; what the primary commits in the middle, and the standby has replayed, is in no range."""
    primary, standby = pair
    composed = replace(composed, consistency="snapshot")
    composed.plan()
    run(
        composed.sink,
        "CREATE TABLE public.before AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1, 20000) i",
    )
    changed = []
    with composed.open() as ports:
        lane = ports.hydrator()

        def change() -> None:
            if not changed:
                changed.append(
                    run(primary, "UPDATE t SET code = 'later'", "DELETE FROM t WHERE id % 2 = 0 RETURNING 1")
                )
                wait_for_replay(primary, standby)

        lane.on_commit = change
        lane.run()
    assert len(changed[0]) == 10_000
    assert run(standby, "SELECT count(*), min(code) FROM t") == [(10_000, "later")]
    assert difference(composed.sink, "public.before", composed.sink, "raw.t") == (0, 0)


def test_a_snapshot_that_replay_cancels_is_lost(composed: Composed, pair: tuple[Endpoint, Endpoint]) -> None:
    """Without feedback the primary removes rows that the snapshot sees: the run stops, and the next begins again."""
    primary, standby = pair
    composed = replace(composed, consistency="snapshot")
    composed.plan()
    with configured(standby, hot_standby_feedback="off", max_standby_streaming_delay="0"), composed.open() as ports:
        lane = ports.hydrator()

        def change() -> None:
            run(primary, "UPDATE t SET code = 'later'", "VACUUM t")
            wait_for_replay(primary, standby)

        lane.on_commit = change
        with pytest.raises(SnapshotLost):
            lane.run()
    with composed.open() as ports:
        ports.close_plan()
        ports.hydrator().run()
    assert difference(primary, "t", composed.sink, "raw.t") == (0, 0)


@contextmanager
def configured(standby: Endpoint, **settings: str) -> Iterator[None]:
    """Let a standby have other settings for a while."""
    try:
        for name, value in settings.items():
            run(standby, f"ALTER SYSTEM SET {name} = '{value}'")
        run(standby, "SELECT pg_reload_conf()")
        until(lambda: all(run(standby, f"SHOW {name}") == [(value,)] for name, value in settings.items()), timeout=10)
        yield
    finally:
        run(standby, "ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


def test_the_log_of_a_standby_is_refused(composed: Composed) -> None:
    """V5: in one sentence that names the way out."""
    with pytest.raises(SourceRefused) as refused:
        replace(composed, consistency="catch_up", mode="upsert").plan()
    assert str(refused.value) == (
        "The changes of public.t cannot be replayed: the server is a standby: name the primary."
    )
