"""The matrix of who is killed when, played in the simulation: hundreds of seeds in the time of one on real servers."""

import os

import pytest

from airflow_provider_backpressure.core.failpoints import Step
from tests.chaos.matrix import CELLS, SEEDS, Victim
from tests.support.schedules import played
from tests.support.scripts import Script
from tests.support.simulation import stage

PLAYS = int(os.environ.get("SIMULATED_SEEDS", "1000" if SEEDS in os.environ else "10"))
"""Seeds for each cell."""


@pytest.mark.statement("X1", "X2", "T1")
@pytest.mark.parametrize(("victim", "step"), [(victim, step) for victim in CELLS for step in CELLS[victim]])
@pytest.mark.fault(3, 4, 5, 6, 8)
def test_whoever_is_killed_in_the_simulation(victim: Victim, step: Step, record_property) -> None:
    """X1, X2, T1: every range arrives once, no credit is left over, and only what was in flight is read again."""
    with stage():
        for seed in range(PLAYS):
            schedule = played(Script.killing(victim, step, seed))
            assert schedule.happened["strike"] == 1
    record_property("cell", f"{victim} {step}")
    record_property("seeds", PLAYS)
