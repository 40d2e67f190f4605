"""Topics that are upserted by several ranges of the same offsets, each with a part of the keys, into PostgreSQL."""

import random
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget, Mode
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.reconciliation.reindexer import Reindexer
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, slice_id
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.sources import Debezium
from tests.integration.test_debezium_topics import FIELDS, Connector, generator, hydrate
from tests.integration.test_kafka_source import Run, Stage, stage  # noqa: F401 - the fixture
from tests.support.kafka import Topic
from tests.support.postgres import run as execute

pytestmark = [pytest.mark.integration, pytest.mark.in_process]


def hydration(stage: Stage, topic: Topic, parts: int, **changes: Any) -> Run:  # noqa: F811
    """Return the hydration of a topic in ranges of 20 offsets, of which four are in flight."""
    reading = {"key": "text", "columns": ["key", "value"], **changes.pop("reading", {}), "upsert_parts": parts}
    found = stage.hydration(topic, mode="upsert", reading=reading, **changes)
    budget = Budget(credits=4, range_rows=20, law="fixed")
    return replace(found, composed=replace(found.composed, budget=budget))


def send(topic: Topic, draw: random.Random, number: int, last: dict[str, str], *, partitions: int = 1) -> None:
    """Send records of forty keys, a third of them tombstones, and note what is left of each key."""
    with topic.producing() as producer:
        for _ in range(number):
            key, value = str(draw.randrange(40)), None if draw.random() < 0.3 else str(draw.random())
            producer.produce(topic.name, value, key, int(key) % partitions)
            last.pop(key, None) if value is None else last.update({key: value})


def rows(run: Run) -> list[tuple[Any, ...]]:
    """Return key and value of each row."""
    return run.sql("SELECT key, value::text FROM {} ORDER BY key")


def ranges(run: Run) -> list[RangeRecord]:
    """Return the ranges of the present plan."""
    with run.open() as ports:
        return list(ports.ledger.ranges(ports.plan.plan_id))


def positions(run: Run) -> dict[str, int]:
    """Return the target's position of each stream, without the topic's name."""
    found = run.sql(
        "SELECT stream, pos FROM raw.backpressure_frontier WHERE stream LIKE '" + run.composed.table + "/%'"
    )
    return {stream.partition("/")[2]: pos for stream, pos in found}


@pytest.mark.statement("X1", "X6")
def test_parts_of_one_partition_make_the_rows_that_the_log_says(stage: Stage) -> None:  # noqa: F811
    """X1, X6: with updates and deletes; another number of parts is taken when all parts are at one offset."""
    topic, draw = stage.topic(), generator()
    last: dict[str, str] = {}
    for turn, parts in enumerate((3, 1, 4), 1):
        send(topic, draw, 200, last)
        run = hydration(stage, topic, parts)
        progress = run.go()
        assert (progress.committed, progress.percent) == (200, 100.0)
        assert rows(run) == sorted(last.items())
        assert run.verify().equal
        found = ranges(run)
        assert len(found) == 10 * parts
        assert sum(each.rows or 0 for each in found) == 200, "each record is of one part"
        together = [
            (one.seq, other.seq)
            for one in found
            for other in found
            if one.seq < other.seq and other.admitted_at < one.committed_at  # type: ignore[operator]
        ]
        assert bool(together) is (parts > 1)
        for each in found:
            before = found[each.waits_for] if each.waits_for is not None else None
            assert before is None or before.committed_at <= each.admitted_at  # type: ignore[operator]
        at = positions(run)
        names = ["0"] if parts == 1 else [f"0#{number}/{parts}" for number in range(parts)]
        assert [at[name] for name in names] == [200 * turn] * len(names)
    send(topic, draw, 30, last)
    other = hydration(stage, topic, 2)
    other.plan()
    again = hydration(stage, topic, 5)
    again.go()
    assert {str(each.bounds).rpartition(" of ")[2] for each in ranges(again)} == {"2"}, "a plan keeps its parts"
    assert rows(again) == sorted(last.items())


