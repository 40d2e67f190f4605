"""Fault 11: the clock of a lane's machine is an hour ahead, and then an hour behind."""

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.support.composed import Composed, difference
from tests.support.postgres import run
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.fault(11), pytest.mark.timeout(300)]

LIBRARY = "faketime/libfaketime.so.1"
ROWS, RANGE_ROWS = 20_000, 500


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that gives a process another clock: the system's, or the distribution's package of it, unpacked."""
    found = next(Path("/usr/lib").glob(f"*/{LIBRARY}"), None)
    if found is not None:
        return found
    folder = tmp_path_factory.mktemp("faketime")
    for command in (["apt-get", "download", "libfaketime"], ["sh", "-c", "dpkg-deb -x libfaketime_*.deb ."]):
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            pytest.skip("another clock takes the package libfaketime")
    return next(folder.glob(f"usr/lib/*/{LIBRARY}"))


def clock(library: Path, hours: int) -> dict[str, str]:
    """Return the environment of a process whose clocks are off, all of them; how fast time goes stays the same."""
    return {"LD_PRELOAD": str(library), "FAKETIME": f"{hours:+d}h"}


@pytest.mark.long
@pytest.mark.statement("X2", "T1")
def test_lanes_with_other_clocks(
    database: Endpoint, ledger_url: str, library: Path, tmp_path: Path, hydration: Composed
) -> None:
    """X2, T1: leases, rates and retries go by the ledger's clock; a life an hour ahead is followed by one behind."""
    told = "import time; print(time.time())"
    off = subprocess.run(
        [sys.executable, "-c", told],
        env={**os.environ, **clock(library, 1)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert 3000 < float(off.stdout) - time.time() < 4000, "its clock is another one"
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO t SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, {ROWS}) i",
        "ANALYZE t",
    )
    composed = replace(
        hydration,
        budget=Budget(credits=2, range_rows=RANGE_ROWS),
    )
    began = datetime.now(UTC)
    plan = composed.plan().plan
    with closing(SqlLedger(ledger_url)) as ledger:
        ahead = composed.process(tmp_path, **clock(library, 1))
        try:
            until(lambda: ledger.counts(plan.plan_id).committed >= 3, timeout=90)
        finally:
            ahead.kill()
            ahead.wait()
        done = {record.seq: record for record in ledger.ranges(plan.plan_id, states=[RangeState.COMMITTED])}
        assert 3 <= len(done) < ROWS // RANGE_ROWS, "it is killed in mid-run"
        behind = composed.process(tmp_path, **clock(library, -1))
        try:
            assert behind.wait(120) == 0, (tmp_path / "lane.log").read_text()[-3000:]
        finally:
            behind.kill()
        records = ledger.ranges(plan.plan_id)
        (hydration,) = ledger.hydrations()
        gate, rate = ledger.gate(hydration.id), ledger.rate(hydration.id)
    assert {record.state for record in records} == {RangeState.COMMITTED}
    assert {record.seq: record for record in records if record.seq in done} == done, "what was in is not read again"
    moments = [at for record in records for at in (record.admitted_at, record.committed_at) if at is not None]
    assert min(moments) > began - timedelta(minutes=5)
    assert max(moments) < datetime.now(UTC) + timedelta(minutes=5)
    assert (gate.in_flight, gate.waiting) == (0, 0)
    assert gate.commit_seconds is not None
    assert 0 <= gate.commit_seconds < 120
    assert rate is None or rate >= 0
    assert difference(database, "public.t", database, "raw.t") == (0, 0)
