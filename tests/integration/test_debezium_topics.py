"""Change events of Debezium on a real broker into a real PostgreSQL: the target is what a model of the log says."""

import base64
import json
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import NewColumn
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed, SourceRefused
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.sources import Avro, Debezium
from dev.services import Server
from tests.conftest import fresh_database
from tests.integration.test_kafka_source import Run, Stage
from tests.support.kafka import Topic, endpoint_of
from tests.support.local_runner import LocalRunner
from tests.support.registry import CONN_ID, Subject, avro_record
from tests.support.registry import endpoint_of as registry_endpoint

pytestmark = [pytest.mark.integration, pytest.mark.statement("R3")]

FIELDS = {"id": "bigint", "price": "numeric(12,2)", "placed_at": "timestamp", "day": "date", "tags": "text[]"}
TIME, DECIMAL = "io.debezium.time.", "org.apache.kafka.connect.data.Decimal"
ROW = [
    {"field": "id", "type": "int64", "optional": False},
    {"field": "price", "type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}, "optional": True},
    {"field": "placed_at", "type": "int64", "name": f"{TIME}MicroTimestamp", "optional": True},
    {"field": "day", "type": "int32", "name": f"{TIME}Date", "optional": True},
    {"field": "tags", "type": "array", "items": {"type": "string", "optional": True}, "optional": True},
]
FLAGS = [{"field": name, "type": "string", "optional": True} for name in ("__op", "__deleted")]
EPOCH = datetime(1970, 1, 1)


def struct(*fields: Any, **more: Any) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "struct", "fields": list(fields), "optional": True, **more}


SCHEMAS = {
    "key": struct(ROW[0]),
    "envelope": struct(struct(*ROW, field="before"), struct(*ROW, field="after"), {"field": "op", "type": "string"}),
    "flattened": struct(*ROW, *FLAGS),
}
AVRO_ROW = [
    {"name": "id", "type": "long"},
    {
        "name": "price",
        "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}],
    },
    {"name": "placed_at", "type": ["null", {"type": "long", "connect.name": f"{TIME}MicroTimestamp"}]},
    {"name": "day", "type": ["null", {"type": "int", "connect.name": f"{TIME}Date"}]},
]


def avro(name: str, *fields: Any) -> dict[str, Any]:
    """Return the schema of a record in Avro."""
    return {"type": "record", "name": name, "fields": list(fields)}


