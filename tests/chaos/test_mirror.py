"""A mirror is killed while a range is compared with rows that differ, and the next life ends it."""

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import Refresh
from airflow_provider_backpressure.core.failpoints import Action, Step
from tests.chaos import oracle
from tests.chaos.lives import living
from tests.chaos.matrix import CELLS, Case, Victim
from tests.chaos.stage import Stage
from tests.chaos.test_kills import strike
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

QUICK = Case(victim=Victim.LANE, step=Step.BEFORE_SINK_COMMIT, seed=0)
CASES = [
    QUICK,
    *(
        case
        for victim in (Victim.LANE, Victim.WORKER, Victim.SINK)
        for step in CELLS[victim]
        if (case := Case(victim=victim, step=step, seed=0)) != QUICK
    ),
]


@pytest.mark.statement("L2")
@pytest.mark.parametrize("case", mark_long(CASES, quick=[QUICK]), ids=str)
def test_a_mirror_that_is_killed_ends_equal(stage: Stage, case: Case, folder: Path) -> None:
    """L2: before, the target holds changed, surplus and missing rows; afterwards it is the source, each range once."""
    composed = replace(stage.hydration(case.draw), mode="mirror")
    rows = case.draw.rows
    run(
        stage.sink,
        "CREATE SCHEMA IF NOT EXISTS raw",
        f"CREATE TABLE {composed.target} (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO {composed.target} SELECT i, CASE WHEN i % 5 = 0 THEN 'other' ELSE repeat(md5(i::text), 3) END "
        f"FROM generate_series(-50, {rows + 50}) i WHERE i % 7 <> 0",
    )
    planned = stage.plan(composed)
    stage.arm(case.step, Action.WAIT, case.draw.number)
    with living(stage, composed, folder) as lives:
        flying = strike(case, lives)
        lives.to_the_end()
        oracle.check(stage, composed, planned, flying=flying)


@pytest.mark.statement("L2")
@pytest.mark.parametrize("case", mark_long(CASES, quick=[QUICK]), ids=str)
def test_a_later_run_that_is_killed_ends_equal(stage: Stage, case: Case, folder: Path) -> None:
    """L2: in a run that stages only rows that differ; the target holds changed, surplus and missing rows again."""
    composed = replace(stage.hydration(case.draw), mode="mirror")
    stage.plan(composed)
    with living(stage, composed, folder) as lives:
        lives.to_the_end()
    composed.finish()
    table = composed.target
    run(
        stage.sink,
        f"UPDATE {table} SET body = 'other' WHERE id % 5 = 0",
        f"DELETE FROM {table} WHERE id % 7 = 0",
        f"INSERT INTO {table} SELECT i, 'surplus' FROM generate_series(-50, 0) i ON CONFLICT DO NOTHING",
        # As if each range of the source had changed since.
        "UPDATE raw.backpressure_commit SET checksum = left(checksum, -16) || repeat('0', 16) "
        f"WHERE target = '{table}'",
    )
    planned = stage.plan(composed, run="second", refresh=Refresh.EACH_RUN)
    stage.arm(case.step, Action.WAIT, case.draw.number)
    with living(stage, composed, folder) as lives:
        flying = strike(case, lives)
        lives.to_the_end()
        oracle.check(stage, composed, planned, flying=flying)
