"""The lane is killed while small ranges share a Spark job, as those of many tables do."""

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.failpoints import Action, Step
from tests.chaos import oracle
from tests.chaos.lives import living
from tests.chaos.matrix import SIZES, Draw
from tests.chaos.stage import Stage

RANGES, CREDITS = 18, 8
SHARED = "share one Spark job"


@pytest.mark.integration
@pytest.mark.fault(3)
@pytest.mark.statement("L3", "X1", "X2")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", [Step.IN_COPY], ids=str)
def test_a_lane_is_killed_while_ranges_share_a_job(stage: Stage, step: Step, folder: Path) -> None:
    """The next life ends the job, settles each of its ranges by its marker, and every row arrives once."""
    rows = min(SIZES)
    draw = Draw(rows=rows, range_rows=rows // RANGES, credits=CREDITS, number=6, release_first=False, pauses=(0, 0))
    composed = replace(stage.hydration(draw), shares=True)
    planned = stage.plan(composed)
    stage.arm(step, Action.WAIT, draw.number)
    with living(stage, composed, folder) as lives:
        lives.reached(step, draw.number)
        lives.until(lambda: SHARED in lives.said())
        lives.kill()
        flying = oracle.in_flight(stage.journal())
        stage.disarm()
        lives.begin()
        lives.to_the_end()
        oracle.check(stage, composed, planned, flying=flying)
    assert len(flying) > 1
