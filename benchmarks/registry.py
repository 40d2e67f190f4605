"""What a record costs in the reader: Avro, Protobuf and JSON behind the ids of their schemas, beside other decoders.

`python -m benchmarks.registry --records 200000 --rounds 5`, without servers: batches of records as confluent-kafka
passes them on become columns of Arrow. Every way takes the same records, in turn; the figures are medians of CPU time.
The registry client has an environment of its own, since it needs packages that nothing else needs.
"""

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import pyarrow
from confluent_kafka import Message
from google.protobuf import json_format

from airflow_provider_backpressure.connectors.kafka.source.config import KafkaSource, columns_of
from airflow_provider_backpressure.connectors.kafka.source.formats import Avro, Format, JsonSchema, Protobuf
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import (
    AVRO,
    JSON,
    Version,
)
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import (
    PROTOBUF as PROTOBUF_TYPE,
)
from airflow_provider_backpressure.connectors.kafka.source.schema_versions import merge, to_columns
from airflow_provider_backpressure.connectors.kafka.tasks.record_batches import to_batch, to_decoders
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from benchmarks import machine, page, protobuf_records, report
from dev import environments

HEADING = "Records with a schema, in the reader"
ABOUT = """What a record of {avro} bytes in Avro, {protobuf} in Protobuf or {json} in JSON costs until it is a row of
Arrow's columns, in microseconds of CPU; {records:,} records in batches of {batch:,}. The nested record has {nested}
bytes, with a message, a list of {lines} messages and a list of texts in it, which become JSON:

```sh
{command}
```

Our ways hold all that the reader does with a record after Kafka's client: offset, time, key and headers, the
check of its schema's id, and the columns of its fields. "JSON with fields=" has no
registry. The other decoders make dictionaries or JSON of the value alone, and no columns yet."""
GOAL = "Avro takes {ours:.2f} µs; at most {most:g} are allowed."
MOST = 6.0
"""Microseconds of CPU that a record of Avro may take."""
BATCH = 10_000
SCHEMA_ID = 7
TOPIC = "orders"
PROTOBUF, NESTED = "ours, Protobuf", "ours, nested Protobuf"
LIBRARY = "Protobuf's own library, nested, to JSON"
OURS, PLAIN, WITH_ID = "ours, Avro", "ours, JSON with fields=", "ours, JSON behind a schema's id"
FASTAVRO, CLIENT = "fastavro, to dictionaries", "confluent-kafka's AvroDeserializer, to dictionaries"
FIELDS: Sequence[tuple[str, Any, str]] = (
    ("id", "long", "bigint"),
    ("customer", "string", "text"),
    ("state", {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "SENT"]}, "text"),
    ("amount", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}, "numeric(12,2)"),
    ("quantity", "int", "integer"),
    ("weight", "double", "double precision"),
    ("express", "boolean", "boolean"),
    ("day", {"type": "int", "logicalType": "date"}, "date"),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}, "timestamp with time zone"),
    ("note", ["null", "string"], "text"),
    ("parent", ["null", "long"], "bigint"),
    ("address", "string", "text"),
)
"""Name, Avro's type and PostgreSQL's."""
SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": name, "type": type_} for name, type_, _ in FIELDS]}
PROPERTIES = {
    "bigint": {"type": "integer"},
    "integer": {"type": "integer"},
    "double precision": {"type": "number"},
    "numeric(12,2)": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "timestamp with time zone": {"type": "string", "format": "date-time"},
    "text": {"type": "string"},
}
REQUIREMENT = f"confluent-kafka[avro,schemaregistry]=={version('confluent-kafka')}"
DESERIALIZE = """
import json, struct, sys, time
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

class Known(SchemaRegistryClient):
    def get_schema(self, *_, **__):
        return SCHEMA

schema, file = sys.argv[1:3]
SCHEMA = Schema(schema, "AVRO")
data, at, values = open(file, "rb").read(), 0, []
while at < len(data):
    (size,) = struct.unpack_from(">I", data, at)
    values.append(data[at + 4 : at + 4 + size])
    at += 4 + size
conf = {"subject.name.strategy": topic_subject_name_strategy}
deserializer = AvroDeserializer(Known({"url": "http://127.0.0.1:9"}), schema, conf=conf)
context = SerializationContext("orders", MessageField.VALUE)
first = deserializer(values[0], context)
assert first["id"] == 0 and first["state"] == "NEW", first
for _ in sys.stdin:
    begin = time.process_time()
    for value in values:
        deserializer(value, context)
    print(time.process_time() - begin, flush=True)
"""
"""Holds the values, and decodes all of them for each line that it is sent. The schema is known: no server is asked."""


