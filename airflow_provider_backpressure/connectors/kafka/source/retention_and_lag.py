"""The health of a topic: the lag of each partition, and how long retention leaves what has not been read."""

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_backpressure.connectors.kafka.connect import CONTROL, consumer
from airflow_provider_backpressure.connectors.kafka.errors import loss
from airflow_provider_backpressure.connectors.kafka.source.partition_offsets import Log, TopicLog
from airflow_provider_backpressure.core.health_signal_declarations import Figure, Retention, Watched
from airflow_provider_backpressure.core.ports import Unread
from airflow_provider_backpressure.core.snapshot.topic_offsets import lag
from airflow_provider_backpressure.exceptions import BackpressureError, SourceRefused, SourceUnavailable

HOUR = 3600.0
STEP = 0.1
"""Seconds that the client waits for records at a time."""
FETCHED = 65536
"""Bytes of each partition that are fetched for the time of one record."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How long a topic keeps a record, as it is configured."""

    seconds: float
    """Infinite where nothing is deleted by its age."""
    bytes: int | None = None
    """Size of a partition above which it is deleted earlier."""

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> "Kept":
        """Read a topic's configuration as the broker gives it; below zero is for ever."""
        milliseconds, most = int(config["retention.ms"]), int(config["retention.bytes"])
        deletes = "delete" in config["cleanup.policy"] and milliseconds >= 0
        return cls(seconds=milliseconds / 1000 if deletes else math.inf, bytes=most if most >= 0 else None)


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is left of a topic's retention."""

    hours: float = math.inf
    """By age."""
    share: float = math.inf
    """Of what is kept, by age or by size."""
    note: str

    def figure(self, *, shared: bool) -> Figure:
        """Return it as a signal's figure."""
        return Figure(value=self.share if shared else self.hours, note=self.note)


class TopicHealth:
    """Implements :class:`..core.ports.Health`. It connects for each look."""

    def __init__(
        self, log: TopicLog, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None
    ) -> None:
        for each in watched:
            if not isinstance(each, Retention):
                raise SourceRefused(f"A topic has no {type(each).__name__}: it gives Retention.")
        self._log, self._watched, self._seconds, self._unread = log, tuple(watched), seconds, unread

    @property
    def key(self) -> Hashable:
        """See :attr:`..core.ports.Health.key`."""
        return "kafka", self._log.endpoint.host, self._log.topic, self._unread

    def look(self) -> dict[Watched, Figure | BackpressureError]:
        left = self._left()
        return {
            each: left.figure(shared=isinstance(each, Retention) and each.share is not None) for each in self._watched
        }

    def lag(self) -> dict[int, int]:
        """Return by partition how many offsets are not committed yet."""
        now = self._log.look()
        return lag(self._starts(now), now.high)

    def close(self) -> None:
        """See :meth:`..core.ports.Health.close`. Nothing stays open between two looks."""

    def _left(self) -> "Left":
        """Return what is left until the first record that has not been read is deleted, at the earliest."""
        kept, now = Kept.from_config(self._log.config()), self._log.look()
        starts, topic = self._starts(now), self._log.topic
        behind = lag(starts, now.high)
        gone = [partition for partition in behind if starts[partition] < now.beginning[partition]]
        if gone:
            at = gone[0]
            return Left(hours=0.0, share=0.0, note=loss(topic, at, starts[at], now.beginning[at]).rstrip("."))
        by_size = _share_by_size(kept, now, {each: starts[each] for each, number in behind.items() if number})
        if kept.seconds == math.inf:
            note = f"topic {topic} deletes nothing by its age"
            return Left(share=by_size, note=f"{note}{_by_size(kept, now)}")
        times = self._times({partition: starts[partition] for partition, number in behind.items() if number})
        if not times:
            return Left(note=f"everything in topic {topic} has been read")
        partition = min(times, key=times.__getitem__)
        left = max(0.0, times[partition] + kept.seconds - time.time())
        note = (
            f"offset {starts[partition]} of partition {partition} is the oldest, {sum(behind.values())} offsets behind"
            f"{_by_size(kept, now)}"
        )
        by_age = left / kept.seconds if kept.seconds else 0.0
        return Left(hours=left / HOUR, share=min(by_age, by_size), note=note)

    def _starts(self, now: Log) -> dict[int, int]:
        """Return the first offset of every partition that has not been read; of one that was added since that is 0."""
        if self._unread is None:
            return dict(now.beginning)
        known = self._unread()
        return {partition: known.get(partition, 0) for partition in now.beginning}

    def _times(self, starts: Mapping[int, int]) -> dict[int, float]:
        """Return the time of the first record from an offset on, by partition, in seconds since 1970.

        A partition that ends without one, in marks of transactions, is left out.
        """
        from confluent_kafka import TopicPartition

        left, found, until = dict(starts), {}, time.monotonic() + self._seconds
        if not left:
            return {}
        # Retention deletes uncommitted records too, and records that will be committed may follow them.
        settings = {"isolation_level": "read_uncommitted", "max_partition_fetch_bytes": FETCHED}
        with consumer(self._log.endpoint, CONTROL, **settings) as (client, _):
            client.assign([TopicPartition(self._log.topic, partition, start) for partition, start in left.items()])
            while left and time.monotonic() < until:
                for record in client.consume(len(left), STEP):
                    if left.pop(record.partition(), None) is None:
                        continue
                    if record.error() is None:
                        found[record.partition()] = record.timestamp()[1] / 1000
                    client.pause([TopicPartition(self._log.topic, record.partition())])
        if left:
            raise SourceUnavailable(
                f"{len(left)} partitions of topic {self._log.topic} did not give their first record in time."
            )
        return found


def _share_by_size(kept: Kept, now: Log, starts: Mapping[int, int]) -> float:
    """Return the least share of a partition that lies before its first record that has not been read.

    Infinite where nothing is deleted by size, or the partition has not lost a record yet: how full it is is not known.
    """
    if kept.bytes is None:
        return math.inf
    full = {each: at for each, at in starts.items() if 0 < now.beginning[each] < now.high[each]}
    shares = ((at - now.beginning[each]) / (now.high[each] - now.beginning[each]) for each, at in full.items())
    return min(shares, default=math.inf)


def _by_size(kept: Kept, now: Log) -> str:
    if kept.bytes is None:
        return ""
    full = any(first > 0 for first in now.beginning.values())
    return f"; retention.bytes={kept.bytes} too" if full else f"; retention.bytes={kept.bytes} is not reached yet"
