"""Marks of records: whether the log at an offset is the one that was read, or another one that has grown past it.

Offsets cannot show that. The last record before the end of a plan can: its leader epoch, time, key, headers and value.
Where compaction or retention removed that record, the broker's list of leader epochs is left to ask.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_backpressure.connectors.kafka.connect import CONTROL, consumer
from airflow_provider_backpressure.connectors.kafka.errors import translate_error
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SourceUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

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
        headers = [[name, _hex(value)] for name, value in record.headers() or ()]
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
