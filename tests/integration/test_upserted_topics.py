"""Targets that a topic is upserted into: what would change its rows, or others, without an error is refused."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused
from dev.services import Server
from tests.support.composed import Ports
from tests.support.kafka import ComposedKafka, Topic, endpoint_of
from tests.support.local_runner import LocalRunner
from tests.support.postgres import new_role, run

pytestmark = [pytest.mark.integration, pytest.mark.statement("X1", "X6")]

COLUMNS = 'topic text, "partition" int, "offset" bigint, "timestamp" timestamptz, key text {} PRIMARY KEY, headers json'
TABLE = f"CREATE TABLE t ({COLUMNS.format('')}, value json, changed int)"
FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {} RETURN {}; END'"
TRIGGER = "CREATE TRIGGER tr BEFORE {} ON t FOR EACH ROW EXECUTE FUNCTION f()"


@pytest.fixture
def ports(kafka: Server, database: Endpoint, ledger_url: str) -> Iterator[Ports]:
    """A topic of two keys, one of which ends with a tombstone, to be upserted into ``public.t`` one by one."""
    topic = Topic(servers=kafka.url).create(1)
    with topic.producing() as producer:
        for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", None), (b"b", b"3")):
            producer.produce(topic.name, value, key, 0)
    composed = ComposedKafka(
        source=endpoint_of(kafka),
        sink=database,
        ledger_url=ledger_url,
        remote="",
        table=topic.name,
        target="public.t",
        mode="upsert",
        reading={"key": "text"},
        budget=Budget(credits=1, range_rows=1),
    )
    logins = {
        "source": replace(composed.source, conn_id="source"),
        "sink": replace(composed.sink, conn_id="sink"),
    }
    with closing(LocalRunner(logins=logins)) as runner, composed.open(runner) as opened:
        yield opened


def test_partitions_are_upserted_side_by_side(kafka: Server, database: Endpoint, ledger_url: str) -> None:
    """X1: with the rows that the log says; once keys may have moved to a partition that was added, in order again."""
    topic, rng = Topic(servers=kafka.url).create(3), random.Random(11)
    composed = ComposedKafka(
        source=endpoint_of(kafka),
        sink=database,
        ledger_url=ledger_url,
        remote="",
        table=topic.name,
        target="public.side",
        mode="upsert",
        reading={"key": "text", "one_partition_per_key": True, "columns": ["key", "value"]},
        budget=Budget(credits=4, range_rows=20, law="fixed"),
    )
    logins = {"source": replace(composed.source, conn_id="source"), "sink": replace(database, conn_id="sink")}
    last: dict[str, str] = {}
    with closing(LocalRunner(logins=logins)) as runner:
        for partitions, together in ((3, True), (3, True), (4, False)):
            if partitions > 3:
                topic.grow(partitions)
            with topic.producing() as producer:
                for number in range(200):
                    key, value = str(rng.randrange(40)), None if rng.random() < 0.3 else str(number)
                    producer.produce(topic.name, value, key, int(key) % partitions if together else 3)
                    last.pop(key, None) if value is None else last.update({key: value})
            with composed.open(runner) as opened:
                opened.planner().plan()
                ranges = list(opened.ledger.ranges(opened.plan.plan_id))
                assert {each.is_side_by_side for each in ranges} == {together}
                assert opened.hydrator().run().outcome is Outcome.DONE
                done = {each.seq: each for each in opened.ledger.ranges(opened.plan.plan_id)}
                opened.ledger.finish(opened.hydration.id)
            assert run(database, "SELECT key, value::text FROM side ORDER BY key") == sorted(last.items())
            for each in done.values():
                before = done.get(each.waits_for) if each.waits_for is not None else None
                assert before is None or before.committed_at <= each.admitted_at
            overlaps = [
                (one.seq, other.seq)
                for one in done.values()
                for other in done.values()
                if one.seq < other.seq and other.admitted_at < one.committed_at
            ]
            assert bool(overlaps) is together


@pytest.mark.parametrize(
    ("statements", "sentence"),
    [
        (
            [
                "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
                f"CREATE TABLE t ({COLUMNS.format('COLLATE ci')}, value json)",
            ],
            "the collation of key key takes different texts for equal",
        ),
        (
            [TABLE, "CREATE TABLE child (parent text REFERENCES t ON DELETE CASCADE)"],
            "by its foreign key child_parent_fkey a tombstone would change rows of other tables",
        ),
        ([TABLE, "CREATE RULE kept AS ON DELETE TO t DO INSTEAD NOTHING"], "its rule kept replaces statements"),
        (
            [TABLE, FUNCTION.format("", "NULL"), TRIGGER.format("DELETE")],
            "its trigger tr may keep rows with a tombstone",
        ),
    ],
)
def test_a_target_that_would_not_be_as_the_topic_says_is_refused_at_plan(
    ports: Ports, statements: list[str], sentence: str
) -> None:
    run(ports.composed.sink, *statements)
    with pytest.raises(SinkRefused, match=sentence):
        ports.planner().plan()


def test_a_role_that_may_not_delete_is_refused_at_plan(ports: Ports) -> None:
    """Else the first range with a tombstone would fail, and those before it are committed by then."""
    run(ports.composed.sink, TABLE)
    with new_role(ports.composed.sink) as role:
        run(
            ports.composed.sink,
            f"GRANT SELECT, INSERT, UPDATE ON t TO {role.user}",
            f"GRANT CREATE ON SCHEMA public TO {role.user}",
        )
        with replace(ports.composed, sink=role).open(ports.runner) as opened:
            with pytest.raises(SinkRefused, match=f"{role.user} has no DELETE right on it"):
                opened.planner().plan()
            run(ports.composed.sink, f"GRANT DELETE ON t TO {role.user}")
            opened.planner().plan()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (FUNCTION.format("", "NULL"), "A trigger of public.t kept 1 rows out"),
        (
            FUNCTION.format("UPDATE t SET value = ''9'' WHERE key = ''a'' AND value::text <> ''9'';", "NEW"),
            "a trigger or rule changed 1 more there",
        ),
    ],
)
def test_a_trigger_that_makes_the_target_differ_fails_the_range(ports: Ports, body: str, sentence: str) -> None:
    run(ports.composed.sink, TABLE, body, TRIGGER.format("INSERT"))
    ports.planner().plan()
    with pytest.raises(RangeFailed, match=sentence):
        ports.hydrator().run()


def test_what_leaves_the_rows_of_the_topic_alone_is_allowed(ports: Ports) -> None:
    """A foreign key that refuses deletes, and a trigger that sets a column which does not arrive."""
    child = "CREATE TABLE child (parent text REFERENCES t)"
    run(ports.composed.sink, TABLE, child, FUNCTION.format("NEW.changed := 1;", "NEW"), TRIGGER.format("INSERT"))
    ports.planner().plan()
    assert ports.hydrator().run().outcome is Outcome.DONE
    assert run(ports.composed.sink, "SELECT key, value::text, changed FROM t") == [("b", "3", 1)]
