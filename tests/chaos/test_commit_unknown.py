"""COMMIT was sent, the server has made it durable, and died before it could say so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Action, Step
from tests.chaos import oracle
from tests.chaos.lives import living
from tests.chaos.matrix import Case, Victim
from tests.chaos.stage import Stage
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STEPS = {Victim.SINK: Step.BEFORE_SINK_COMMIT, Victim.LEDGER: Step.BEFORE_LEDGER_COMMIT}
NOBODY = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'"
RESET = "ALTER SYSTEM RESET synchronous_standby_names"
RELOAD = "SELECT pg_reload_conf()"


def ledger_at(stage: Stage) -> Endpoint:
    """Return the ledger's database as an endpoint."""
    url = make_url(stage.ledger_url)
    return replace(stage.sink, port=url.port or 0, password=str(url.password))


@contextmanager
def silent(endpoint: Endpoint) -> Iterator[None]:
    """Let the server wait for a standby that there is not: a commit is durable, and its answer never comes."""
    run(endpoint, NOBODY, RELOAD)
    try:
        yield
    finally:
        run(endpoint, RESET, RELOAD)


def unanswered(endpoint: Endpoint) -> bool:
    """Whether a commit waits for the standby."""
    return bool(run(endpoint, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))


@pytest.mark.long
@pytest.mark.statement("X1", "X2")
@pytest.mark.parametrize("victim", STEPS, ids=str)
@pytest.mark.fault(6, 8)
def test_a_commit_without_an_answer_counts(
    stage: Stage, victim: Victim, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """X1, X2: the marker says that it is in, and nobody reads its range again."""
    case = Case(victim=victim, step=STEPS[victim], seed=0)
    endpoint = stage.sink if victim is Victim.SINK else ledger_at(stage)
    composed = stage.hydration(replace(case.draw, credits=1))
    planned = stage.plan(composed)
    stage.arm(case.step, Action.WAIT, case.draw.number)
    with living(stage, composed, folder) as lives:
        held = lives.reached(case.step, case.draw.number)
        with silent(endpoint):
            stage.disarm()
            lives.until(lambda: unanswered(endpoint))
            stage.kill(victim, held)
            stage.restart(victim)
        lives.to_the_end()
    oracle.check(stage, composed, planned, flying=set())
    assert held.slice_id not in oracle.read_again(stage.journal())