AVRO_SCHEMAS = {
    "key": avro("Key", AVRO_ROW[0]),
    "envelope": avro(
        "Envelope",
        {"name": "before", "type": ["null", avro("Value", *AVRO_ROW)]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ),
    "flattened": avro("Value", *AVRO_ROW, *({"name": each["field"], "type": ["null", "string"]} for each in FLAGS)),
}
Row = tuple[int, Decimal | None, datetime | None, date | None, list[str | None] | None]


@dataclass(kw_only=True)
class Connector:
    """Writes random changes of a table into a topic as Debezium does, and knows what is in the table."""

    topic: Topic
    rng: random.Random
    form: str
    """``schema``: JSON with its schema; ``bare``: JSON without; ``avro``."""
    flattened: bool = False
    ids: dict[str, int] = field(default_factory=dict)
    """Of the schemas in a registry."""
    table: dict[int, Row] = field(default_factory=dict)
    partitions: int = 2

    def write(self, changes: int) -> None:
        """Write so many changes, each with all of its records."""
        with self.topic.producing() as producer:
            for _ in range(changes):
                for number, value in self._change():
                    key, partition = self._text({"id": number}, "key"), number % self.partitions
                    producer.produce(self.topic.name, value, key, partition)

    def _change(self) -> Iterator[tuple[int, bytes | None]]:
        number = self.rng.randrange(40)
        before = self.table.get(number)
        if before is None:
            after = self.table[number] = self._row(number)
            yield number, self._event(self.rng.choice("cr"), None, after)
        elif self.rng.random() < 0.5:
            after = self.table[number] = self._row(number)
            # A snapshot that is taken again sends rows that are there already.
            yield number, self._event(self.rng.choice("uuur"), self.rng.choice([None, before]), after)
        else:
            yield from self._delete(number)
            if self.rng.random() < 0.3:
                # The row's key is changed: Debezium deletes it, and creates another one.
                other = self.rng.choice([each for each in range(60) if each not in self.table])
                after = self.table[other] = self._row(other)
                yield other, self._event("c", None, after)

    def _delete(self, number: int) -> Iterator[tuple[int, bytes | None]]:
        before = self.table.pop(number)
        known = self.rng.choice([before, (number, None, None, None, None), None])
        # Of a compacted topic the tombstone may be all that is left.
        records = self.rng.choice(["both", "both", "event", "tombstone"])
        if records != "tombstone":
            yield number, self._event("d", known or (number, None, None, None, None) if self.flattened else known, None)
        if records != "event":
            yield number, None

    def _row(self, number: int) -> Row:
        rng = self.rng
        moment = EPOCH + timedelta(microseconds=rng.randrange(-(2**55), 2**55))
        row: Row = (
            number,
            Decimal(rng.randrange(-(10**12) + 1, 10**12)).scaleb(-2),
            moment,
            moment.date(),
            rng.choice([[], ["a", None], ['"x"', "{y}", "\\", "ж"]]),
        )
        return row if rng.random() < 0.8 else (number, None, None, None, None)

    def _event(self, op: str, before: Row | None, after: Row | None) -> bytes:
        if not self.flattened:
            value = {"before": self._json(before), "after": self._json(after), "source": {"lsn": 1}, "op": op}
            return self._text(value, "envelope")
        row = self._json(after or before) or {}
        flags = self.rng.choice([{"__op": op}, {"__deleted": "true" if op == "d" else "false"}])
        return self._text({**row, "__op": None, "__deleted": None, **flags}, "flattened")

    def _json(self, row: Row | None) -> dict[str, Any] | None:
        if row is None:
            return None
        number, price, moment, day, tags = row
        values: list[Any] = [number, price, moment, day, tags]
        if moment is not None and price is not None and day is not None:
            if self.form == "bare":
                values[1:4] = [f"{price:f}", f"{moment.isoformat()}Z", f"{day.isoformat()}Z"]
            else:
                values[2:4] = [(moment - EPOCH) // timedelta(microseconds=1), (day - EPOCH.date()).days]
            if self.form == "schema":
                cents = int(price.scaleb(2))
                raw = cents.to_bytes((cents.bit_length() + 8) // 8, "big", signed=True)
                values[1] = base64.b64encode(raw).decode()
        return dict(zip(FIELDS, values, strict=True))

    def _text(self, value: Any, schema: str) -> bytes:
        if self.form == "avro":
            return avro_record(AVRO_SCHEMAS[schema], value, self.ids[schema])
        whole = {"schema": SCHEMAS[schema], "payload": value} if self.form == "schema" else value
        return json.dumps(whole, separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def stage(kafka: Server, postgres: Server) -> Iterator[Stage]:
    """What the module's tests share. The reader and the writer run in this process: they need no Spark."""
    logins: dict[str, Endpoint] = {}
    with fresh_database(postgres) as database, closing(LocalRunner(logins=logins)) as runner:
        logins["sink"] = replace(database, conn_id="sink")
        url = f"postgresql+psycopg://{database.user}:{database.password}@{database.address}"
        migrate(url)
        yield Stage(kafka=kafka, database=database, runner=runner, spark=lambda: runner, logins=logins, ledger_url=url)


def go(run: Run, stage: Stage, *key: str) -> None:
    """Plan and drain the next run by a key."""
    with run.composed.open(stage.runner) as ports:
        replace(ports.planner(), key=key).plan()
    run.drain()


def to_shown(row: Row) -> tuple[Any, ...]:
    """Return a row as PostgreSQL shows it."""
    number, price, moment, day, tags = row
    at = None if moment is None else moment.isoformat(sep=" ", timespec="microseconds").rstrip("0").removesuffix(".")
    return number, price, at, None if day is None else day.isoformat(), tags


def hydrate(stage: Stage, connector: Connector, names: list[str], key: tuple[str, ...], **changes: Any) -> None:
    """Compare the target with the table in two runs, each of several ranges."""
    run = stage.hydration(connector.topic, mode="upsert", range_rows=70, **changes)
    for _ in range(2):
        connector.write(150)
        go(run, stage, *key)
        assert run.rows(", ".join(names)) == sorted(to_shown(each)[: len(names)] for each in connector.table.values())
        assert run.verify().equal


def generator() -> random.Random:
    """Return a generator of which a failure shows the seed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize(
    ("form", "flattened", "key"),
    [
        ("schema", False, ("id",)),
        ("schema", False, ()),
        ("bare", False, ("id",)),
        ("schema", True, ()),
        ("bare", True, ("id",)),
    ],
)
def test_the_target_is_the_table_whose_changes_the_topic_holds(
    stage: Stage,
    form: str,
    flattened: bool,
    key: tuple[str, ...],
) -> None:
    """R3: random creates, updates, deletes, snapshots, moved keys and tombstones."""
    connector = Connector(topic=stage.topic(2), rng=generator(), form=form, flattened=flattened)
    envelope = Debezium(flattened=flattened, decimal_handling_mode="string" if form == "bare" else "precise")
    hydrate(stage, connector, list(FIELDS), key, reading={"fields": FIELDS, "envelope": envelope})


@pytest.mark.parametrize("flattened", [False, True])
def test_changes_in_avro_make_the_same_table(stage: Stage, registry: Server, flattened: bool) -> None:
    """R1, R3: by schemas of a real registry."""
    topic = stage.topic(2)
    subjects = {name: Subject(server=registry, name=f"{topic.name}-{name}") for name in ("key", "value")}
    value = "flattened" if flattened else "envelope"
    ids = {"key": subjects["key"].register(AVRO_SCHEMAS["key"])}
    ids[value] = subjects["value"].register(AVRO_SCHEMAS[value])
    connector = Connector(topic=topic, rng=generator(), form="avro", flattened=flattened, ids=ids)
    avro_ = Avro(registry_conn_id=CONN_ID)
    reading = {"value": avro_, "key": avro_, "envelope": Debezium(flattened=flattened)}
    endpoint = endpoint_of(stage.kafka, related={CONN_ID: registry_endpoint(registry)})
    hydrate(stage, connector, list(FIELDS)[:4], ("id",), reading=reading, endpoint=endpoint)


def test_a_column_that_was_added_with_a_default_stops_the_run(stage: Stage, registry: Server) -> None:
    """R3: committed rows have the default in the source, without an event; a restart reads them all with it."""
    topic = stage.topic()
    value, key = (Subject(server=registry, name=f"{topic.name}-{name}") for name in ("value", "key"))
    key_id = key.register(AVRO_SCHEMAS["key"])

    def send(number: int, *added: Any, **more: Any) -> None:
        row = avro("Value", AVRO_ROW[0], *added)
        after, op = {"name": "after", "type": ["null", "Value"]}, {"name": "op", "type": "string"}
        schema = avro("Envelope", {"name": "before", "type": ["null", row]}, after, op)
        sent = avro_record(schema, {"op": "c", "after": {"id": number, **more}}, value.register(schema))
        topic.send(0, sent, key=avro_record(AVRO_SCHEMAS["key"], {"id": number}, key_id))

    def plan(restart: bool = False) -> None:
        with run.composed.open(stage.runner) as ports:
            replace(ports.planner(), key=("id",), on_new_column=NewColumn.ADD).plan(restart=restart)

    avro_ = Avro(registry_conn_id=CONN_ID)
    reading = {"value": avro_, "key": avro_, "envelope": Debezium()}
    endpoint = endpoint_of(stage.kafka, related={CONN_ID: registry_endpoint(registry)})
    run = stage.hydration(topic, mode="upsert", reading=reading, endpoint=endpoint)
    note = {"name": "note", "type": ["null", "string"], "default": None}
    send(1)
    plan()
    run.drain()
    send(2, note, note="x")
    plan()
    run.drain()
    assert run.rows("id, note") == [(1, None), (2, "x")], "a default of NULL is what the rows have"
    send(3, note, {"name": "x", "type": "int", "default": 5}, note=None, x=7)
    with pytest.raises(SourceRefused, match=r"column x was added with a default, .* nobody has changed.*restart"):
        plan()
    run.sql("ALTER TABLE {} ADD COLUMN x integer")
    plan(restart=True)
    run.drain()
    assert run.rows("id, note, x") == [(1, None, 5), (2, "x", 5), (3, None, 7)]


def test_what_is_no_change_of_a_row_stops_the_run_or_is_put_aside(stage: Stage) -> None:
    """R3: by partition and offset; what is around it arrives."""
    topic = stage.topic()
    topic.send(0, {"op": "c", "after": {"id": 1}}, key={"id": 1})
    topic.send(0, {"op": "t"})
    topic.send(0, {"op": "c", "after": {"id": 2}}, key={"id": 2})
    reading = {"fields": {"id": "bigint"}, "envelope": Debezium()}
    run = stage.hydration(topic, mode="upsert", reading=reading)
    with pytest.raises((SourceRefused, RangeFailed), match=r"offset 1 of partition 0 .* its op is"):
        go(run, stage, "id")
    kept = replace(run, composed=replace(run.composed, quarantine=1, target=f"raw.{topic.name}q"))
    go(kept, stage, "id")
    assert kept.rows("id, key") == [(1, b'{"id": 1}'), (2, b'{"id": 2}')]
    ((place, reason),) = kept.sql(
        "SELECT key::json->>'offset', reason FROM raw.backpressure_quarantine WHERE target = '{}'"
    )
    assert (place, reason.partition(":")[0]) == ("1", "its op is t")


def test_change_events_are_not_appended(stage: Stage) -> None:
    """R3: a delete would be a row more."""
    topic = stage.topic()
    topic.send(0, {"op": "d", "before": {"id": 1}}, key={"id": 1})
    run = stage.hydration(topic, reading={"fields": {"id": "bigint"}, "envelope": Debezium()})
    with pytest.raises(InvalidDeclaration, match="Use mode='upsert'"):
        run.plan()
