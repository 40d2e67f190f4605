"""Every party is killed at every step of a range, and the next life brings the hydration to the same end."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.failpoints import Action, Step
from tests.chaos import oracle
from tests.chaos.lives import Lives, living
from tests.chaos.matrix import Case, Victim, cases
from tests.chaos.stage import Pass, Stage
from tests.support.marks import mark_long

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SETTLING = "ending and settling it"
"""What a lane logs when it finds something of its earlier life."""


QUICK = ("lane-before_sink_commit-seed1", "lane-before_ledger_commit-seed1", "sink-in_copy-seed1")
"""What runs each time; Spark's driver is killed by tests/chaos/test_pairs.py too."""


def strike(case: Case, lives: Lives) -> set[str]:
    """Kill the victim where it is caught and bring it back; return what was in flight."""
    draw, stage = case.draw, lives.stage
    held = lives.reached(case.step, draw.number)
    time.sleep(draw.pauses[0])
    if case.victim is Victim.LANE:
        lives.kill()
    else:
        stage.kill(case.victim, held)
    flying = oracle.in_flight(stage.journal())
    if draw.release_first:
        stage.disarm()
        time.sleep(draw.pauses[1])
    if case.victim is Victim.LANE:
        lives.begin()
        # A task that is held goes on only when the new life has begun to settle it: a zombie that wakes up late.
        lives.until(lambda: draw.release_first or lives.process.exitcode is not None or SETTLING in lives.said())
    else:
        stage.restart(case.victim)
    stage.disarm()
    return flying


def play(stage: Stage, case: Case, folder: Path, record: Callable[[str, object], None]) -> None:
    """Run a case."""
    for name in ("victim", "step", "seed"):
        record(name, str(getattr(case, name)))
    composed = stage.hydration(case.draw)
    planned = stage.plan(composed)
    stage.arm(case.step, Action.WAIT, case.draw.number)
    with living(stage, composed, folder) as lives:
        flying = strike(case, lives)
        lives.to_the_end()
        oracle.check(stage, composed, planned, flying=flying)
    record("lives", lives.number)


@pytest.mark.statement("X1", "X2", "T1")
@pytest.mark.parametrize(
    "case",
    mark_long(cases(Victim.LANE, Victim.SINK, Victim.LEDGER, Victim.WORKER, Victim.DRIVER), quick=QUICK),
    ids=str,
)
@pytest.mark.fault(3, 4, 5, 6, 8)
def test_whoever_is_killed_every_row_arrives_once(
    stage: Stage, case: Case, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """X1, X2, T1: the target equals the source, each range stands once in ledger and sink, nothing is left over."""
    play(stage, case, folder, record_property)


@pytest.mark.long
@pytest.mark.statement("X1", "X2")
@pytest.mark.parametrize("case", list(cases(Victim.EXECUTOR)), ids=str)
@pytest.mark.fault(5)
def test_an_executor_of_a_cluster_is_killed(
    cluster: Stage, case: Case, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """X1, X2: the JVM of a standalone cluster's executor, so that Spark runs its tasks again elsewhere."""
    play(cluster, case, folder, record_property)


@pytest.mark.long
@pytest.mark.statement("X1", "X2")
@pytest.mark.fault(5)
@pytest.mark.long
def test_an_executor_is_killed_whose_task_has_a_twin(cluster: Stage, folder: Path) -> None:
    """X1, X2: Spark speculates: the same attempt runs on two machines at once, and the range is there once."""
    case = Case(victim=Victim.EXECUTOR, step=Step.BEFORE_SINK_COMMIT, seed=0)
    composed = cluster.hydration(case.draw)
    planned = cluster.plan(composed)
    cluster.arm(case.step, Action.WAIT, case.draw.number)

    def twins(held: Pass) -> set[int]:
        return {one.pid for one in oracle.copied(cluster.journal()) if one.tag == held.tag} - {held.pid}

    with living(cluster, composed, folder) as lives:
        held = lives.reached(case.step, case.draw.number)
        assert lives.until(lambda: twins(held))
        cluster.kill(case.victim, held)
        flying = oracle.in_flight(cluster.journal())
        cluster.disarm()
        lives.to_the_end()
        oracle.check(cluster, composed, planned, flying=flying)
        assert lives.number == 1, "its twin takes its place, and the lane hears nothing of it"
