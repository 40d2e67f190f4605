"""Partitions or parts of keys are upserted side by side; somebody dies while ranges of two of them are in flight."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Action, Folder, Step
from airflow_provider_backpressure.core.snapshot.ranges import seq_of
from dev.services import Server, Services
from tests.chaos import oracle
from tests.chaos.lives import Lives, living
from tests.chaos.matrix import SIZES, Draw, Victim
from tests.chaos.stage import Pass, Stage
from tests.support import kafka as on_kafka
from tests.support import lakes
from tests.support.composed import IN_PROCESS, Composed
from tests.support.marks import mark_long
from tests.support.postgres import run
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

BEFORE, AFTER = Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT
DRAW = Draw(rows=SIZES[0], range_rows=25, credits=2, number=2, release_first=True, pauses=(0.0, 0.0))
RECORDS, RANGES = 100, 4
"""Of each of two partitions, or of one whose keys are in two parts."""
KINDS = ("postgres", "delta", "iceberg")
PARTS = "parts"
"""In place of the kind of a target: keys in parts, into PostgreSQL."""
SECONDS = 180.0
"""For six ranges in a row, also on a slow machine."""


def fill(topic: on_kafka.Topic, partitions: int) -> Mapping[bytes, str]:
    """Fill the topic; return what it says of each key in the end: every fourth record is a tombstone."""
    left: dict[bytes, str] = {}
    for partition in range(partitions):
        with topic.producing() as producer:
            for number in range(RECORDS):
                key, gone = f"{partition}-{number * 7 % 15}".encode(), number % 4 == 3
                producer.produce(topic.name, None if gone else f"[{number}]".encode(), key, partition)
                left.pop(key, None)
                if not gone:
                    left[key] = f"[{number}]"
    return left


def rows(composed: Composed) -> list[tuple[bytes, str]]:
    """Return key and value of every row of the target."""
    if composed.into:
        return sorted((row["key"], row["value"]) for row in lakes.table(**composed.into).to_pylist())
    return sorted(run(composed.sink, f"SELECT key, value::text FROM {composed.target}"))  # type: ignore[arg-type]


def committed(stage: Stage) -> list[int]:
    """Return the numbers of the ranges that are in the target, by the journal."""
    return [seq_of(one.slice_id) for one in stage.journal() if one.step is AFTER]


def play(stage: Stage, composed: Composed, kind: str, victim: Victim, folder: Path) -> None:
    """Hold a range before its commit until the other half is in, kill the victim, and compare the target."""
    parted = kind == PARTS
    topic = on_kafka.Topic(servers=composed.source.host).create(1 if parted else 2)
    expected = fill(topic, 1 if parted else 2)
    changes: dict[str, Any] = {"into": lakes.place(kind, folder)} if kind in KINDS[1:] else {}
    composed = replace(
        composed,
        table=topic.name,
        kind="kafka",
        consistency="offsets",
        mode="upsert",
        reading={"upsert_parts": 2} if parted else {"one_partition_per_key": True},
        budget=Budget(credits=DRAW.credits, range_rows=DRAW.range_rows, law="fixed"),
        **changes,
    )
    planned = stage.plan(composed)
    assert planned.ranges == 2 * RANGES
    stage.arm(BEFORE, Action.WAIT, DRAW.number)
    with living(stage, composed, folder) as lives:
        held = lives.reached(BEFORE, DRAW.number)
        seq = seq_of(held.slice_id)
        until(lambda: len(committed(stage)) >= RANGES + seq // 2, SECONDS, told=lambda: stage.journal())
        found = committed(stage)
        # Partitions and parts take turns: even numbers are of one, odd ones of the other.
        assert [each for each in found if each % 2 == seq % 2] == list(range(seq % 2, seq, 2))
        assert sorted(each for each in found if each % 2 != seq % 2) == list(range(1 - seq % 2, 2 * RANGES, 2))
        kill(stage, lives, victim, held)
        lives.to_the_end()
        tried = [seq_of(one.slice_id) for one in stage.journal() if one.step is BEFORE]
    for half in (0, 1):
        own = [each for each in tried if each % 2 == half]
        assert own == sorted(own), "each half went in by its order"
    assert rows(composed) == sorted(expected.items())
    oracle.check_lake(composed, planned)


def kill(stage: Stage, lives: Lives, victim: Victim, held: Pass) -> None:
    """Kill a victim and bring it back."""
    if victim is Victim.LANE:
        lives.kill()
        stage.disarm()
        lives.begin()
        return
    stage.kill(victim, held)
    stage.disarm()
    stage.restart(victim)


@pytest.mark.statement("X1", "X2", "X6")
@pytest.mark.parametrize("kind", mark_long([*KINDS, PARTS], quick=["postgres", "iceberg", PARTS]))
@pytest.mark.fault(3)
@pytest.mark.in_process
def test_a_range_that_is_held_up_holds_up_its_own_half_alone(
    services: Services,
    failpoints: Folder,
    kafka: Server,
    database: Endpoint,
    ledger_url: str,
    kind: str,
    folder: Path,
) -> None:
    """X1, X2, X6: the other one goes in meanwhile. A lane is killed with ranges of both, and the next one ends them."""
    source = on_kafka.endpoint_of(kafka)
    composed = Composed(source=source, sink=database, ledger_url=ledger_url, remote=IN_PROCESS, target="raw.side")
    stage = Stage(
        services=services, failpoints=failpoints, source=source, sink=database, ledger_url=ledger_url, connect=""
    )
    play(stage, composed, kind, Victim.LANE, folder)


@pytest.mark.long
@pytest.mark.statement("X1", "X2", "X6")
@pytest.mark.parametrize("victim", [Victim.WORKER, Victim.DRIVER])
@pytest.mark.parametrize("kind", [*KINDS, PARTS])
@pytest.mark.fault(4, 5)
def test_a_task_is_killed_while_the_other_half_goes_in(
    stage: Stage, kafka: Server, kind: str, victim: Victim, folder: Path
) -> None:
    """X1, X2, X6: Spark's worker or driver dies with the range that is held."""
    composed = replace(stage.hydration(DRAW), source=on_kafka.endpoint_of(kafka))
    play(stage, composed, kind, victim, folder)
