"""The task that commits a range into a table of files is killed just before and just behind its commit."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.failpoints import Action, Step
from tests.chaos import oracle
from tests.chaos.lives import living
from tests.chaos.matrix import SEEDS, SIZES, Draw, Victim
from tests.chaos.stage import Stage
from tests.support import lakes
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DRAW = Draw(rows=SIZES[0], range_rows=SIZES[0] // 3, credits=2, number=2, release_first=True, pauses=(0.0, 0.0))

BEFORE, AFTER = Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT
SAMPLE = [("delta", BEFORE), ("iceberg", AFTER), ("parquet", BEFORE)]
CELLS = [(kind, step) for kind in lakes.KINDS for step in (BEFORE, AFTER)] if SEEDS in os.environ else SAMPLE


@pytest.mark.statement("X1", "X2")
@pytest.mark.parametrize(("kind", "step"), CELLS)
@pytest.mark.fault(5)
def test_a_worker_is_killed_at_its_commit(stage: Stage, kind: str, step: Step, folder: Path) -> None:
    """X1, X2: its range is there once, with its marker, and so is every other."""
    composed = replace(stage.hydration(DRAW), into=lakes.place(kind, folder))
    planned = stage.plan(composed)
    stage.arm(step, Action.WAIT, DRAW.number)
    with living(stage, composed, folder) as lives:
        held = lives.reached(step, DRAW.number)
        stage.kill(Victim.WORKER, held)
        stage.disarm()
        lives.to_the_end()
        commits = [one.slice_id for one in stage.journal() if one.step is BEFORE]
        assert commits.count(held.slice_id) == (2 if step is BEFORE else 1)
    assert lakes.rows(composed.into) == run(stage.source, f"SELECT * FROM t{DRAW.rows} ORDER BY id")
    oracle.check_lake(composed, planned)
