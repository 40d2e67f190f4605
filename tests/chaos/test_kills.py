"""Every party is killed at every step of a range, and the next life brings the hydration to the same end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.failpoints import Action, Step
from tests.chaos import oracle
from tests.chaos.lane import UNARMED, Lives
from tests.chaos.matrix import Case, Victim, cases
from tests.chaos.stage import Pass, Stage

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LIVES = 5
"""Most lives that a lane may need: Airflow's retries."""
SECONDS = 90.0
SETTLING = "ending and settling it"
"""What a lane logs when it finds something of its earlier life."""


def until(found: Callable[[], Any], what: Callable[[], str]) -> Any:
    """Return what ``found`` gives as soon as it is true; fail after a deadline with what the lane said."""
    deadline = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)
    return value


def reached(stage: Stage, case: Case, lane: Any, lives: Lives) -> Pass:
    """Return the pass at which the victim is caught, once somebody is there."""

    def look() -> Pass | None:
        found = stage.passed(case.step, case.draw.number)
        assert found or lane.exitcode is None, f"the lane ended with {lane.exitcode}: {lives.said()}"
        return found

    found: Pass = until(look, lives.said)
    return found


def strike(stage: Stage, case: Case, lane: Any, lives: Lives) -> tuple[Any, set[str]]:
    """Kill the victim where it is caught and bring it back; return the lane's life and what was in flight."""
    draw = case.draw
    held = reached(stage, case, lane, lives)
    time.sleep(draw.pauses[0])
    if case.victim is Victim.LANE:
        lane.kill()
        lane.join()
    else:
        stage.kill(case.victim, held)
    flying = oracle.in_flight(stage.journal())
    if draw.release_first:
        stage.disarm()
        time.sleep(draw.pauses[1])
    if case.victim is Victim.LANE:
        lane = lives.begin()
        # A task that is held goes on only when the new life has begun to settle it: a zombie that wakes up late.
        until(lambda: draw.release_first or lane.exitcode is not None or SETTLING in lives.said(), lives.said)
    else:
        stage.restart(case.victim)
    stage.disarm()
    return lane, flying


def to_the_end(lane: Any, lives: Lives, most: int = LIVES) -> None:
    """Let the lane live again as often as it ends with an error."""
    while True:
        lane.join(SECONDS)
        assert lane.exitcode is not None, f"the lane hangs: {lives.said()}"
        assert lane.exitcode != UNARMED, "the lane was started without failpoints"
        if lane.exitcode == 0:
            return
        assert lives.number < most, lives.said()
        lane = lives.begin()


def play(stage: Stage, case: Case, folder: Path, record: Callable[[str, object], None]) -> None:
    """Run a case."""
    for name in ("victim", "step", "seed"):
        record(name, str(getattr(case, name)))
    draw = case.draw
    composed = stage.hydration(draw)
    planned = stage.plan(composed)
    lives = Lives(config=composed.write(folder), log=folder / "lane.log")
    stage.arm(case.step, Action.WAIT, draw.number)
    lane = lives.begin()
    try:
        lane, flying = strike(stage, case, lane, lives)
        to_the_end(lane, lives)
        oracle.check(stage, composed, planned, flying=flying)
    finally:
        clear(stage, lane)
    record("lives", lives.number)


def clear(stage: Stage, lane: Any) -> None:
    """Leave the stage to the next case, whatever became of this one."""
    stage.disarm()
    lane.kill()
    lane.join()


@pytest.mark.statement("X1", "X2", "T1")
@pytest.mark.parametrize(
    "case", list(cases(Victim.LANE, Victim.SINK, Victim.LEDGER, Victim.WORKER, Victim.DRIVER)), ids=str
)
@pytest.mark.fault(3, 4, 5, 6, 8)
def test_whoever_is_killed_every_row_arrives_once(
    stage: Stage, case: Case, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """X1, X2, T1: the target equals the source, each range stands once in ledger and sink, nothing is left over."""
    play(stage, case, folder, record_property)


@pytest.mark.statement("X1", "X2")
@pytest.mark.parametrize("case", list(cases(Victim.EXECUTOR)), ids=str)
@pytest.mark.fault(5)
def test_an_executor_of_a_cluster_is_killed(
    cluster: Stage, case: Case, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """X1, X2: the JVM of a standalone cluster's executor, so that Spark runs its tasks again elsewhere."""
    play(cluster, case, folder, record_property)


@pytest.mark.statement("X1", "X2")
@pytest.mark.fault(5)
def test_an_executor_is_killed_whose_task_has_a_twin(cluster: Stage, folder: Path) -> None:
    """X1, X2: Spark speculates: the same attempt runs on two machines at once, and the range is there once."""
    case = Case(victim=Victim.EXECUTOR, step=Step.BEFORE_SINK_COMMIT, seed=0)
    composed = cluster.hydration(case.draw)
    planned = cluster.plan(composed)
    lives = Lives(config=composed.write(folder), log=folder / "lane.log")
    cluster.arm(case.step, Action.WAIT, case.draw.number)
    lane = lives.begin()

    def twins(held: Pass) -> set[int]:
        return {one.pid for one in oracle.copied(cluster.journal()) if one.tag == held.tag} - {held.pid}

    try:
        held = reached(cluster, case, lane, lives)
        assert until(lambda: twins(held), lives.said)
        cluster.kill(case.victim, held)
        flying = oracle.in_flight(cluster.journal())
        cluster.disarm()
        to_the_end(lane, lives)
        oracle.check(cluster, composed, planned, flying=flying)
        assert lives.number == 1, "its twin takes its place, and the lane hears nothing of it"
    finally:
        clear(cluster, lane)
