"""Topics of which only some columns are read: the target has just these, by every format, in every kind of table."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed, SinkRefused, SourceRefused
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sources import Avro, Debezium, JsonSchema, Protobuf
from dev.services import Server
from tests.integration.test_debezium_topics import AVRO_SCHEMAS, FIELDS, Connector, generator, to_shown
from tests.integration.test_kafka_source import Run, Stage, stage  # noqa: F401 - the fixture
from tests.integration.test_registry import FIRST, Registered, orders  # noqa: F401 - the fixture
from tests.support import lakes
from tests.support import protobuf as as_protobuf
from tests.support.kafka import ComposedKafka, endpoint_of
from tests.support.marks import mark_long
from tests.support.registry import CONN_ID, avro_record, framed

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

TARGETS = ("postgres", "delta", "iceberg", "parquet")
MERGED = TARGETS[:3]
FORMATS = ("raw", "json", "fields", "avro", "protobuf", "jsonschema")
CHOSEN = (("key", "value"), ("offset", "key", "value"), ("value", "partition", "key", "timestamp"))
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; string state = 2; }'
PROPERTIES = {"type": "object", "properties": {"id": {"type": "integer"}, "state": {"type": "string"}}}
REGISTRY = {"registry_conn_id": CONN_ID}


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Records of one format."""

    reading: dict[str, Any]
    """How the source is declared, with the columns that it is to read."""
    values: list[bytes | None]
    rows: list[tuple[Any, ...]]
    """What is to be in the target of them, beside nothing."""


def encode(orders: Registered, name: str, first: int) -> Sent:  # noqa: F811
    """Return two records of a format, and one without a value; ``first``: the id of the first."""
    both = [{"id": first, "state": "new"}, {"id": first + 1, "state": "sent"}]
    fields = {"columns": ["state", "id"]}
    rows = [*((each["state"], each["id"]) for each in both), (None, None)]
    texts: list[bytes | None] = [b'{"id": %d, "state": "%s"}' % (each["id"], each["state"].encode()) for each in both]
    match name:
        case "raw":
            chosen = {"format": "raw", "columns": ["value"]}
            return Sent(reading=chosen, values=[*texts, None], rows=[(text,) for text in [*texts, None]])
        case "json":
            whole = [(text and text.decode(),) for text in [*texts, None]]
            return Sent(reading={"columns": ["value"]}, values=[*texts, None], rows=whole)
        case "fields":
            declared = {"other": "date", "id": "bigint", "state": "text"}
            return Sent(reading={"fields": declared, **fields}, values=[*texts, None], rows=rows)
        case "avro":
            schema = orders.subject().register(FIRST)
            values = [avro_record(FIRST, each, schema) for each in both]
            return Sent(reading={"value": Avro(**REGISTRY), **fields}, values=[*values, None], rows=rows)
        case "protobuf":
            schema = orders.subject().register(PROTO, type_="PROTOBUF")
            make = as_protobuf.message_class(PROTO, "shop.Order")
            values = [as_protobuf.framed(make(**each).SerializeToString(), schema) for each in both]
            return Sent(reading={"value": Protobuf(**REGISTRY), **fields}, values=[*values, None], rows=rows)
    schema = orders.subject().register(PROPERTIES, type_="JSON")
    values = [framed(text or b"", schema) for text in texts]
    return Sent(reading={"value": JsonSchema(**REGISTRY), **fields}, values=[*values, None], rows=rows)


def place(target: str, folder: Path) -> dict[str, Any]:
    """Return what a hydration into a table is composed of; PostgreSQL needs nothing."""
    return {} if target == "postgres" else {"into": lakes.place(target, folder)}


def content(run: Run) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of a target's columns, and its rows in an order of their own."""
    if run.composed.into:
        found = lakes.table(**run.composed.into)
        names, rows = found.column_names, [tuple(row.values()) for row in found.to_pylist()]
    else:
        query = "SELECT attname FROM pg_attribute WHERE attrelid = '{}'::regclass AND attnum > 0 ORDER BY attnum"
        names = [name for (name,) in run.sql(query)]
        text = "" if run.composed.declared().format == "raw" else "::text"
        shown = ", ".join(f'"{name}"{text if name == "value" else ""}' for name in names)
        rows = run.sql(f"SELECT {shown} FROM {{}}")
    return names, sorted(rows, key=repr)


