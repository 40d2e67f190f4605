"""A random writer during the whole hydration from MySQL and after it, and a lane that is killed again and again."""

import random
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.support.composed import Composed
from tests.support.following import follow
from tests.support.following import run as run_here
from tests.support.mysql_catching_up import FILL, TABLE, FollowedMySQL, MySQLWriter, Watch
from tests.support.postgres import run

pytestmark = pytest.mark.integration


@pytest.fixture
def composed(mysql_database: Endpoint, hydration: Composed) -> Composed:
    """``t`` into ``raw.t``."""
    return replace(
        hydration,
        source=mysql_database,
        kind="mysql",
        table="t",
        mode="upsert",
        consistency="catch_up",
        budget=Budget(credits=2, range_rows=5_000),
    )


def committed(composed: Composed) -> int:
    """Return how many slices the sink has."""
    there = run(composed.sink, "SELECT to_regclass('raw.backpressure_commit') IS NOT NULL")[0][0]
    return run(composed.sink, "SELECT count(*) FROM raw.backpressure_commit")[0][0] if there else 0


def far_enough(composed: Composed, process: "subprocess.Popen[bytes]", wanted: int | None) -> bool | None:
    """Whether a run is over, or has brought as many slices as are wanted."""
    over = process.poll() is not None
    return True if over or (wanted is not None and committed(composed) >= wanted) else None


def to_the_end(composed: Composed, folder: Path, kills: list[int]) -> None:
    """Run until it is over, killed each time that so many more slices are in, or that it ended before."""
    for more in [*kills, None]:
        wanted = None if more is None else committed(composed) + more
        process = follow(composed, folder)
        look = partial(far_enough, composed, process, wanted)
        found = PollPolicy(maximum=0.2).until(look, timeout=500, clock=SystemClock())
        process.kill()
        said = (folder / f"{composed.lane}.log").read_text()[-3000:]
        assert found, said
        assert process.wait() in ((0, -9) if more is not None else (0,)), said


def under_fire(composed: Composed, folder: Path, *, rows: int, seed: int, kills: Sequence[list[int]]) -> None:
    """Hydrate, go on as often as more ``kills`` are given, and compare each time while nobody writes.

    ``kills``: for each run after how many more slices its process is killed, again and again; none for a run in here.
    """
    followed = FollowedMySQL(composed=composed, runner=None)  # type: ignore[arg-type]
    followed.source(TABLE, FILL.format(rows), "ANALYZE TABLE t")
    with Watch(composed.source).watching() as watch:
        for point, after in enumerate(kills):
            with MySQLWriter(composed.source, seed=seed * 100 + point, keys=rows).writing() as writer:
                if after:
                    to_the_end(composed, folder, after)
                else:
                    run_here(composed)
            assert writer.changes
            print(f"seed {seed}, point {point}: {writer.changes} changes, {writer.changes / writer.seconds:.0f}/s")
            run_here(composed)
            assert followed.differing() == set(), f"seed {seed}, point {point}"
    print(f"Our longest transaction in the source took {watch.longest:.2f} s and had {watch.locked} rows locked.")
    assert not watch.locked
    assert watch.longest < 60
    # Reads of a few thousand rows are over between two looks; those of a large table are seen, or nobody looks.
    assert watch.longest or rows < 1_000_000


@pytest.mark.long
@pytest.mark.statement("T8")
@pytest.mark.fault(3, 19)
def test_a_killed_lane_and_a_writer_at_random(composed: Composed, tmp_path: Path) -> None:
    """T8: what is committed is never lost, and what was in flight is read or replayed again."""
    under_fire(composed, tmp_path, rows=20_000, seed=1, kills=[[2]])


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(20))
def test_two_million_rows_under_fire(composed: Composed, tmp_path: Path, seed: int) -> None:
    """The source at the committed frontier, at the end of hydration and at ten points of the steady state."""
    chance = random.Random(seed)
    budget = Budget(credits=3, range_rows=200_000)
    first = [chance.randint(1, 3) for _ in range(3)]
    later = [[1] if chance.random() < 0.3 else [] for _ in range(10)]
    under_fire(replace(composed, budget=budget), tmp_path, rows=2_000_000, seed=seed, kills=[first, *later])


def test_the_ledger_knows_every_window(composed: Composed, tmp_path: Path) -> None:
    """Windows go in one after another, and the frontier stands where the last of them ends."""
    followed = FollowedMySQL(composed=composed, runner=None)  # type: ignore[arg-type]
    followed.source(TABLE, FILL.format(1_000))
    run_here(composed)
    for number in range(30):
        followed.source(f"UPDATE t SET doc = REPEAT('x', 3000), v = {number} WHERE id = {number + 1}")
    run_here(replace(composed, budget=replace(composed.budget, range_bytes=20_000)))
    ledger = SqlLedger(composed.ledger_url)
    (hydration,) = ledger.hydrations()
    assert hydration.plan is not None
    windows = ledger.ranges(hydration.plan.plan_id)
    ledger.close()
    assert len(windows) > 3
    assert all(window.ordered for window in windows)
    ((pos,),) = run(composed.sink, "SELECT pos FROM raw.backpressure_frontier")
    assert pos == windows[-1].bounds.end.at  # type: ignore[union-attr]
    assert followed.differing() == set()
