"""Orders as JSON in a Kafka topic, and the comparison of its records with a copy on PostgreSQL."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dev import fingerprints
from dev.fingerprints import Fingerprint

TOPIC, PARTITIONS = "orders", 4
BYTES = 150
"""Size of an order as JSON."""
SECONDS = 30.0
ERRORS = 3
"""Level of what the client writes to the terminal by itself: a coordinator that still loads is none."""
COPIED = """
    topic text NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL, "timestamp" timestamp with time zone,
    key bytea, headers json, value json"""
"""The columns of a copy on PostgreSQL."""


def fill(servers: str, *, records: int, topic: str = TOPIC, bytes: int = BYTES) -> None:
    """Create the topic with so many orders of so many bytes each (at least 100), once."""
    admin = AdminClient({"bootstrap.servers": servers})
    if topic in admin.list_topics(timeout=SECONDS).topics:
        return
    for made in admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)]).values():
        made.result(SECONDS)
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "enable.idempotence": True, "log_level": ERRORS}
    )
    for number in range(records):
        while True:
            try:
                producer.produce(topic, order(number, bytes), key=str(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if left := producer.flush(SECONDS):
        raise TimeoutError(f"{left} records of {topic} were not taken within {SECONDS:g} s.")


def fingerprint(servers: str, *, topic: str = TOPIC) -> Fingerprint:
    """Return count and order-independent checksum of the topic's records, read by a plain client."""
    return fingerprints.of_texts(
        f"{record.partition()} {record.offset()} {(record.value() or b'').decode()}"
        for record in _records(servers, topic)
    )


def copied(target: "psycopg.Connection[Any]", table: str) -> Fingerprint:
    """Return the same of the target."""
    schema, name = table.split(".")
    return fingerprints.in_postgres(target, schema, name, ("partition", "offset", "value"))


def _records(servers: str, topic: str) -> Iterator[Any]:
    """Yield all the records that are there now."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False})
    try:
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=SECONDS)[1]
            for number in range(PARTITIONS)
        }
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        left = sum(ends.values())
        while left > 0:
            records = consumer.consume(10_000, timeout=SECONDS)
            if not records:
                raise TimeoutError(f"{topic} gave no further record within {SECONDS:g} s.")
            left -= len(records)
            yield from records
    finally:
        consumer.close()


def order(number: int, bytes: int) -> str:
    """Return an order as JSON, filled up to so many bytes."""
    order = {"id": number, "customer": f"c{number % 1009}", "cents": number * 17 % 100_000, "note": ""}
    text = json.dumps(order)
    return text.replace('""', f'"{"x" * (bytes - len(text))}"')