@pytest.mark.statement("R1", "X1")
@pytest.mark.parametrize(
    ("name", "target"),
    mark_long(
        list(product(FORMATS, TARGETS)),
        quick=[("json", "postgres"), ("fields", "postgres"), ("protobuf", "postgres"), ("avro", "iceberg")],
    ),
)
def test_only_the_chosen_columns_are_in_the_target(
    orders: Registered,  # noqa: F811
    name: str,
    target: str,
    tmp_path: Path,
) -> None:
    """R1, X1: none of Kafka's own among them; in the order in which they are named, over two runs, verified in full."""
    sent = encode(orders, name, 1)
    for value in sent.values:
        orders.topic.send(0, value, key=b"\xff", headers=[("a", b"1")])
    run = orders.hydration(reading={"value": None, **sent.reading}, **place(target, tmp_path))
    run.go()
    assert content(run) == (sent.reading["columns"], sorted(sent.rows, key=repr))
    assert run.verify(Verify.FULL).equal
    more = encode(orders, name, 3)
    for value in more.values:
        orders.topic.send(0, value)
    run.go()
    assert content(run)[1] == sorted([*sent.rows, *more.rows], key=repr)
    if target == "postgres":
        # hydrate() says so when the DAG is parsed.
        with pytest.raises(SinkRefused, match=r"gets no column .*partition.*columns= of the source"):
            run.verify()
    else:
        assert run.verify(Verify.FULL).equal


@pytest.mark.parametrize(
    ("chosen", "target"),
    mark_long(list(product(CHOSEN, MERGED)), quick=[(CHOSEN[0], "postgres"), (CHOSEN[1], "iceberg")]),
)
@pytest.mark.statement("X1", "X6")
def test_the_last_record_of_a_key_wins_without_its_position_in_the_target(
    stage: Stage,  # noqa: F811
    target: str,
    chosen: tuple[str, ...],
    tmp_path: Path,
) -> None:
    """X1, X6: over ranges, partitions and runs; a tombstone deletes, and a record without a key is named."""
    topic, rng = stage.topic(2), random.Random(7)
    reading = {"key": "text", "columns": chosen}
    run = stage.hydration(topic, mode="upsert", range_rows=25, reading=reading, **place(target, tmp_path))
    last: dict[str, str] = {}
    for _ in range(2):
        with topic.producing() as producer:
            for number in range(150):
                key = str(rng.randrange(30))
                value = None if rng.random() < 0.3 else str(number)
                producer.produce(topic.name, value, key, int(key) % 2)
                last.pop(key, None) if value is None else last.update({key: value})
        run.go()
        names, rows = content(run)
        assert names == [*chosen]
        at = [names.index(name) for name in ("key", "value")]
        assert sorted((row[at[0]], row[at[1]]) for row in rows) == sorted(last.items())
        assert run.verify().equal
    end = topic.end(1)
    topic.send(1, 1)
    with pytest.raises(SinkRefused, match=rf"record at offset {end} of partition 1 has no key"):
        run.go()
    assert len(content(run)[1]) == len(last)


@pytest.mark.statement("X6")
def test_the_columns_of_an_iceberg_table_may_be_in_another_order(
    stage: Stage,  # noqa: F811
    tmp_path: Path,
) -> None:
    """X6: also where rows of a range are left out, since a later one has their key."""
    topic, into = stage.topic(1), lakes.place("iceberg", tmp_path)
    chosen = {"key": "text", "columns": ("key", "value")}
    run = stage.hydration(topic, mode="upsert", range_rows=25, reading=chosen, into=into)
    topic.send(0, "1", key=b"a")
    run.go()
    with (
        closing(load_catalog(**into["catalog"])) as catalog,
        catalog.load_table(into["table"]).update_schema() as change,
    ):
        change.move_first("value")
    for value in ("2", "3"):
        topic.send(0, value, key=b"a")
    run.go()
    assert content(run) == (["value", "key"], [('"3"', "a")])


