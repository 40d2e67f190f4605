"""Fault 10: the disk that a target lives on is full, and later it is not."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import BackpressureError
from dev.services import Server
from tests.chaos.drained import Session, planned
from tests.support import lakes
from tests.support.composed import Composed, difference
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.fault(10), pytest.mark.timeout(300)]

ROWS, RANGE_ROWS = 20_000, 2_000
TIGHT = "900k"
"""Room for some of the ranges and not for all of them."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A file system in memory."""

    path: Path

    def resize(self, size: str) -> None:
        """Give it another size; what is there stays."""
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk that any user can reach; skipped where this one may not mount."""
    path = Path(tempfile.mkdtemp(prefix="disk-", dir="/var/tmp"))
    path.chmod(0o755)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], capture_output=True)
    if mounted.returncode:
        path.rmdir()
        pytest.skip("a disk that is full takes the right to mount one")
    yield Disk(path=path)
    subprocess.run(["umount", "-l", str(path)], check=True)
    with contextlib.suppress(OSError):
        shutil.rmtree(path)


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Composed:
    """``public.t``, whose rows do not shrink in a file."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO t SELECT i, md5(i::text) || md5((-i)::text) || md5('x' || i) FROM generate_series(1, {ROWS}) i",
        "ANALYZE t",
    )
    return replace(
        hydration,
        budget=Budget(credits=2, range_rows=RANGE_ROWS),
    )


@pytest.mark.statement("X1", "X2")
@pytest.mark.parametrize("kind", lakes.KINDS)
@pytest.mark.long
def test_a_table_of_files_on_a_full_disk(
    composed: Composed, disk: Disk, session: Session, kind: str, tmp_path: Path
) -> None:
    """X1, X2: it fails clean: every reader sees whole ranges and no torn file; with room again the rest comes."""
    place = lakes.place(kind, disk.path)
    if kind == "iceberg":  # its catalog's database is not what is tried
        place["catalog"]["uri"] = f"sqlite:///{tmp_path}/lake.db"
    filled = replace(composed, into=place)
    runner = session(filled)
    drained = planned(filled, runner)
    disk.resize(TIGHT)
    with filled.open(runner) as ports, pytest.raises(BackpressureError):
        ports.hydrator().run()
    with filled.open(runner) as ports:
        records = ports.ledger.ranges(drained.plan_id)
        markers = ports.sink.markers(drained.plan_id)
    committed = sum(record.rows or 0 for record in records if record.state is RangeState.COMMITTED)
    assert 0 < committed < ROWS
    assert RangeState.ADMITTED not in {record.state for record in records}, "a credit is out"
    seen = [row[0] for row in lakes.rows(place)]
    assert len(seen) == len(set(seen)) == sum(marker.rows for marker in markers.values()) >= committed
    disk.resize("64m")
    drained.run()
    assert lakes.rows(place) == run(composed.source, "SELECT * FROM t ORDER BY id")


@pytest.mark.statement("X1", "X2")
@pytest.mark.long
def test_a_table_of_postgresql_on_a_full_disk(
    composed: Composed, disk: Disk, postgres: Server, session: Session
) -> None:
    """X1, X2: the server refuses, nothing of the range stays, and with room again the rest comes."""
    owner = psutil.Process(postgres.pid).uids().real
    os.chown(disk.path, owner, -1)
    name = f"tight_{composed.sink.database}"
    admin = replace(composed.sink, database="postgres")
    run(admin, f"CREATE TABLESPACE {name} LOCATION '{disk.path}'")
    try:
        run(
            composed.sink,
            "CREATE SCHEMA raw",
            f"CREATE TABLE raw.t (id bigint NOT NULL, body text NOT NULL) TABLESPACE {name}",
        )
        runner = session(composed)
        drained = planned(composed, runner)
        disk.resize("1m")
        with composed.open(runner) as ports, pytest.raises(BackpressureError):
            ports.hydrator().run()
        with composed.open(runner) as ports:
            records = ports.ledger.ranges(drained.plan_id)
        committed = [record for record in records if record.state is RangeState.COMMITTED]
        assert 0 < len(committed) < drained.ranges
        assert RangeState.ADMITTED not in {record.state for record in records}, "a credit is out"
        disk.resize("64m")
        drained.run()
        drained.check()
        assert difference(composed.source, "public.t", composed.sink, "raw.t") == (0, 0)
    finally:
        run(composed.sink, "DROP TABLE IF EXISTS raw.t")
        run(admin, f"DROP TABLESPACE {name}")
