"""The gate over real parts: bounded flight at every instant, also across kills; the commit opens it, nothing else."""

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.ledger.repository import SqlLedger
from dev.services import Server, Services
from tests.support.composed import Composed, difference
from tests.support.postgres import connected
from tests.support.sampler import Sampler
from tests.support.waiting import until

pytestmark = pytest.mark.integration

SECONDS = 600.0
"""In which what is waited for comes."""


def fill(endpoint: Endpoint, rows: int) -> None:
    """Make the source table ``public.t`` of so many rows of about 100 bytes."""
    with connected(endpoint) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)")
        connection.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, %s) i", (rows,))
        connection.execute("ANALYZE t")


@pytest.fixture
def composed(hydration: Composed) -> Composed:
    """A hydration within one database: ``public.t`` into ``raw.t``, the ledger in a database of its own."""
    return hydration


def sampler_of(composed: Composed) -> Sampler:
    """Return a sampler of the composed hydration."""
    return Sampler(
        ledger_url=composed.ledger_url,
        sink=composed.sink,
        target=composed.target,
        ui_url=composed.ui_url,
        limit=composed.budget.credits,
        range_bytes=composed.budget.range_bytes,
    )


@pytest.mark.long
@pytest.mark.statement("T1", "X2")
@pytest.mark.timeout(1800)
def test_no_sample_of_a_thousand_ranges_shows_more_than_the_credits(
    composed: Composed, connect: Server, services: Services, tmp_path: Path
):
    """T1: A - C <= W and bytes <= W*B at every sample, also when lane and Spark driver are killed; all arrives."""
    fill(composed.source, 10_000)
    # Bytes are the bound that cuts the ranges, so a single one that is too large is seen.
    composed = Composed(**{**composed.__dict__, "budget": Budget(credits=3, range_bytes=1_000)})
    planned = composed.plan()
    assert planned.ranges >= 1000
    ledger = SqlLedger(composed.ledger_url)

    def committed(least: int) -> Callable[[], bool]:
        return lambda: ledger.counts(planned.plan.plan_id).committed >= least or lane.poll() is not None

    with sampler_of(composed).looking() as sampler:
        for least in (150, 350):
            lane = composed.process(tmp_path)
            until(committed(least), SECONDS)
            lane.kill()
            lane.wait()
        lane = composed.process(tmp_path)
        until(committed(550), SECONDS)
        services.kill("connect")
        lane.wait(timeout=300)
        services.restart("connect")
        lane = composed.process(tmp_path)
        assert lane.wait(timeout=900) == 0, (tmp_path / "lane.log").read_text()[-3000:]
    assert sampler.violations == []
    assert sampler.samples > 50
    assert sampler.most == 3
    assert ledger.counts(planned.plan.plan_id).open == 0
    assert difference(composed.source, "public.t", composed.sink, "raw.t") == (0, 0)
    ledger.close()


@pytest.mark.statement("T2")
def test_with_the_target_locked_exactly_w_jobs_are_submitted(composed: Composed, tmp_path: Path):
    """T2: no job beyond W while nothing commits; when the lock goes, the next one follows at once."""
    fill(composed.source, 1000)
    composed = Composed(**{**composed.__dict__, "budget": Budget(credits=2, range_rows=100)})
    plan_id = composed.plan().plan.plan_id
    ledger = SqlLedger(composed.ledger_url)

    def attempts() -> int:
        return sum(each.attempt for each in ledger.ranges(plan_id))

    # Inside a transaction PostgreSQL shows the activity of its first look again and again: another connection looks.
    with connected(composed.sink) as connection, connected(composed.sink) as watching:

        def waiting() -> int:
            found = watching.execute(
                "SELECT count(DISTINCT a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                " WHERE NOT l.granted AND a.application_name LIKE 'bp:%'"
            ).fetchone()
            return int(found[0])

        with connection.transaction():
            connection.execute("LOCK TABLE raw.t IN ACCESS EXCLUSIVE MODE")
            lane = composed.process(tmp_path)
            until(lambda: waiting() == 2, SECONDS)
            for _ in range(30):
                assert (attempts(), waiting()) == (2, 2)
                time.sleep(0.1)
        released = time.monotonic()
        until(lambda: attempts() > 2, SECONDS)
        assert time.monotonic() - released < 5
    assert lane.wait(timeout=120) == 0, (tmp_path / "lane.log").read_text()[-3000:]
    assert difference(composed.source, "public.t", composed.sink, "raw.t") == (0, 0)
    ledger.close()


@pytest.mark.statement("M2", "M3", "M4", "M5")
@pytest.mark.long
def test_progress_is_what_the_sink_has_committed_and_never_goes_back(composed: Composed, tmp_path: Path):
    """M2-M5: exact total, monotone progress equal to the target's own rows at most, in the end equal to the total.

    It is at most ten seconds behind each commit, by the clock of the server that has ledger and target.
    """
    fill(composed.source, 20_000)
    composed = Composed(**{**composed.__dict__, "budget": Budget(credits=2, range_rows=500)})
    planned = composed.plan()
    hydration = planned.hydration
    ledger = SqlLedger(composed.ledger_url)
    first = total_progress(ledger.statistics(hydration.id))
    assert (first.total, first.total_exact, first.committed, first.percent) == (20_000, True, 0, 0.0)
    lane, seen = composed.process(tmp_path), [first]
    with connected(composed.sink) as connection:
        while lane.poll() is None:
            now = total_progress(ledger.statistics(hydration.id))
            there = connection.execute("SELECT count(*) FROM raw.t").fetchone()[0]
            assert now.committed <= there, "progress ran ahead of the sink"
            assert now.read - now.committed <= 2 * 500
            seen.append(now)
            time.sleep(0.05)
    assert lane.returncode == 0, (tmp_path / "lane.log").read_text()[-3000:]
    counts = [each.committed for each in seen]
    assert counts == sorted(counts)
    assert len(set(counts)) > 5
    last = total_progress(ledger.statistics(hydration.id))
    assert (last.committed, last.read, last.percent) == (20_000, 20_000, 100.0)
    with connected(composed.sink) as connection:
        commits = dict(connection.execute("SELECT slice_id, committed_at FROM raw.backpressure_commit").fetchall())
    records = ledger.ranges(planned.plan.plan_id)
    assert len(records) == len(commits) == 40
    assert all(
        0 <= (each.committed_at - datetime.fromisoformat(commits[each.slice_id])).total_seconds() < 10
        for each in records
    )
    ledger.close()
