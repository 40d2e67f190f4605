"""Fault 8: the ledger's server stands still: it neither answers nor breaks a connection."""

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.failpoints import Action, Step
from tests.chaos import oracle
from tests.chaos.lives import living
from tests.chaos.matrix import Case, Victim
from tests.chaos.stage import Stage

SECONDS = 3.0


@pytest.mark.integration
@pytest.mark.fault(8)
@pytest.mark.statement("X2", "T1")
@pytest.mark.timeout(300)
def test_while_the_ledger_stands_still_nothing_is_submitted(stage: Stage, folder: Path) -> None:
    """X2, T1: for every submission there is a permit in it; a range that runs may end, and is found."""
    case = Case(victim=Victim.LEDGER, step=Step.AFTER_LEDGER_COMMIT, seed=0)
    composed = stage.hydration(replace(case.draw, credits=2))
    planned = stage.plan(composed)
    stage.arm(case.step, Action.WAIT, case.draw.number)
    with living(stage, composed, folder) as lives:
        lives.reached(case.step, case.draw.number)
        stage.services.kill("postgres:ledger", signal.SIGSTOP)
        try:
            flying = oracle.in_flight(stage.journal())
            submitted = [one for one in stage.journal() if one.step is Step.BEFORE_SUBMIT]
            stage.disarm()
            time.sleep(SECONDS)
            assert [one for one in stage.journal() if one.step is Step.BEFORE_SUBMIT] == submitted
        finally:
            stage.services.kill("postgres:ledger", signal.SIGCONT)
        lives.to_the_end()
        oracle.check(stage, composed, planned, flying=flying)
