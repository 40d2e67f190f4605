"""A topic goes into a table of files in its order; its worker or the driver dies around a commit of the table's log."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.failpoints import Action, Step
from airflow_provider_backpressure.core.snapshot.ranges import seq_of
from dev.services import Server
from tests.chaos import oracle
from tests.chaos.lives import living
from tests.chaos.matrix import SEEDS, SIZES, Draw, Victim
from tests.chaos.stage import Stage
from tests.support import kafka as on_kafka
from tests.support import lakes

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

BEFORE, AFTER = Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT
DRAW = Draw(rows=SIZES[0], range_rows=50, credits=2, number=2, release_first=True, pauses=(0.0, 0.0))
"""Of the second range: there are keys of the first one, which it changes and takes away, and others come after it."""
RECORDS = 100
"""Of each of two partitions."""
SAMPLE = [
    ("delta", Victim.WORKER, BEFORE),
    ("iceberg", Victim.WORKER, AFTER),
    pytest.param("iceberg", Victim.DRIVER, BEFORE, marks=pytest.mark.long),
]
VICTIMS = (Victim.WORKER, Victim.DRIVER)
EVERY = [(kind, victim, step) for kind in ("delta", "iceberg") for victim in VICTIMS for step in (BEFORE, AFTER)]


def said(topic: on_kafka.Topic) -> dict[bytes, str]:
    """Fill the topic; return what it says of each key in the end: every fourth record is a tombstone."""
    left: dict[bytes, str] = {}
    for partition in (0, 1):
        with topic.producing() as producer:
            for number in range(RECORDS):
                key, gone = f"{partition}-{number * 7 % 15}".encode(), number % 4 == 3
                producer.produce(topic.name, None if gone else f"[{number}]".encode(), key, partition)
                left.pop(key, None)
                if not gone:
                    left[key] = f"[{number}]"
    return left


@pytest.mark.statement("X1", "X2", "X6")
@pytest.mark.parametrize(("kind", "victim", "step"), EVERY if SEEDS in os.environ else SAMPLE)
@pytest.mark.fault(4, 5)
def test_an_ordered_range_arrives_once_and_in_its_turn(
    stage: Stage, kafka: Server, kind: str, victim: Victim, step: Step, folder: Path
) -> None:
    """X1, X2, X6: the table is what the log says of each key; no range was before its turn, none is there twice."""
    topic = on_kafka.Topic(servers=kafka.url).create(2)
    expected = said(topic)
    composed = replace(
        stage.hydration(DRAW),
        source=on_kafka.endpoint_of(kafka),
        table=topic.name,
        kind="kafka",
        consistency="offsets",
        mode="upsert",
        budget=Budget(credits=DRAW.credits, range_rows=DRAW.range_rows),
        into=lakes.place(kind, folder),
    )
    planned = stage.plan(composed)
    assert planned.ranges >= 4
    stage.arm(step, Action.WAIT, DRAW.number)
    with living(stage, composed, folder) as lives:
        held = lives.reached(step, DRAW.number)
        stage.kill(victim, held)
        stage.disarm()
        stage.restart(victim)
        lives.to_the_end()
        tried = [one.slice_id for one in stage.journal() if one.step is BEFORE]
    assert tried.count(held.slice_id) == (2 if step is BEFORE else 1)
    assert len(tried) == planned.ranges + (step is BEFORE)
    assert [seq_of(each) for each in tried] == sorted(map(seq_of, tried))
    found = lakes.table(**composed.into).to_pylist()
    assert {row["key"]: row["value"] for row in found} == expected
    assert len(found) == len(expected)
    oracle.check_lake(composed, planned)