@pytest.mark.statement("X1", "X6")
@pytest.mark.parametrize("alone", [True, False])
def test_parts_and_partitions_go_side_by_side(stage: Stage, alone: bool) -> None:  # noqa: F811
    """X1, X6: where each key is in one partition; otherwise each part goes from partition to partition."""
    topic, draw = stage.topic(3), generator()
    last: dict[str, str] = {}
    run = hydration(stage, topic, 2, reading={"one_partition_per_key": alone})
    for _ in range(2):
        send(topic, draw, 200, last, partitions=3)
        run.go()
        assert rows(run) == sorted(last.items())
    assert len(positions(run)) == 6
    topic.grow(4)
    with topic.producing() as producer:
        for number in range(40):
            producer.produce(topic.name, "9", str(number), 3)
            last[str(number)] = "9"
    run.go()
    assert rows(run) == sorted(last.items())


@pytest.mark.statement("R3")
@pytest.mark.parametrize(("form", "key"), [("bare", ("id",)), ("schema", ("id",))])
def test_change_events_are_cut_by_the_key_of_their_rows(stage: Stage, form: str, key: tuple[str, ...]) -> None:  # noqa: F811
    """R3: deletes that are known by the record's key alone, and keys that move."""
    connector = Connector(topic=stage.topic(2), rng=generator(), form=form)
    envelope = Debezium(decimal_handling_mode="string" if form == "bare" else "precise")
    hydrate(stage, connector, list(FIELDS), key, reading={"fields": FIELDS, "envelope": envelope, "upsert_parts": 3})


@pytest.mark.statement("X5")
@pytest.mark.fault(15)
@pytest.mark.long
def test_a_bad_record_is_kept_aside_once(stage: Stage) -> None:  # noqa: F811
    """X5: although every part reads it; and one that only PostgreSQL refuses, by its part alone."""
    topic = stage.topic()
    for number in range(60):
        value = {"id": number % 9, "at": "nowhere" if number == 40 else f"10.0.0.{number}"}
        topic.send(0, b"{" if number in (7, 31) else value)
    reading = {"fields": {"id": "bigint", "at": "inet"}, "columns": ["id", "at"]}
    run = hydration(stage, topic, 4, reading=reading, quarantine=3)
    with run.open() as ports:
        replace(ports.planner(), key=("id",)).plan()
    run.drain()
    kept = run.sql(
        "SELECT row::json ->> 'offset', reason FROM raw.backpressure_quarantine"
        f" WHERE target = '{run.composed.target}' ORDER BY reason LIKE 'its value is no JSON%', 1"
    )
    assert [(offset, reason.startswith("its value is no JSON")) for offset, reason in kept] == [
        ("40", False),
        ("31", True),
        ("7", True),
    ]
    last = {number % 9: f"10.0.0.{number}" for number in range(60) if number not in (7, 31, 40)}
    assert dict(run.sql("SELECT id, host(at) FROM {}")) == last


@pytest.mark.statement("X1")
def test_a_late_range_of_a_part_is_refused(stage: Stage) -> None:  # noqa: F811
    """X1: an attempt that wakes up when its part has gone on writes nothing, although another part is at its start."""
    topic, draw = stage.topic(), generator()
    last: dict[str, str] = {}
    send(topic, draw, 60, last)
    run = hydration(stage, topic, 2)
    run.plan()
    stage.runner.submitted.clear()  # type: ignore[attr-defined]
    run.drain()
    specs = {spec.seq: spec for _, spec in stage.runner.submitted}  # type: ignore[attr-defined]
    assert len(specs) == 6
    before = rows(run)
    for seq, spec in specs.items():
        (piece,) = spec.slices
        late = replace(spec, seq=99, attempt=1, tag="late", slices=(replace(piece, slice_id=slice_id(99)),))
        number = seq % 2 + 1
        with pytest.raises(
            RangeFailed, match=rf"is not at offset {20 * (seq // 2)} of partition 0, part {number} of 2"
        ):
            stage.runner.run(late).result(60)
    assert rows(run) == before == sorted(last.items())
    assert positions(run) == {"0#0/2": 60, "0#1/2": 60}


