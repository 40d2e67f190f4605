"""The same slice by two at once, and one that is frozen just before its commit: the marker's key decides."""

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_backpressure.connectors.postgres.tasks.copy import run_slice
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Action, Folder, Point, Step
from airflow_provider_backpressure.core.snapshot.spark_messages import SliceResult
from airflow_provider_backpressure.exceptions import SinkUnavailable, SourceUnavailable
from tests.chaos.matrix import SEEDS
from tests.integration.attempts import begin, columns_of, difference, execute
from tests.support.attempt_process import in_process
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ROUNDS = 1000 if SEEDS in os.environ else 150
ROWS = 40
QUERY = "SELECT * FROM t WHERE id / 40 = {}"


@pytest.mark.statement("X1", "X2")
@pytest.mark.parametrize(
    "later",
    [
        pytest.param(0, id="the same attempt twice", marks=pytest.mark.long),
        pytest.param(1, id="an attempt and its successor"),
    ],
)
@pytest.mark.fault(12)
@pytest.mark.long
def test_of_two_submitters_one_commits_and_the_other_says_what_the_marker_says(database: Endpoint, later: int) -> None:
    """X1, X2: hundreds of rounds. A predecessor may also find its connections ended; nobody else fails."""
    execute(
        database,
        f"CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(0, {ROUNDS * ROWS - 1}) i",
    )
    begun = begin(database, database, table="raw.t", columns=columns_of(database, "t"))

    def submit(seq: int, attempt: int) -> SliceResult:
        spec = begun.spec(QUERY.format(seq), seq=seq, attempt=attempt)
        return run_slice(spec, spec.slices[0], begun.source, begun.sink)

    with ThreadPoolExecutor(2) as pool:
        for seq in range(ROUNDS):
            pair = [pool.submit(submit, seq, 1), pool.submit(submit, seq, 1 + later)]
            told = {said(future, may_end=later == 1 and future is pair[0]) for future in pair} - {None}
            marker = begun.markers()[f"{seq}.0"]
            assert told == {(ROWS, marker.bytes, marker.checksum)}
    assert len(begun.markers()) == ROUNDS
    assert difference(database, "TABLE t", database, "TABLE raw.t") == (ROUNDS * ROWS, ROUNDS * ROWS, 0)


def said(future: "Future[SliceResult]", *, may_end: bool) -> tuple[int, int, str] | None:
    """Return rows, bytes and checksum of a result, or nothing where the attempt was ended and may have been."""
    try:
        result = future.result(60)
    except (SinkUnavailable, SourceUnavailable):
        if not may_end:
            raise
        return None
    return result.rows, result.bytes, result.checksum


@pytest.mark.statement("X1", "X2")
@pytest.mark.fault(13)
def test_a_zombie_frozen_just_before_its_commit_is_refused(database: Endpoint, failpoints: Folder) -> None:
    """X1, X2: rows and marker stand in its open transaction; the retry ends that at once, and thawed it is too late."""
    execute(database, "CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1, 5000) i")
    begun = begin(database, database, table="raw.t", columns=columns_of(database, "t"))
    (failpoints.path / "points").write_text(str(Point(step=Step.BEFORE_SINK_COMMIT, action=Action.FREEZE)))
    spec = begun.spec("SELECT * FROM t")
    with in_process(run_slice, spec, begun.source, begun.sink) as zombie:
        stat = Path(f"/proc/{zombie.process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", timeout=60)
        (failpoints.path / "points").write_text("")
        started = time.monotonic()
        retry = begun.spec("SELECT * FROM t", attempt=2)
        assert run_slice(retry, retry.slices[0], begun.source, begun.sink).rows == 5000
        assert time.monotonic() - started < 5, "the retry waited for the zombie's lock"
        os.kill(zombie.process.pid, signal.SIGCONT)
        assert isinstance(zombie.outcome(), SinkUnavailable)
    assert difference(database, "TABLE t", database, "TABLE raw.t") == (5000, 5000, 0)
    assert begun.markers()["0.0"].attempt == 2
