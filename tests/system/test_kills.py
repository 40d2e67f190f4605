"""Airflow's own processes die while a hydration is at work."""

import os
import random
import time
from collections.abc import Callable

import pytest

from airflow_provider_backpressure.core.config import Budget
from tests.chaos.matrix import SEEDS
from tests.support.sampler import Sampler
from tests.system.installation import SMALL_ROWS, TABLES, Installation, until

pytestmark = [pytest.mark.system, pytest.mark.long]

LANE, CREDITS = "hydrate.hydrate_ranges", 2
RANGES = TABLES["killed"] // 100


@pytest.mark.statement("T1", "X2")
@pytest.mark.timeout(900)
@pytest.mark.fault(1, 2)
@pytest.mark.parametrize("seed", range(1, int(os.environ.get(SEEDS, 1)) + 1))
def test_scheduler_and_triggerer_are_killed(
    installation: Installation, seed: int, record_property: Callable[[str, object], None]
):
    """T1, X2: a lane at work and one that waits reach their end; never more in flight than credits, each once."""
    chance, parts = random.Random(f"airflow {seed}"), ("scheduler", "triggerer")
    moments = {part: chance.randint(1, 20) for part in (parts if seed % 4 in (0, 1) else reversed(parts))}
    opened, pause = seed % 2 == 1, chance.uniform(0, 1)
    record_property("killed", f"{moments}, gate opened {pause if opened else 'later'}")
    airflow, target = installation.airflow, "raw.killed"
    with installation.open("warehouse") as link:
        link.execute(f"DROP TABLE IF EXISTS {target}, raw.waiting")
    held = installation.paused("waiting", "small", "raw.waiting")
    waiting = installation.run("waiting", backpressure="restart")
    waiting.reaches(LANE, ["deferred"])
    run = installation.run("killed", backpressure="restart")
    run.reaches("hydrate.plan_snapshot", ["success"])
    sampler = Sampler(
        ledger_url=installation.url("airflow"),
        sink=installation.endpoint("warehouse"),
        target=f"/{target}",
        ui_url=installation.connect.ui_url,
        limit=CREDITS,
        range_bytes=Budget().range_bytes,
    )
    with sampler.looking():
        for part, ranges in moments.items():
            wanted = installation.committed(target) + ranges
            until(lambda wanted=wanted: installation.committed(target) >= wanted, 600)
            if part == "triggerer" and opened:
                # It dies while it has just seen, or is just telling, that the waiting lane may go on.
                installation.ledger.resume(held.id, who="ada")
                time.sleep(pause)
            airflow.kill(part)
            airflow.restart(part)
        assert installation.committed(target) < RANGES, "they were killed while it was at work"
        if not opened:
            installation.ledger.resume(held.id, who="ada")
        assert run.ends() == "success", run.states()
        assert waiting.ends() == "success", waiting.states()
    assert sampler.violations == []
    assert sampler.samples > 50
    assert sampler.most == CREDITS
    assert installation.rows("raw.waiting") == SMALL_ROWS
    assert installation.fingerprint("warehouse", target) == installation.fingerprint("shop", "killed")
    lives = run.tries(LANE)
    again = [record.seq for record in installation.ranges(target) if record.attempt > 1]
    assert len(again) <= CREDITS * (lives - 1), "a range is submitted once more only where its lane began again"
    with installation.open("warehouse") as link:
        (markers,) = link.execute(
            "SELECT count(*) FROM raw.backpressure_commit WHERE plan_id = %s", (installation.ranges(target)[0].plan_id,)
        ).fetchone() or (0,)
    assert markers == RANGES
