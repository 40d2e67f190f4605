"""Fault 17: retention takes records of a range while they are being read."""

from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.failpoints import Action, Step
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.exceptions import SourceRefused
from dev.services import Server
from tests.chaos.matrix import SIZES, Draw
from tests.chaos.stage import Stage
from tests.support.composed import Composed
from tests.support.kafka import Topic, endpoint_of
from tests.support.postgres import run
from tests.support.waiting import beside, until

pytestmark = [pytest.mark.integration, pytest.mark.fault(17), pytest.mark.timeout(300)]

ROWS, CUT = 60_000, 50_000
"""Of a kilobyte each: more than a client reads ahead."""
DRAW = Draw(rows=SIZES[0], range_rows=ROWS, credits=1, number=1, release_first=True, pauses=(0.0, 0.0))


@pytest.fixture
def topic(kafka: Server) -> Topic:
    """One partition, in one range."""
    made = Topic(servers=kafka.url).create()
    made.send(0, *(f"{number:01000}" for number in range(ROWS)))
    return made


@pytest.fixture
def composed(stage: Stage, kafka: Server, topic: Topic) -> Composed:
    return replace(
        stage.hydration(DRAW),
        source=endpoint_of(kafka),
        kind="kafka",
        consistency="offsets",
        table=topic.name,
        budget=Budget(credits=1, range_rows=ROWS),
    )


def cut_in_mid_range(stage: Stage, topic: Topic) -> None:
    """Take records that the task has not read yet when its first ones have gone to the sink."""
    until(lambda: stage.passed(Step.IN_COPY, 1), timeout=60)
    topic.cut(0, CUT)
    stage.disarm()


@pytest.mark.statement("X6")
@pytest.mark.long
def test_a_log_cut_off_in_mid_range_stops_by_name(stage: Stage, topic: Topic, composed: Composed) -> None:
    """X6: nothing of the range stays, as half of it would look like all."""
    plan = composed.plan().plan
    stage.arm(Step.IN_COPY, Action.WAIT, 1)
    sentence = rf"Offsets \[\d+, {CUT}\) of partition 0 of topic {topic.name} are gone"
    with composed.open() as ports, beside(lambda _: cut_in_mid_range(stage, topic)):
        with pytest.raises(SourceRefused, match=sentence):
            ports.hydrator().run()
        (record,) = ports.ledger.ranges(plan.plan_id)
        assert (record.state, record.attempt) == (RangeState.FAILED, 1)
        assert ports.ledger.gate(ports.hydration.id).in_flight == 0
        assert ports.sink.markers(plan.plan_id) == {}
    assert run(composed.sink, f"SELECT count(*) FROM {composed.target}") == [(0,)]


@pytest.mark.statement("X6")
def test_a_loss_in_mid_range_that_is_accepted(stage: Stage, topic: Topic, composed: Composed) -> None:
    """X6: it goes on behind what is gone and says so; what was read before and stands behind is there once."""
    composed = replace(composed, reading={"accept_loss": True})
    composed.plan()
    stage.arm(Step.IN_COPY, Action.WAIT, 1)
    with composed.open() as ports, beside(lambda _: cut_in_mid_range(stage, topic)):
        assert ports.hydrator().run().outcome is Outcome.DONE
    found = run(composed.sink, f"SELECT \"offset\", value#>>'{{}}' FROM {composed.target} ORDER BY 1")
    read = sum(offset < CUT for offset, _ in found)
    assert 0 < read < CUT
    said = stage.services.status()[stage.connect].log.read_text()
    assert f"Offsets [{read}, {CUT}) of partition 0 of topic {topic.name} are gone" in said
    assert found == [(number, f"{number:01000}") for number in (*range(read), *range(CUT, ROWS))]
