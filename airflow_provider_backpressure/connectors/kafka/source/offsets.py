"""Questions to a broker about one topic: its partitions and their offsets."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.connectors.kafka.connect import CONTROL, consumer
from airflow_provider_backpressure.connectors.kafka.metadata import SECONDS, Questions, open_client
from airflow_provider_backpressure.core.endpoints import Endpoint

if TYPE_CHECKING:
    from confluent_kafka import Message

ASSUMED_BYTES = 1024.0
"""Size of a record where none was seen."""
SAMPLED_PARTITIONS, SAMPLED_RECORDS = 8, 400
SAMPLE_STEP, SAMPLE_SECONDS = 0.2, 2.0
RECORD_BYTES = 60.0
"""What a record takes beside key and value."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """A topic's partitions at one moment; every mapping has all of them."""

    topic_id: str
    beginning: dict[int, int]
    """The first offset that is still there."""
    end: dict[int, int]
    """Behind the last offset whose fate is known: the last stable offset."""
    high: dict[int, int]
    """Behind the last offset that every replica has."""

    @property
    def open_offsets(self) -> int:
        """Offsets after the end, which belong to open transactions, or follow such."""
        return sum(self.high[partition] - self.end[partition] for partition in self.end)


@dataclass(frozen=True, kw_only=True)
class TopicLog:
    """The way to one topic. Errors: ``SourceRefused``, ``SourceUnavailable``."""

    endpoint: Endpoint
    topic: str

    def look(self) -> Log:
        """Return the topic as it is now."""
        from confluent_kafka import IsolationLevel, TopicCollection
        from confluent_kafka.admin import OffsetSpec

        committed, every = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        with self._open_client() as questions:
            topics = questions.client.describe_topics(TopicCollection([self.topic]), request_timeout=SECONDS)
            found = questions.answer(topics[self.topic])
            partitions = sorted(partition.id for partition in found.partitions)
            return Log(
                topic_id=str(found.topic_id),
                beginning=self._offsets(questions, partitions, OffsetSpec.earliest(), every),
                end=self._offsets(questions, partitions, OffsetSpec.latest(), committed),
                high=self._offsets(questions, partitions, OffsetSpec.latest(), every),
            )

    def at(self, time: datetime, log: Log) -> dict[int, int]:
        """Return the first offset from a time on, by partition; where there is none, the one behind all records.

        It may lie behind the end: earlier records of open transactions are before it.
        """
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.for_timestamp(int(time.timestamp() * 1000))
        with self._open_client() as questions:
            found = self._offsets(questions, log.end, spec, IsolationLevel.READ_UNCOMMITTED)
        return {partition: high if found[partition] < 0 else found[partition] for partition, high in log.high.items()}

    def record_bytes(self, starts: dict[int, int], ends: dict[int, int]) -> float:
        """Return the mean size of a few records in the middle of what is to be read."""
        from confluent_kafka import TopicPartition

        most = sorted(
            (partition for partition in ends if starts[partition] < ends[partition]),
            key=lambda each: starts[each] - ends[each],
        )
        places = [
            TopicPartition(self.topic, partition, (starts[partition] + ends[partition]) // 2)
            for partition in most[:SAMPLED_PARTITIONS]
        ]
        if not places:
            return ASSUMED_BYTES
        limits = {"fetch_message_max_bytes": 262144, "queued_max_messages_kbytes": 2048}
        with consumer(self.endpoint, CONTROL, **limits) as (client, _):
            client.assign(places)
            sizes, until = _sizes(client.consume(SAMPLED_RECORDS, SAMPLE_STEP)), time.monotonic() + SAMPLE_SECONDS
            while not sizes and time.monotonic() < until:
                sizes = _sizes(client.consume(SAMPLED_RECORDS, SAMPLE_STEP))
        return RECORD_BYTES + sum(sizes) / len(sizes) if sizes else ASSUMED_BYTES

    def _open_client(self) -> AbstractContextManager[Questions]:
        return open_client(self.endpoint, about=f"topic {self.topic}")

    def _offsets(self, questions: Questions, partitions: Iterable[int], spec: Any, isolation: Any) -> dict[int, int]:
        from confluent_kafka import TopicPartition

        asked = {TopicPartition(self.topic, partition): spec for partition in partitions}
        if not asked:
            return {}
        futures = questions.client.list_offsets(asked, isolation_level=isolation, request_timeout=SECONDS)
        return {place.partition: questions.answer(future).offset for place, future in futures.items()}


def _sizes(records: "list[Message]") -> list[int]:
    return [len(each.key() or b"") + len(each.value() or b"") for each in records if each.error() is None]
