"""The channel over a topic of Kafka: for ledgers that are not on PostgreSQL.

A process hears the whole topic and keeps what it has subscribed to. No group, no offsets: who begins to listen begins
at the topic's end.
"""

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.channels.duplex import Duplex
from airflow_provider_backpressure.channels.sending import Message, Sender
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.polling import PollPolicy
from airflow_provider_backpressure.core.ports import Receiver
from airflow_provider_backpressure.core.push_counts import PushCounts
from airflow_provider_backpressure.exceptions import LedgerUnavailable
from airflow_provider_backpressure.kafka.clients import admin, consumer, producer
from airflow_provider_backpressure.kafka.errors import translated

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logging.getLogger(__name__)

NAME = "backpressure push"
BEAT_SECONDS = 5.0
"""Between two heartbeats, which every process sends to itself through the topic."""
ECHO_SECONDS = 10.0
"""How long one may take."""
IDLE_SECONDS = 10.0
"""How long the clients are kept while nobody waits."""
POLL_SECONDS = 0.1
ASK_SECONDS = 10.0
RETENTION = {"retention.ms": "600000", "segment.ms": "600000", "cleanup.policy": "delete"}
BACKOFF = PollPolicy(initial=0.2, factor=2.0, maximum=5.0)
LIMIT = 100_000
"""Most bytes of a message; a broker takes ten times as many unless told otherwise."""


class KafkaChannel(Duplex):
    """Sends and hears in threads of its own; see ``core.ports.Channel``. The topic is made where it is missing."""

    def __init__(self, receiver: Receiver, counts: PushCounts, *, endpoint: Endpoint, topic: str) -> None:
        sender = Sender(lambda: _Wire(endpoint, topic), counts, name="backpressure publish")
        super().__init__(sender, _Listener(receiver, counts, endpoint=endpoint, topic=topic), limit=LIMIT)


class _Wire:
    """A producer that waits for the broker's word; nobody waits for it but the sender's thread."""

    def __init__(self, endpoint: Endpoint, topic: str) -> None:
        self._endpoint, self._topic = endpoint, topic
        self._client, self._heard = producer(
            endpoint, NAME, linger_ms=0, acks=1, message_timeout_ms=5000, allow_auto_create_topics=True
        )

    def send(self, messages: Sequence[Message]) -> None:
        """See ``Wire.send``."""
        failures: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)

        for key, frame in messages:
            self._client.produce(self._topic, value=frame, key=key.encode(), on_delivery=delivered)
        left = self._client.flush(ASK_SECONDS)
        if failures:
            raise translated(failures[0], self._endpoint, heard=self._heard, about=f"topic {self._topic}")
        if left:
            raise LedgerUnavailable(f"Kafka did not take {left} messages within {ASK_SECONDS:g} s")

    def close(self) -> None:
        """See ``Wire.close``."""
        self._client.purge()
        self._client.flush(1.0)


class _Listener:
    """Hears the topic as long as anything is subscribed to."""

    def __init__(self, receiver: Receiver, counts: PushCounts, *, endpoint: Endpoint, topic: str) -> None:
        self._receiver, self._counts, self._endpoint, self._topic = receiver, counts, endpoint, topic
        # Heartbeats are counted by nobody.
        self._beats = Sender(lambda: _Wire(endpoint, topic), PushCounts(), name="backpressure heartbeat")
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        self._told: set[str] = set()
        """Those that were said to be subscribed since the channel became healthy."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._idle_since = 0.0
        self._own, self._token = uuid.uuid4().hex, ""
        self._sent, self._next_beat = 0.0, 0.0
        self.healthy = False

    def add(self, hydration_id: str) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._wanted.add(hydration_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backpressure listen", daemon=True)
                self._thread.start()

    def remove(self, hydration_id: str) -> None:
        with self._lock:
            self._wanted.discard(hydration_id)
            self._told.discard(hydration_id)
            self._idle_since = time.monotonic()

    def close(self) -> None:
        self._closed.set()
        self._beats.close()

    def _run(self) -> None:
        pauses, told = BACKOFF.waits(), False
        while not self._ended():
            try:
                self._create()
                with consumer(self._endpoint, NAME, enable_partition_eof=False) as (client, _):
                    self._seek_end(client)
                    self._listen(client)
            except Exception as error:
                # Whatever it is, the thread has to live: those that wait are polling meanwhile.
                log.debug("The listening client is lost.", exc_info=True)
                if self.healthy:
                    pauses, told = BACKOFF.waits(), False
                self._lose()
                if not told:
                    log.warning("Changes of the gate are not heard for now, so polling goes on: %s", error)
                told = True
                self._closed.wait(next(pauses))
        self.healthy = False

    def _ended(self) -> bool:
        with self._lock:
            if self._over:
                self._thread = None
            return self._over

    @property
    def _over(self) -> bool:
        idle = not self._wanted and time.monotonic() - self._idle_since >= IDLE_SECONDS
        return self._closed.is_set() or idle

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
            raise translated(found.error, self._endpoint, about=f"topic {self._topic}")
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

    def _listen(self, client: "Consumer") -> None:
        self._token, self._next_beat = "", 0.0
        while not self._over:
            self._beat(time.monotonic())
            self._tell()
            message = client.poll(POLL_SECONDS)
            if message is None or message.error() is not None:
                continue
            key, frame = (message.key() or b"").decode("ascii", "replace"), message.value() or b""
            if key == self._own:
                self._echoed(frame.decode("ascii", "replace"))
            elif key in self._wanted:
                self._receiver.heard(frame)

    def _beat(self, now: float) -> None:
        """Send a heartbeat where it is time, and notice that one has not come back."""
        if self._token and now - self._sent > ECHO_SECONDS:
            self._lose()
            self._token, self._next_beat = "", 0.0
        if not self._token and now >= self._next_beat:
            self._token, self._sent = uuid.uuid4().hex, now
            self._beats.put(self._own, self._token.encode())

    def _echoed(self, token: str) -> None:
        if token != self._token:
            return
        self._token, self._next_beat = "", time.monotonic() + BEAT_SECONDS
        if not self.healthy:
            self.healthy = True
            self._counts.add("connected")

    def _tell(self) -> None:
        """Say of what is wanted by now that it is heard from now on."""
        if not self.healthy:
            return
        with self._lock:
            new = self._wanted - self._told
            self._told |= new
        for hydration_id in new:
            self._receiver.subscribed(hydration_id)

    def _lose(self) -> None:
        if self.healthy:
            self.healthy = False
            self._told.clear()
            self._counts.add("lost")
            log.warning("Changes of the gate are not heard for now, so polling goes on.")
            self._receiver.lost()
