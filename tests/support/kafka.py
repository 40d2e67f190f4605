"""Doing things to a real Kafka directly, past the product."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.sources import KafkaSource
from dev.services import Server
from tests.support import waiting
from tests.support.composed import Composed

PASSWORD = "hunter2-is-secret"


def endpoint_of(server: Server, **changes: Any) -> Endpoint:
    """Return the endpoint of a broker."""
    values = {"conn_id": "test", "host": server.url, "port": 0, "database": "", "user": ""}
    return Endpoint(**{**values, **changes})


def login_of(server: Server, password: str) -> Endpoint:
    """Return the endpoint of a broker's listener that asks for a login."""
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    host = f"{server.host}:{server.login_port}"
    return endpoint_of(server, host=host, user=server.user or "", password=password, options=options)


@dataclass(kw_only=True)
class Topic:
    """A topic of its own."""

    servers: str
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:12]}")

    def create(self, partitions: int = 1, **config: str) -> "Topic":
        """Create it, with settings that have ``_`` for ``.``."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(self.name, num_partitions=partitions, replication_factor=1, config=settings)
        self._settle(self._admin.create_topics([new]))
        return self

    def delete(self) -> None:
        """Delete it and wait until it is gone."""
        self._settle(self._admin.delete_topics([self.name]))
        until(lambda: self.name not in self._admin.list_topics(timeout=10).topics)

    def grow(self, partitions: int) -> None:
        """Add partitions up to this number."""
        self._settle(self._admin.create_partitions([NewPartitions(self.name, partitions)]))
        until(lambda: len(self._admin.list_topics(timeout=10).topics[self.name].partitions) == partitions)

    def cut(self, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        self._settle(self._admin.delete_records([TopicPartition(self.name, partition, before)]))

    def configure(self, **config: str) -> None:
        """Change settings."""
        changes = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=changes)
        self._settle(self._admin.incremental_alter_configs([resource]))

    def send(self, partition: int, *records: Any, key: Any = None, **options: Any) -> None:
        """Write records; those that are no bytes as JSON."""
        with self.producing() as producer:
            self.put(producer, partition, *records, key=key, **options)

    def put(self, producer: Producer, partition: int, *records: Any, key: Any = None, **options: Any) -> None:
        """Hand records to a producer and wait until the broker has them."""
        for record in records:
            while True:
                try:
                    producer.produce(self.name, _bytes(record), _bytes(key), partition, **options)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0

    @contextmanager
    def producing(self, **config: Any) -> Iterator[Producer]:
        """Give a producer; flushed in the end."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        # Idempotence: a batch that is tried again must not fall behind later ones.
        patient = {"linger.ms": 5, "queue.buffering.max.messages": 500_000, "enable.idempotence": True}
        producer = Producer({**self._client, **patient, **settings})
        yield producer
        assert producer.flush(60) == 0

    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[Producer]:
        """Give a producer in a transaction, which is committed or aborted in the end."""
        # A slow machine must not let a transaction run out that a test keeps open.
        patient = {"transactional_id": uuid.uuid4().hex, "transaction_timeout_ms": 800_000}
        with self.producing(**patient) as producer:
            producer.init_transactions(30)
            producer.begin_transaction()
            yield producer
            if commit:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)

    def end(self, partition: int) -> int:
        """Return the offset behind a partition's last record or marker."""
        consumer = Consumer({**self._client, "group.id": "oracle"})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=10)[1])
        finally:
            consumer.close()

    def committed(self) -> dict[tuple[int, int], bytes | None]:
        """Return every committed record by partition and offset: an oracle of its own."""
        partitions = sorted(self._admin.list_topics(timeout=10).topics[self.name].partitions)
        settings = {
            **self._client,
            "group.id": "oracle",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        consumer, found, left = Consumer(settings), {}, set(partitions)
        places = [TopicPartition(self.name, partition) for partition in partitions]
        firsts = [consumer.get_watermark_offsets(place, timeout=10)[0] for place in places]
        consumer.assign(
            [TopicPartition(self.name, partition, first) for partition, first in zip(partitions, firsts, strict=True)]
        )
        while left:
            for message in consumer.consume(1000, 0.2):
                if message.error() is not None:
                    left.discard(message.partition())
                else:
                    found[message.partition(), message.offset()] = message.value()
        consumer.close()
        return found

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._client)

    @property
    def _client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers, "log_level": 0}

    @staticmethod
    def _settle(futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(30)


@dataclass(frozen=True, kw_only=True)
class ComposedKafka(Composed):
    """A hydration from a topic; ``table`` is the topic."""

    consistency: str = "offsets"

    def declared(self) -> KafkaSource:
        """See ``Composed.declared``."""
        return KafkaSource(conn_id="source", topic=self.table, **self.reading)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition."""

    def told() -> bool:
        with suppress(KafkaException):
            return condition()
        return False

    waiting.until(told, seconds)


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