class Killed(Exception):
    """A lane that is gone."""


@pytest.mark.statement("X7")
def test_a_lost_ledger_goes_on_in_each_part_where_the_target_is(stage: Stage) -> None:  # noqa: F811
    """X7: parts are at different offsets when the ledger is lost."""
    topic, draw = stage.topic(), generator()
    last: dict[str, str] = {}
    send(topic, draw, 100, last)
    run = hydration(stage, topic, 3)
    run.plan()
    left = iter(range(4))

    def die() -> None:
        if next(left, None) is None:
            raise Killed

    with run.open() as ports:
        lane = ports.hydrator()
        lane.share, lane.on_commit = 1, die
        with pytest.raises(Killed):
            lane.run()
    assert set(positions(run).values()) == {40, 20}
    name = f"ledger_{topic.name}"
    execute(stage.database, f"CREATE DATABASE {name}")
    url = f"{stage.ledger_url.rpartition('/')[0]}/{name}"
    migrate(url)
    with replace(run, composed=replace(run.composed, ledger_url=url)).open() as ports:
        ports.planner().register()
        kinds: dict[str, Any] = {"source": ports.source, "sink": ports.sink, "ledger": ports.ledger}
        Reindexer(**kinds, runner=ports.runner, environment="default").follow(ports.hydration, who="test")
        assert ports.ledger.counts(ports.plan.plan_id).committed == 5
        assert ports.hydrator().run().outcome is Outcome.DONE
        ports.ledger.finish(ports.hydration.id)
        assert ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), Verify.TARGET).equal
    assert rows(run) == sorted(last.items())
    assert positions(run) == {f"0#{number}/3": 100 for number in range(3)}
    execute(stage.database, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.statement("X5")
def test_a_target_whose_keys_depend_on_each_other_is_refused(stage: Stage) -> None:  # noqa: F811
    """X5: when it is planned; two rows may exchange a value that only one of them can have."""
    topic = stage.topic()
    reading = {"fields": {"n": "int"}, "columns": ["key", "n"]}
    execute(stage.database, "CREATE SCHEMA IF NOT EXISTS raw")
    run = hydration(stage, topic, 2, reading=reading)
    run.sql("CREATE TABLE {} (key text PRIMARY KEY, n int CONSTRAINT only_n UNIQUE)")
    with pytest.raises(SinkRefused, match="its unique index only_n may be broken while parts are at different offsets"):
        run.plan()
    hydration(stage, topic, 1, reading=reading).plan()


@pytest.mark.statement("X5")
def test_a_database_that_may_make_one_key_of_two_is_refused(stage: Stage) -> None:  # noqa: F811
    """X5: when it is planned; an encoding of Japan has one character for several."""
    run = hydration(stage, stage.topic(), 2)
    name = f"other_{run.composed.table}"
    execute(
        stage.database, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'EUC_JP' LOCALE_PROVIDER libc LOCALE 'C'"
    )
    composed = replace(run.composed, sink=replace(stage.database, database=name))
    with pytest.raises(SinkRefused, match="keeps text as EUC_JP, in which two keys may become one"):
        replace(run, composed=composed).plan()
    execute(stage.database, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.statement("X5")
def test_a_key_of_numbers_is_refused_and_rows_that_are_added_are(stage: Stage) -> None:  # noqa: F811
    """X5: when it is planned, where nobody has parsed a DAG."""
    reading = {"fields": {"n": "numeric"}, "columns": ["partition", "offset", "key", "n"]}
    run = hydration(stage, stage.topic(), 2, reading=reading)
    with run.open() as ports:
        with pytest.raises(SinkRefused, match="in parts by n: two values of type numeric may be equal"):
            replace(ports.planner(), key=("n",)).plan()
        with pytest.raises(SinkRefused, match="to which rows are added: use mode='upsert'"):
            replace(ports.planner(), mode=Mode.APPEND).plan()