def make_records(count: int) -> list[dict[str, Any]]:
    """Return records of every kind of field."""
    return [
        {
            "id": number,
            "customer": f"customer {number % 5000:05}",
            "state": ("NEW", "PAID", "SENT")[number % 3],
            "amount": Decimal(number % 10**6).scaleb(-2),
            "quantity": number % 50,
            "weight": number / 7,
            "express": number % 2 == 0,
            "day": date.fromordinal(738_000 + number % 1000),
            "at": datetime.fromtimestamp(1_700_000_000 + number, UTC).replace(microsecond=number % 10**6),
            "note": None if number % 3 else f"note of {number}, which is of some length",
            "parent": number - 1 if number % 4 else None,
            "address": f"{number % 900} Long Street, 10115 Berlin",
        }
        for number in range(count)
    ]


def to_avro(records: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return values as Confluent's serializer writes them."""
    schema, out, values = fastavro.parse_schema(SCHEMA), io.BytesIO(), []
    for record in records:
        out.seek(0)
        out.truncate()
        fastavro.schemaless_writer(out, schema, record)
        values.append(_head() + out.getvalue())
    return values


def to_json(records: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return values as JSON."""

    def plain(value: Any) -> Any:
        return float(value) if isinstance(value, Decimal) else value.isoformat()

    return [json.dumps(record, default=plain).encode() for record in records]


def to_messages(values: Sequence[bytes]) -> list[Message]:
    """Return records as the client passes them on."""
    return [
        Message(
            topic=TOPIC, partition=0, offset=offset, key=b"%d" % offset, value=value, timestamp=(1, 1_700_000_000_000)
        )
        for offset, value in enumerate(values)
    ]


def reader(
    format_: Format | None, type_: str = "", schema: str = ""
) -> Callable[[Sequence[Message]], pyarrow.RecordBatch]:
    """Return what makes a batch of records; without a format by declared fields."""
    fields = {name: kind for name, _, kind in FIELDS}
    if format_ is None:
        columns = columns_of(KafkaSource(conn_id="k", topic=TOPIC, fields=fields))
        return lambda records: to_batch(records, columns, TOPIC)
    known = Version(id=SCHEMA_ID, number=1, type=type_, schema=schema)
    pinned = merge(format_, f"{TOPIC}-value", ((known, format_.shape(known, "value")),))
    columns = columns_of(KafkaSource(conn_id="k", topic=TOPIC, value=format_), to_columns(pinned))
    spec = ReadSpec(kind="kafka", conn_id="k", columns=columns, decoding={"value": pinned.to_json()})
    decoders = to_decoders(spec)
    return lambda records: to_batch(records, columns, TOPIC, decoders=decoders)


def measure(count: int, rounds: int, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the microseconds of CPU that a record takes by each way, and the bytes of a value by format."""
    records = make_records(count)
    avro, plain = to_avro(records), to_json(records)
    framed = [_head() + value for value in plain]
    classes = protobuf_records.make_classes(folder)
    flat, nested = protobuf_records.to_flat(classes, records), protobuf_records.to_nested(classes, records)
    properties = {name: PROPERTIES[kind] for name, _, kind in FIELDS}
    json_schema = json.dumps({"type": "object", "properties": properties})
    ways: dict[str, Callable[[], float]] = {
        OURS: _timed(reader(Avro(registry_conn_id="r"), AVRO, json.dumps(SCHEMA)), to_messages(avro)),
        PLAIN: _timed(reader(None), to_messages(plain)),
        WITH_ID: _timed(reader(JsonSchema(registry_conn_id="r"), JSON, json_schema), to_messages(framed)),
        PROTOBUF: _timed(protobuf_reader(protobuf_records.FLAT), to_protobuf(flat, protobuf_records.FLAT)),
        NESTED: _timed(protobuf_reader(protobuf_records.NESTED), to_protobuf(nested, protobuf_records.NESTED)),
        FASTAVRO: _fastavro(avro),
        LIBRARY: _library(classes[protobuf_records.NESTED], nested),
    }
    check(records, reader(Avro(registry_conn_id="r"), AVRO, json.dumps(SCHEMA))(to_messages(avro[:BATCH])))
    found: dict[str, list[float]] = {way: [] for way in (*ways, CLIENT)}
    file = folder / "values"
    file.write_bytes(b"".join(len(value).to_bytes(4) + value for value in avro))
    python = environments.make(folder / "client", REQUIREMENT)
    with subprocess.Popen(
        [str(python), "-c", DESERIALIZE, json.dumps(SCHEMA), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as client:
        for _ in range(rounds):
            for way, go in ways.items():
                found[way].append(go())
            found[CLIENT].append(_ask(client))
        assert client.stdin is not None
        client.stdin.close()
    every = {"avro": avro, "json": plain, "protobuf": flat, "nested": nested}
    sizes = {name: sum(map(len, values)) / count for name, values in every.items()}
    return {way: median(seconds) / count * 1e6 for way, seconds in found.items()}, sizes


def protobuf_reader(name: str) -> Callable[[Sequence[Message]], pyarrow.RecordBatch]:
    """Return what makes a batch of records of a message."""
    return reader(Protobuf(registry_conn_id="r", message=name), PROTOBUF_TYPE, protobuf_records.SCHEMA)


def to_protobuf(values: Sequence[bytes], name: str) -> list[Message]:
    """Return records of a message as the client passes them on."""
    return to_messages([_head() + protobuf_records.PLACES[name] + value for value in values])


def check(records: Sequence[Mapping[str, Any]], batch: pyarrow.RecordBatch) -> None:
    """Raise ``AssertionError`` where the reader made another record than was written."""
    for name, _, _ in FIELDS:
        assert batch.column(name).to_pylist() == [record[name] for record in records[: batch.num_rows]], name


def _timed(
    make: Callable[[Sequence[Message]], pyarrow.RecordBatch], messages: Sequence[Message]
) -> Callable[[], float]:
    def go() -> float:
        begin = time.process_time()
        for start in range(0, len(messages), BATCH):
            make(messages[start : start + BATCH])
        return time.process_time() - begin

    return go


def _fastavro(values: Sequence[bytes]) -> Callable[[], float]:
    schema = fastavro.parse_schema(SCHEMA)

    def go() -> float:
        begin = time.process_time()
        for value in values:
            fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        return time.process_time() - begin

    return go


def _library(class_: Any, values: Sequence[bytes]) -> Callable[[], float]:
    def go() -> float:
        begin = time.process_time()
        for value in values:
            json_format.MessageToJson(class_.FromString(value), preserving_proto_field_name=True)
        return time.process_time() - begin

    return go


def _ask(client: "subprocess.Popen[str]") -> float:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write("\n")
    return float(client.stdout.readline())


def _head() -> bytes:
    return b"\0" + SCHEMA_ID.to_bytes(4)


def table(found: Mapping[str, float]) -> str:
    """Return the figures as Markdown."""
    rows = [(way, f"{micros:.2f}", f"{micros / found[OURS]:.1f}") for way, micros in found.items()]
    return report.markdown(("way", "µs a record", f"x {OURS}"), rows)


def main() -> int:
    """Measure and print; 2 where Avro takes more than it may."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.registry", description=__doc__)
    arguments.add_argument("--records", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="registry-benchmark-") as folder:
        found, sizes = measure(given.records, given.rounds, Path(folder))
    goal = GOAL.format(ours=found[OURS], most=MOST)
    print(table(found), goal, sep="\n\n")
    if given.write_docs:
        command = f"python -m benchmarks.registry --records {given.records} --rounds {given.rounds}"
        about = ABOUT.format(
            **{name: round(size) for name, size in sizes.items()},
            lines=protobuf_records.LINES,
            records=given.records,
            batch=BATCH,
            command=command,
        )
        described = machine.describe((), ("confluent-kafka", "fastavro", "numpy", "protobuf"))
        page.write(HEADING, "\n\n".join([about, table(found), goal, report.machine(described)]))
    return 2 if found[OURS] > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