@pytest.mark.parametrize(
    ("form", "target"),
    mark_long(list(product(("bare", "avro"), MERGED)), quick=[("avro", "postgres"), ("bare", "iceberg")]),
)
@pytest.mark.statement("R3")
def test_the_target_has_the_columns_of_the_table_that_change_events_are_of(
    orders: Registered,  # noqa: F811
    form: str,
    target: str,
    tmp_path: Path,
) -> None:
    """R3: and no other ones. Keys are decoded all the same: of a row that is deleted they may be all there is."""
    names = ["id", "day", "placed_at"]
    ids = {part: orders.subject("key" if part == "key" else "value") for part in ("key", "envelope")}
    connector = Connector(
        topic=orders.topic,
        rng=generator(),
        form=form,
        partitions=1,
        ids={part: each.register(AVRO_SCHEMAS[part]) for part, each in ids.items()} if form == "avro" else {},
    )
    avro = Avro(**REGISTRY)
    how = {"value": avro, "key": avro} if form == "avro" else {"value": None, "fields": FIELDS}
    envelope = Debezium(decimal_handling_mode="string" if form == "bare" else "precise")
    reading = {**how, "envelope": envelope, "columns": names}
    run = orders.hydration(mode="upsert", range_rows=70, reading=reading, **place(target, tmp_path))
    for _ in range(2):
        connector.write(120)
        with run.composed.open(orders.stage.runner) as ports:
            replace(ports.planner(), key=("id",)).plan()
        run.drain()
        found, rows = content(run)
        assert found == names
        shown = [to_shown(each) for each in connector.table.values()]
        if target == "postgres":
            rows = run.sql("SELECT id, day, placed_at FROM {}")
            assert sorted(rows) == sorted((row[0], row[3], row[2]) for row in shown)
        else:
            expected = {row[0]: (row[3], row[2]) for row in connector.table.values()}
            assert {row[0]: row[1:] for row in rows} == expected
        assert run.verify().equal


@pytest.mark.statement("R4", "X5")
@pytest.mark.parametrize("target", mark_long(TARGETS, quick=["postgres", "iceberg"]))
def test_what_is_put_aside_has_its_position_though_it_is_not_chosen(
    stage: Stage,  # noqa: F811
    target: str,
    tmp_path: Path,
) -> None:
    """R4, X5: a record that cannot be read, by partition and offset; a field that is not chosen is not looked at."""
    topic = stage.topic()
    topic.send(0, {"id": 1, "day": "never"}, {"id": "x"}, {"id": 3})
    reading = {"fields": {"id": "bigint", "day": "date"}, "columns": ("id",)}
    if target == "postgres":
        run = stage.hydration(topic, reading=reading, quarantine=1)
    else:
        run = stage.hydration(topic, reading=reading, into={**lakes.place(target, tmp_path), "quarantine": 1})
    run.go()
    assert content(run) == (["id"], [(1,), (3,)])
    if target == "postgres":
        kept = run.sql("SELECT key FROM raw.backpressure_quarantine WHERE target = '{}'")
    else:
        name = "table" if target == "iceberg" else "path"
        aside = {**run.composed.into, name: f"{run.composed.into[name]}_quarantine"}
        kept = [(row["key"],) for row in lakes.table(**aside).to_pylist()]
    assert kept == [('{"partition": 0, "offset": 1}',)]


@pytest.mark.statement("R2")
def test_a_field_that_is_not_chosen_may_change_as_it_likes(orders: Registered) -> None:  # noqa: F811
    """R2: nothing stops where nothing of it is read; a name that no schema has is refused, with one that it may be."""
    first = orders.subject().register(FIRST)
    orders.topic.send(0, avro_record(FIRST, {"id": 1, "state": "new"}, first))
    run = orders.hydration(reading={"columns": ["id"]})
    run.go()
    other = {**FIRST, "fields": [FIRST["fields"][0], {"name": "state", "type": "int"}]}
    second = orders.subject().register(other)
    orders.topic.send(0, avro_record(other, {"id": 2, "state": 7}, second))
    orders.topic.send(0, avro_record(FIRST, {"id": 3, "state": "new"}, first))
    run.go()
    assert content(run) == (["id"], [(1,), (2,), (3,)])
    every = orders.hydration()
    every = replace(every, composed=replace(every.composed, target=f"{every.composed.target}_every"))
    with pytest.raises((SourceRefused, RangeFailed), match="does not fit schema"):
        every.go()
    with pytest.raises(InvalidDeclaration, match=r"columns names stat, .* did you mean state\?"):
        orders.hydration(reading={"columns": ["id", "stat"]}).plan()


