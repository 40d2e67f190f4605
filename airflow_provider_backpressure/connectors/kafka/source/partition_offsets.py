"""Questions to a broker about one topic: its partitions and their offsets."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_backpressure.connectors.kafka.cluster_metadata import SECONDS, Questions, open_client
from airflow_provider_backpressure.connectors.kafka.connect import CONTROL, consumer
from airflow_provider_backpressure.connectors.kafka.errors import translate_error
from airflow_provider_backpressure.connectors.kafka.headers import UNREADABLE, list_headers
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SourceUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

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

    def config(self) -> dict[str, str]:
        """Return the topic's configuration; ``SourceRefused`` where the role may not see it."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        topic = ConfigResource(ResourceType.TOPIC, self.topic)
        with self._open_client() as questions:
            asked = questions.client.describe_configs([topic], request_timeout=SECONDS)
            return {name: entry.value for name, entry in questions.answer(asked[topic]).items()}

    def at(self, time: datetime, log: Log) -> dict[int, int]:
        """Return the first offset from a time on, by partition; where there is none, the one behind all records.

        It may lie behind the end: earlier records of open transactions are before it.
        """
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.for_timestamp(to_millis(time))
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


_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def to_millis(time: datetime) -> int:
    """Return the first millisecond that is not earlier than a time."""
    return -((_EPOCH - time) // _MILLISECOND)


def _sizes(records: "list[Message]") -> list[int]:
    return [len(each.key() or b"") + len(each.value() or b"") for each in records if each.error() is None]


UNKNOWN_EPOCH = -1
"""Of a record whose broker keeps no leader epochs."""
REACHES = (2, 64)
"""How many offsets before the end are looked through: a record and the marker of its transaction, then more of them."""
PATIENCE = 30.0
"""Seconds without a record or an end after which a broker counts as gone."""
STEP = 0.1
"""Seconds that the client waits for records at a time."""
FETCHED = 65536
"""Bytes of each partition that are fetched at a time."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A record by what no other record at its offset has. Written as ``<offset>@<epoch>/<digest>``."""

    offset: int
    epoch: int
    digest: str

    def __str__(self) -> str:
        """Return the text that a window keeps."""
        return f"{self.offset}@{self.epoch}/{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` wrote."""
        offset, _, rest = text.partition("@")
        epoch, _, digest = rest.partition("/")
        return cls(offset=int(offset), epoch=int(epoch), digest=digest)

    @classmethod
    def from_record(cls, record: "Message") -> Self:
        """Return the mark of a record."""
        epoch = record.leader_epoch()
        (found,) = list_headers([record])
        # Names that the client cannot read make no difference: such records differ by all else.
        headers = None if found is UNREADABLE else [[name, _hex(value)] for name, value in found or ()]
        text = json.dumps([record.timestamp(), headers, _hex(record.key()), _hex(record.value())])
        return cls(
            offset=record.offset(),
            epoch=UNKNOWN_EPOCH if epoch is None else epoch,
            digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        )

    def is_of(self, other: "Mark") -> bool:
        """Whether both are of one record."""
        known = UNKNOWN_EPOCH not in (self.epoch, other.epoch)
        return self.digest == other.digest and (self.epoch == other.epoch or not known)


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Reads the marks of one topic's records. Errors: ``SourceRefused``, ``SourceUnavailable``."""

    endpoint: Endpoint
    topic: str

    def read(self, beginning: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, Mark]:
        """Return the mark of the last record before the end of each partition.

        A partition is left out where the last offsets have no record, or hold none any more.
        """
        found: dict[int, Mark] = {}
        for reach in REACHES:
            places = {
                partition: _Place(start=max(beginning[partition], end - reach), end=end)
                for partition, end in ends.items()
                if partition not in found and beginning[partition] < end
            }
            records, _ = self._fetch(places)
            found |= {partition: Mark.from_record(record) for partition, record in records.items()}
        return found

    def find_others(self, marks: Mapping[int, Mark]) -> list[int]:
        """Return the partitions in which another record is where a mark's was, or the log was cut off before it."""
        places = {partition: _Place(start=mark.offset, end=mark.offset + 1) for partition, mark in marks.items()}
        records, _ = self._fetch(places)
        others = {at for at, record in records.items() if not Mark.from_record(record).is_of(marks[at])}
        # Where the record is gone, the leader epochs say whether the log after it continues from it.
        gone = {at: mark for at, mark in marks.items() if at not in records and mark.epoch != UNKNOWN_EPOCH}
        behind = {at: _Place(start=mark.offset + 1, end=mark.offset + 1, epoch=mark.epoch) for at, mark in gone.items()}
        return sorted(others | self._fetch(behind)[1])

    def _fetch(self, places: "Mapping[int, _Place]") -> "tuple[dict[int, Message], set[int]]":
        """Return the last record of each place, and the partitions that were cut off by their leader epochs.

        Also records of transactions that were aborted: they are in the log as others are.
        """
        found: dict[int, Message] = {}
        truncated: set[int] = set()
        if not places:
            return found, truncated
        left, until = set(places), time.monotonic() + PATIENCE
        settings = {
            "isolation_level": "read_uncommitted",
            "max_partition_fetch_bytes": FETCHED,
            "queued_min_messages": 1,
        }
        with consumer(self.endpoint, CONTROL, **settings) as (client, heard):
            client.assign([place.at(self.topic, partition) for partition, place in places.items()])
            while left and time.monotonic() < until and heard.login is None:
                for record in client.consume(64, STEP):
                    partition, error = record.partition(), record.error()
                    if partition not in left:
                        continue
                    if error is None and record.offset() < places[partition].end:
                        found[partition] = record
                    elif error is not None and not _is_end(error):
                        raise translate_error(error, self.endpoint, heard=heard, about=f"topic {self.topic}")
                    elif error is not None and _is_truncation(error):
                        truncated.add(partition)
                    if error is not None or record.offset() + 1 >= places[partition].end:
                        left.discard(partition)
                        until = time.monotonic() + PATIENCE
                        _pause(client, self.topic, partition)
            if heard.login is not None:
                raise translate_error(heard.login, self.endpoint, heard=heard, about=f"topic {self.topic}")
        if left:
            raise SourceUnavailable(f"{len(left)} partitions of topic {self.topic} gave no record for {PATIENCE:g} s.")
        return found, truncated


@dataclass(frozen=True, kw_only=True)
class _Place:
    start: int
    end: int
    epoch: int | None = None
    """With it the client asks the broker, before the first fetch, whether the log of that epoch reaches the start."""

    def at(self, topic: str, partition: int) -> Any:
        from confluent_kafka import TopicPartition

        if self.epoch is None:
            return TopicPartition(topic, partition, self.start)
        return TopicPartition(topic, partition, self.start, leader_epoch=self.epoch)


def _pause(client: "Consumer", topic: str, partition: int) -> None:
    from confluent_kafka import TopicPartition

    client.pause([TopicPartition(topic, partition)])


def _is_end(error: "KafkaError") -> bool:
    """Whether a partition has nothing more at this place: it ends, or the place is no longer in its log."""
    return error.name() in ("_PARTITION_EOF", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


def _is_truncation(error: "KafkaError") -> bool:
    """Whether the client says that the log was cut off; it names that cause within its error about a lost place."""
    from confluent_kafka import KafkaError

    return error.name() == "_AUTO_OFFSET_RESET" and KafkaError(KafkaError._LOG_TRUNCATION).str() in error.str()


def _hex(value: "bytes | str | None") -> str | None:
    return value.encode().hex() if isinstance(value, str) else None if value is None else value.hex()
