"""Orders as JSON in a Kafka topic, and the comparison of its records with a copy on PostgreSQL."""

import hashlib
import json
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql

TOPIC, PARTITIONS = "orders", 4
SECONDS = 30.0
Fingerprint = tuple[int, int]


def fill(servers: str, *, records: int) -> None:
    """Create the topic with so many orders, once."""
    admin = AdminClient({"bootstrap.servers": servers})
    if TOPIC in admin.list_topics(timeout=SECONDS).topics:
        return
    for made in admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)]).values():
        made.result(SECONDS)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "enable.idempotence": True})
    for number in range(records):
        order = {"id": number, "customer": f"c{number % 1009}", "cents": number * 17 % 100_000, "note": "x" * 100}
        while True:
            try:
                producer.produce(TOPIC, json.dumps(order), key=str(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(SECONDS)


def fingerprint(servers: str) -> Fingerprint:
    """Return count and order-independent checksum of the topic's records, read by a plain client."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False})
    try:
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=SECONDS)[1]
            for number in range(PARTITIONS)
        }
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in ends])
        count, total = 0, 0
        while count < sum(ends.values()):
            records = consumer.consume(10_000, timeout=SECONDS)
            if not records:
                raise TimeoutError(f"{TOPIC} gave no further record within {SECONDS:g} s.")
            for record in records:
                count += 1
                total += _hash(record.partition(), record.offset(), (record.value() or b"").decode())
        return count, total % 2**64
    finally:
        consumer.close()


def copied(target: "psycopg.Connection[Any]", table: str) -> Fingerprint:
    """Return the same of the target."""
    schema, name = table.split(".")
    query = sql.SQL('SELECT partition, "offset", value::text FROM {}').format(sql.Identifier(schema, name))
    count, total = 0, 0
    with target.transaction(), target.cursor(name="copied") as rows:
        rows.itersize = 10_000
        rows.execute(query)
        for row in rows:
            count += 1
            total += _hash(*row)
    return count, total % 2**64


def _hash(partition: int, offset: int, value: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{partition} {offset} {value}".encode(), digest_size=8).digest())