@pytest.mark.statement("X6")
def test_a_range_is_not_read_again_where_its_rows_cannot_be_found(stage: Stage) -> None:  # noqa: F811
    """X6: nothing is removed; a field named ``value`` is the field, and not the whole of a value."""
    topic = stage.topic()
    topic.send(0, {"value": {"a": 1}}, {"value": None})
    run = stage.hydration(topic, reading={"fields": {"value": "json"}, "columns": ["value"]})
    run.go()
    rows = [('{"a": 1}',), (None,)]
    assert content(run) == (["value"], rows)
    with run.open() as ports:
        record = next(iter(ports.ledger.ranges(ports.plan.plan_id)))
        with pytest.raises(SinkRefused, match="gets no column"):
            repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="me")
    assert content(run)[1] == rows


@pytest.mark.on_spark
@pytest.mark.long
@pytest.mark.statement("X1", "X6")
def test_a_transform_keeps_the_position_that_is_hidden(stage: Stage) -> None:  # noqa: F811
    """X1, X6: it does not go into the target, and a transform that drops it is refused when the run plans."""
    topic = stage.topic()
    topic.send(0, *({"name": str(number)} for number in range(5)), key=b"k")
    topic.send(0, {"name": "x"}, None, key=b"gone")
    reading = {"fields": {"name": "text"}, "key": "text", "columns": ("key", "name")}
    query = "SELECT *, upper(key) AS loud FROM source"
    run = stage.hydration(topic, mode="upsert", reading=reading, transform=query)
    run.go()
    assert content(run) == (["key", "name", "loud"], [("k", "4", "K")])
    lacking = "SELECT key, name, backpressure_partition, backpressure_tombstone FROM source"
    with pytest.raises(SinkRefused, match="backpressure_offset of each record does not arrive"):
        stage.hydration(topic, mode="upsert", reading=reading, transform=lacking).plan()


@pytest.fixture
def into_spark_table(
    request: pytest.FixtureRequest, kafka: Server, database: Endpoint, ledger_url: str, tmp_path: Path
) -> Iterator[Run]:
    """A topic into a table that Spark's own connector writes, of two columns."""
    cluster = request.getfixturevalue("lake_cluster")
    shared = request.getfixturevalue("stage")
    topic = shared.topic()
    topic.send(0, *({"id": number, "state": "new"} for number in range(5)))
    composed = ComposedKafka(
        source=endpoint_of(kafka),
        sink=database,
        ledger_url=ledger_url,
        remote=cluster.url,
        table=topic.name,
        budget=Budget(credits=2, range_rows=2),
        reading={"fields": {"id": "bigint", "state": "text"}, "columns": ("state", "id")},
        into=cluster.place("delta", topic.name),
    )
    logins = {"source": replace(composed.source, conn_id="source"), "sink": replace(composed.sink, conn_id="sink")}
    with closing(ConnectRunner(cluster.url, logins, ui_url=cluster.ui_url)) as runner:
        yield Run(composed=composed, stage=replace(shared, runner=runner))


@pytest.mark.on_spark
@pytest.mark.long
@pytest.mark.statement("K1")
def test_a_table_that_spark_writes_has_the_chosen_columns(
    into_spark_table: Run, request: pytest.FixtureRequest
) -> None:
    """K1: and is compared as a whole; an upsert is refused, as without a choice."""
    run = into_spark_table
    run.go()
    found = request.getfixturevalue("lake_cluster").read(run.composed.into)
    assert (found.column_names, sorted(found["id"].to_pylist())) == (["state", "id"], [0, 1, 2, 3, 4])
    assert run.verify().equal
    other = replace(run, composed=replace(run.composed, mode="upsert"))
    with pytest.raises((SinkRefused, RangeFailed)):
        other.plan(restart=True)
