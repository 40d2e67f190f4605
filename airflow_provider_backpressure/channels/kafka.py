"""The channel over a topic of Kafka: for ledgers that are not on PostgreSQL.

A process hears the whole topic and keeps what it has subscribed to. No group, no offsets: who begins to listen begins
at the topic's end.
"""

import logging
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.channels.listener_and_sender import Duplex, ListenerThread, Message, Pulse, Sender
from airflow_provider_backpressure.connectors.kafka.connect import admin, consumer, producer
from airflow_provider_backpressure.connectors.kafka.errors import translate_error
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Receiver
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from airflow_provider_backpressure.exceptions import LedgerUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logging.getLogger(__name__)

NAME = "backpressure push"
BEAT_SECONDS = 5.0
"""Between two heartbeats, which every process sends to itself through the topic."""
ECHO_SECONDS = 10.0
POLL_SECONDS = 0.1
ASK_SECONDS = 10.0
RETENTION = {"retention.ms": "600000", "segment.ms": "600000", "cleanup.policy": "delete"}
LIMIT = 100_000
"""Most bytes of a message; a broker takes ten times as many by default."""


class KafkaChannel(Duplex):
    """Sends and hears in threads of its own; see ``core.ports.Channel``. The topic is made where it is missing."""

    def __init__(self, receiver: Receiver, counts: PushCounts, *, endpoint: Endpoint, topic: str) -> None:
        sender = Sender(lambda: _Wire(endpoint, topic), counts, name="backpressure publish")
        super().__init__(sender, _Listener(receiver, counts, endpoint=endpoint, topic=topic), limit=LIMIT)


class _Wire:
    """A producer that waits for the broker's answer; only the sender's thread waits for it. Implements ``Wire``."""

    def __init__(self, endpoint: Endpoint, topic: str) -> None:
        self._endpoint, self._topic = endpoint, topic
        self._client, self._heard = producer(
            endpoint, NAME, linger_ms=0, acks=1, message_timeout_ms=5000, allow_auto_create_topics=True
        )

    def send(self, messages: Sequence[Message]) -> None:
        failures: list[Any] = []

        def log_delivery(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)

        for key, frame in messages:
            self._client.produce(self._topic, value=frame, key=key.encode(), on_delivery=log_delivery)
        left = self._client.flush(ASK_SECONDS)
        if failures:
            raise translate_error(failures[0], self._endpoint, heard=self._heard, about=f"topic {self._topic}")
        if left:
            raise LedgerUnavailable(f"Kafka did not take {left} messages within {ASK_SECONDS:g} s")

    def close(self) -> None:
        self._client.purge()
        self._client.flush(1.0)


class _Listener(ListenerThread):
    """Hears the topic. Its client reconnects by itself, so a missing heartbeat is only logged."""

    def __init__(self, receiver: Receiver, counts: PushCounts, *, endpoint: Endpoint, topic: str) -> None:
        super().__init__(receiver, counts)
        self._endpoint, self._topic, self._own = endpoint, topic, uuid.uuid4().hex
        # Heartbeats are not counted.
        self._beats = Sender(lambda: _Wire(endpoint, topic), PushCounts(), name="backpressure heartbeat")

    def close(self) -> None:
        super().close()
        self._beats.close()

    def _listen(self) -> None:
        self._create()
        with consumer(self._endpoint, NAME, enable_partition_eof=False) as (client, _):
            self._seek_end(client)
            self._hear(client)

    def _create(self) -> None:
        """Make the topic where it is missing; who has no right to may find it made."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        with admin(self._endpoint) as (client, _):
            new = NewTopic(self._topic, num_partitions=1, replication_factor=-1, config=RETENTION)
            try:
                client.create_topics([new], request_timeout=ASK_SECONDS)[self._topic].result(ASK_SECONDS)
            except KafkaException as error:
                log.debug("The topic %s was not made: %s", self._topic, error)

    def _seek_end(self, client: "Consumer") -> None:
        from confluent_kafka import TopicPartition

        found = client.list_topics(self._topic, timeout=ASK_SECONDS).topics[self._topic]
        if found.error is not None:
            raise translate_error(found.error, self._endpoint, about=f"topic {self._topic}")
        client.assign(
            [
                TopicPartition(
                    self._topic,
                    number,
                    client.get_watermark_offsets(TopicPartition(self._topic, number), timeout=ASK_SECONDS)[1],
                )
                for number in found.partitions
            ]
        )

    def _hear(self, client: "Consumer") -> None:
        pulse = Pulse(beat=BEAT_SECONDS, echo=ECHO_SECONDS)
        while not self.over:
            now = time.monotonic()
            if missing := pulse.is_overdue(now):
                self.lose(f"the echo of a heartbeat did not come within {ECHO_SECONDS:g} s")
            if missing or pulse.due(now):
                self._beats.put(self._own, pulse.begin(now).encode())
            wanted = self.get_wanted()
            self.tell(wanted)
            message = client.poll(POLL_SECONDS)
            if message is None or message.error() is not None:
                continue
            key, frame = (message.key() or b"").decode("ascii", "replace"), message.value() or b""
            if key in wanted:
                self.receiver.heard(frame)
            elif key == self._own and pulse.back(frame.decode("ascii", "replace")):
                self.alive()
