"""Partitions of a topic are upserted side by side; somebody dies while ranges of two of them are in flight."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.failpoints import Action, Step
from airflow_provider_backpressure.core.snapshot.ranges import seq_of
from dev.services import Server
from tests.chaos import oracle
from tests.chaos.lives import Lives, living
from tests.chaos.matrix import SEEDS, SIZES, Draw, Victim
from tests.chaos.stage import Pass, Stage
from tests.support import kafka as on_kafka
from tests.support import lakes
from tests.support.composed import Composed
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

BEFORE, AFTER = Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT
DRAW = Draw(rows=SIZES[0], range_rows=25, credits=2, number=2, release_first=True, pauses=(0.0, 0.0))
RECORDS, RANGES = 100, 4
"""Of each of two partitions."""
VICTIMS = (Victim.WORKER, Victim.DRIVER, Victim.LANE)
EVERY = [(kind, victim, step) for kind in ("postgres", "delta", "iceberg") for victim in VICTIMS for step in (BEFORE,)]
QUICK = [("postgres", Victim.LANE, BEFORE), ("iceberg", Victim.WORKER, BEFORE)]
SAMPLE = [each if each in QUICK else pytest.param(*each, marks=pytest.mark.long) for each in EVERY]
SETTLING = "ending and settling it"


def fill(topic: on_kafka.Topic) -> Mapping[bytes, str]:
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


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a hydration writes into."""

    composed: Composed

    def rows(self) -> list[tuple[bytes, str]]:
        """Return key and value of every row."""
        if self.composed.into:
            found = lakes.table(**self.composed.into).to_pylist()
            return sorted((row["key"], row["value"]) for row in found)
        return sorted(run(self.composed.sink, f"SELECT key, value::text FROM {self.composed.target}"))  # type: ignore[arg-type]


def kill(stage: Stage, lives: Lives, victim: Victim, held: Pass) -> None:
    """Kill a victim and bring it back; what was held goes on then, if it is still there."""
    if victim is Victim.LANE:
        lives.kill()
        lives.begin()
        # The held task wakes up when the new life has begun to settle it.
        lives.until(lambda: lives.process.exitcode is not None or SETTLING in lives.said())
        stage.disarm()
        return
    stage.kill(victim, held)
    stage.disarm()
    stage.restart(victim)


@pytest.mark.statement("X1", "X2", "X6")
@pytest.mark.parametrize(("kind", "victim", "step"), EVERY if SEEDS in os.environ else SAMPLE)
@pytest.mark.fault(3, 4, 5)
def test_a_range_that_is_held_up_holds_up_its_own_partition_alone(
    stage: Stage, kafka: Server, kind: str, victim: Victim, step: Step, folder: Path
) -> None:
    """X1, X2, X6: the other partition goes in meanwhile; after the kill the table is what the log says of each key."""
    topic = on_kafka.Topic(servers=kafka.url).create(2)
    expected = fill(topic)
    changes: dict[str, Any] = {} if kind == "postgres" else {"into": lakes.place(kind, folder)}
    composed = replace(
        stage.hydration(DRAW),
        source=on_kafka.endpoint_of(kafka),
        table=topic.name,
        kind="kafka",
        consistency="offsets",
        mode="upsert",
        reading={"one_partition_per_key": True},
        budget=Budget(credits=DRAW.credits, range_rows=DRAW.range_rows),
        **changes,
    )
    planned = stage.plan(composed)
    assert planned.ranges == 2 * RANGES
    stage.arm(step, Action.WAIT, DRAW.number)
    with living(stage, composed, folder) as lives:
        held = lives.reached(step, DRAW.number)
        lives.until(lambda: len(committed(stage)) >= RANGES)
        assert held.slice_id not in committed(stage)
        others = {seq % 2 for seq in map(seq_of, committed(stage)) if seq > seq_of(held.slice_id)}
        assert others == {1 - seq_of(held.slice_id) % 2}, "what follows in its own partition waits"
        kill(stage, lives, victim, held)
        lives.to_the_end()
        tried = [one.slice_id for one in stage.journal() if one.step is BEFORE]
    for partition in (0, 1):
        own = [seq for seq in map(seq_of, tried) if seq % 2 == partition]
        assert own == sorted(own), "each partition's ranges went in by its order"
    assert Target(composed=composed).rows() == sorted(expected.items())
    oracle.check_lake(composed, planned)


def committed(stage: Stage) -> set[str]:
    """Return the slices that are in the target, by the journal."""
    return {one.slice_id for one in stage.journal() if one.step is AFTER}
