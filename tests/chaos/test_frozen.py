"""A Spark task is frozen just before its commit while its lane dies: the next life does not wait for it."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.failpoints import Action, Step
from tests.chaos import oracle
from tests.chaos.lives import living
from tests.chaos.matrix import Case, Victim
from tests.chaos.stage import Stage


@pytest.mark.integration
@pytest.mark.statement("X1", "X2")
@pytest.mark.timeout(300)
@pytest.mark.fault(13)
@pytest.mark.long
def test_a_frozen_task_does_not_hold_the_next_life(stage: Stage, folder: Path) -> None:
    """X1, X2: neither its lock nor its place in Spark; and what is left of it gets nothing in once it is thawed."""
    case = Case(victim=Victim.LANE, step=Step.BEFORE_SINK_COMMIT, seed=0)
    composed = stage.hydration(case.draw)
    planned = stage.plan(composed)
    stage.arm(case.step, Action.FREEZE, case.draw.number)
    with living(stage, composed, folder) as lives:
        held = lives.reached(case.step, case.draw.number)
        lives.kill()
        flying = oracle.in_flight(stage.journal())
        stage.disarm()
        lives.begin()
        lives.to_the_end()
        oracle.check(stage, composed, planned, flying=flying)
        with contextlib.suppress(ProcessLookupError):  # Spark has ended it
            os.kill(held.pid, signal.SIGCONT)
        oracle.check(stage, composed, planned, flying=flying)
