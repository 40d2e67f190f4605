"""Records of a topic as typed Arrow batches: exactly the offsets of a range, and done by position.

Markers of transactions, aborted records and compacted ones leave offsets without a record. So a partition is done when
a record at or behind its end was seen, or when the client reports the end of the committed records.
"""

import gc
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow

from airflow_provider_backpressure.connectors.kafka import cluster_metadata as identity
from airflow_provider_backpressure.connectors.kafka.cluster_metadata import open_client
from airflow_provider_backpressure.connectors.kafka.connect import NEEDED, SUBSTITUTE, consumer
from airflow_provider_backpressure.connectors.kafka.errors import Failure, Heard, loss, translate_error, where
from airflow_provider_backpressure.connectors.kafka.tasks import key_parts
from airflow_provider_backpressure.connectors.kafka.tasks.record_batches import (
    to_batch,
    to_batch_with_bad,
    to_decoders,
    to_events,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds, Part, Piece, bounds_from_json
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused, SourceUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds without a record or an end after which the broker counts as gone."""
WAIT = 0.1
"""Seconds for which a batch is waited for before it is taken as it is."""
BATCH_BYTES, MOST_RECORDS, FIRST_RECORDS = 4 * 2**20, 10_000, 500
"""A batch holds as many records as are about so many bytes."""
BUFFERS: dict[str, Any] = {
    # Read ahead of the batch that is being turned into rows; the fetch's own size bounds each partition's part of it.
    "queued_max_messages_kbytes": 16384,
    "queued_min_messages": 50_000,
    "fetch_message_max_bytes": 2 * 2**20,
    "fetch_max_bytes": 16 * 2**20,
    # How long a topic that is not there is taken for one that is just being made.
    "topic_metadata_propagation_max_ms": 5000,
}


def read(source: Endpoint, read: ReadSpec, piece: Slice, name: str) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of a slice. See :class:`..spark.readers_and_writers.Reader`.

    Raises ``SourceRefused`` for a value that is not what its column says, where offsets of the slice are gone, and
    where the topic is another one than planned. An id is never used again: if it is the planned one behind the last
    record, every record was of the planned topic.
    """
    bounds = bounds_from_json(dict(piece.bounds))
    if not isinstance(bounds, OffsetBounds):
        raise InvalidDeclaration(f"A topic is read by offsets, not by {bounds}.")
    what = json.loads(piece.query)
    seen = source.for_executors()
    opened, identified, place = _library()
    with opened(seen, name) as (client, heard), identified(seen, what, name) as check:
        check()
        reading = _Reading(
            client=client,
            place=place,
            heard=heard,
            endpoint=seen,
            topic=what["topic"],
            accept_loss=what["accept_loss"],
        )
        make = partial(
            to_batch_with_bad if read.keep_bad else partial(to_batch, trusts=read.trusts),
            columns=read.columns,
            topic=what["topic"],
            null_times=what.get("null_timestamps", False),
            decoders=to_decoders(read),
            events=to_events(read),
            marks=read.marks_tombstones,
            by_field=what.get("fields", False),
        )
        found, wanted = reading.records(bounds.pieces), _Wanted(read=read, part=bounds.part)
        while True:
            with _pause_garbage_collection():
                records = next(found, None)
                if records is None:
                    break
                records = wanted.select_records(records)
                batch = wanted.select_rows(make(records)) if records else None
                del records
            if batch is not None:
                yield batch
        check()


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Chooses the records of a slice's part, as early as its key is known."""

    read: ReadSpec
    part: Part | None

    def select_records(self, records: "list[Message]") -> "list[Message]":
        """Return those that are of the part, or may be."""
        if self.part is None or not key_parts.goes_by_bytes(self.read):
            return records
        return key_parts.select_records(records, self.part)

    def select_rows(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return the rows that are of the part."""
        if self.part is None or key_parts.goes_by_bytes(self.read):
            return batch
        return key_parts.select_rows(batch, self.read, self.part)


def _library() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return how a consumer and the check of the topic are opened and what names a place, by the library that is here.

    One that is there and cannot be loaded counts as missing.
    """
    try:
        from confluent_kafka import TopicPartition
    except ImportError:
        log.warning("%s is missing here: kafka-python reads instead, %s.", NEEDED, SUBSTITUTE.cost)
        from airflow_provider_backpressure.connectors.kafka.tasks import kafka_python_client

        return kafka_python_client.consumer, kafka_python_client.identity, kafka_python_client.TopicPartition
    return partial(consumer, **BUFFERS), _identity, TopicPartition


@contextmanager
def _identity(source: Endpoint, what: Mapping[str, Any], name: str) -> Iterator[Callable[[], None]]:
    """Give the check that the topic is the planned one; it checks nothing where the plan has no id of it."""
    topic, planned = what["topic"], what.get("topic_id", "")
    if not identity.is_known(planned):
        yield lambda: None
        return
    with open_client(source, f"topic {topic}", name=name, seconds=PATIENCE) as questions:
        yield lambda: identity.check(questions, topic, planned)


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector from looking through the records: it takes a third of all, and finds nothing.

    They refer to nothing, and are gone when their batch is made.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(kw_only=True)
class _Reading:
    """One slice on its way; a partition is in ``ends`` until it is done."""

    client: "Consumer"
    place: Callable[..., Any]
    """Names a place by topic, partition and offset."""
    heard: Heard
    endpoint: Endpoint
    topic: str
    accept_loss: bool
    ends: dict[int, int] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    """The least offset that may come next."""

    def records(self, pieces: tuple[Piece, ...]) -> "Iterator[list[Message]]":
        """Yield the records of all pieces in batches, each partition's in its order."""
        self.ends = {partition: end for partition, _, end in pieces}
        self.at = {partition: start for partition, start, _ in pieces}
        self.client.assign([self._place(partition, start) for partition, start in self.at.items()])
        size, deadline = FIRST_RECORDS, time.monotonic() + PATIENCE
        while self.ends:
            left = sum(end - self.at[partition] for partition, end in self.ends.items())
            found = self.client.consume(min(size, left), WAIT)
            if found:
                deadline = time.monotonic() + PATIENCE
            elif self.heard.login is not None or time.monotonic() > deadline:
                raise self._silent()
            records = self._taken(found)
            if records:
                yield records
                size = _next_size(records)

    def _taken(self, found: "list[Message]") -> "list[Message]":
        """Return what belongs to the slice, and note which partitions are done."""
        if self._all_within(found):
            return found
        records = []
        for message in found:
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                self._handle_error(error, partition, offset)
                continue
            if partition not in self.ends:
                continue
            if offset < self.ends[partition]:
                records.append(message)
                self.at[partition] = offset + 1
            if offset + 1 >= self.ends[partition]:
                self._done(partition)
        return records

    def _all_within(self, found: "list[Message]") -> bool:
        """Note the partitions' positions if all these are records that belong to the slice, and none is the last of it.

        That is what nearly all batches are, so it is found out without a step of Python's for each.
        """
        if not found:
            return True
        kind = type(found[0])
        if any(map(kind.error, found)):
            return False
        at = dict(zip(map(kind.partition, found), map(kind.offset, found), strict=True))
        if any(partition not in self.ends or offset + 1 >= self.ends[partition] for partition, offset in at.items()):
            return False
        # The last of a partition is the highest: they come in their order.
        self.at.update({partition: offset + 1 for partition, offset in at.items()})
        return True

    def _handle_error(self, error: Any, partition: int, offset: int) -> None:
        """Act on what the client says of a partition or of the topic; what passes by itself it does not say."""
        match error.name():
            case "_PARTITION_EOF":
                if offset >= self.ends.get(partition, offset + 1):
                    self._done(partition)
            case "_AUTO_OFFSET_RESET" | "OFFSET_OUT_OF_RANGE":
                if partition in self.ends:
                    self._lost(partition)
            case _:
                raise translate_error(error, self.endpoint, heard=self.heard, about=f"topic {self.topic}")

    def _lost(self, partition: int) -> None:
        """Refuse a partition that no longer holds what was to be read, or continue after it where that is accepted."""
        first, last = self.client.get_watermark_offsets(self._place(partition), timeout=PATIENCE, cached=False)
        start, end = self.at[partition], self.ends[partition]
        if last < end:
            raise SourceRefused(
                f"Partition {partition} of topic {self.topic} ends at offset {last}, before offset {end} of the plan: "
                "the log was cut off, or the topic was created again."
            )
        if first <= start:
            raise SourceUnavailable(
                f"Kafka at {where(self.endpoint)} does not find offset {start} of partition {partition} of topic "
                f"{self.topic} for now, and says that it holds it."
            )
        sentence = loss(self.topic, partition, start, min(first, end))
        if not self.accept_loss:
            raise SourceRefused(f"{sentence} Set accept_loss=True on the source to continue without them.")
        log.warning("%s Continuing without them, as accepted.", sentence)
        self.at[partition] = first
        if first >= end:
            self._done(partition)
        else:
            # After such an error the client has given the partition up: a seek fails, only a new assignment works.
            self.client.incremental_unassign([self._place(partition)])
            self.client.incremental_assign([self._place(partition, first)])

    def _done(self, partition: int) -> None:
        del self.ends[partition]
        self.client.incremental_unassign([self._place(partition)])

    def _silent(self) -> Exception:
        late = Failure("_TIMED_OUT", f"nothing came for {PATIENCE:g} seconds")
        return translate_error(late, self.endpoint, heard=self.heard, about=f"topic {self.topic}")

    def _place(self, partition: int, offset: int | None = None) -> Any:
        return self.place(self.topic, partition) if offset is None else self.place(self.topic, partition, offset)


def _next_size(records: "list[Message]") -> int:
    """Return how many records the next batch may have, by the size of these."""
    size = sum(map(len, records)) / len(records)
    return max(1, min(MOST_RECORDS, int(BATCH_BYTES / max(size, 1.0))))
