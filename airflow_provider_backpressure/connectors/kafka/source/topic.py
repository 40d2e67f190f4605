"""A Kafka topic as a source, opened."""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_backpressure.connectors.kafka import topic_identity as identity
from airflow_provider_backpressure.connectors.kafka.connect import NEEDED
from airflow_provider_backpressure.connectors.kafka.errors import loss
from airflow_provider_backpressure.connectors.kafka.source.columns import KEY, columns_of
from airflow_provider_backpressure.connectors.kafka.source.config import EARLIEST, LATEST, meant
from airflow_provider_backpressure.connectors.kafka.source.health import TopicHealth
from airflow_provider_backpressure.connectors.kafka.source.offsets import ASSUMED_BYTES, Log, TopicLog
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signals import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, OffsetBounds, Values
from airflow_provider_backpressure.core.snapshot.messages import ReadSpec, Slice
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow, packed
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.exceptions import SourceRefused

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.kafka.source.config import KafkaSource

log = logging.getLogger(__name__)

KIND = "kafka"


class KafkaTopic:
    """Implements :class:`..core.ports.Source`. Threads may share it; it connects for each question."""

    modules: tuple[str, ...] = (NEEDED,)
    increments = True
    increment_column: str | None = None

    def __init__(self, declared: "KafkaSource", endpoint: Endpoint) -> None:
        self._declared = declared
        self._columns = columns_of(declared)
        self._start = meant(declared.start)
        self._log = TopicLog(endpoint=endpoint, topic=declared.topic)
        self.identity = f"kafka://{endpoint.host}/{declared.topic}{self._part()}"

    def snapshot(
        self, consistency: Consistency | None = None, *, after: str | None = None, counted: bool = True
    ) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`. Its end is frozen here, behind the last transaction that is over.

        ``after``: the ``upto`` of the window that was read last.
        """
        now = self._log.look()
        if now.open_offsets:
            log.info(
                "Open transactions hold back %s offsets at the end of topic %s; a later run reads them.",
                now.open_offsets,
                self._declared.topic,
            )
        starts = self._first(now) if after is None else self._next(now, LogWindow.from_text(after))
        # A start may lie in what is held back: then nothing is read of that partition, and nothing goes back either.
        ends = {partition: max(end, starts[partition]) for partition, end in now.end.items()}
        window = LogWindow(topic=self._declared.topic, topic_id=now.topic_id, start=starts, end=ends)
        return Snapshot(
            source_identity=self.identity,
            columns=self._columns,
            key=(KEY,),
            split=(),
            unique=False,
            frontier={str(partition): end for partition, end in ends.items()},
            total=window.total,
            total_exact=True,
            row_bytes=self._log.record_bytes(starts, ends) if counted else ASSUMED_BYTES,
            consistency=Consistency.OFFSETS,
            window=window.window(after),
        )

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """See :meth:`..core.ports.Source.ranges`. Of offsets, each counted as a record."""
        window = LogWindow.of(snapshot.window)
        assert window is not None, "every snapshot of a topic has one"
        most = max(1, min(rows, int(bytes / snapshot.row_bytes)))
        for seq, bounds in enumerate(packed(window.pieces(), offsets=most)):
            size = int(bounds.offsets * snapshot.row_bytes)
            yield PlannedRange(seq=seq, bounds=bounds, rows=bounds.offsets, bytes=size)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        """See :meth:`..core.ports.Source.cut`. By offsets; the broker is not asked."""
        assert isinstance(bounds, OffsetBounds), "a range of a topic"
        return list(packed(bounds.pieces, offsets=-(-bounds.offsets // parts)))

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        """See :meth:`..core.ports.Source.in_order`. A log has no key."""
        raise SourceRefused("A topic is cut by offsets, not by a key.")

    def keep(self, plan: Plan) -> Keeper:
        """See :meth:`..core.ports.Source.keep`. A log needs none."""
        raise SourceRefused("A topic is read by offsets, which need no snapshot.")

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        """See :meth:`..core.ports.Source.read_spec`."""
        return ReadSpec(kind=KIND, conn_id=self._declared.conn_id, columns=snapshot.columns, window=snapshot.window)

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks nothing."""
        query = {"topic": self._declared.topic, "accept_loss": self._declared.accept_loss}
        if (window := LogWindow.of(read.window)) is not None:
            query["topic_id"] = window.topic_id
        return Slice(slice_id=slice_id, query=json.dumps(query), bounds=bounds.to_json())

    def log(self, hydration_id: str) -> ChangeLog:
        """See :meth:`..core.ports.Source.log`. A topic is a log itself."""
        raise SourceRefused("A topic is read by offsets, so there is nothing to be replayed.")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        """See :meth:`..core.ports.Source.health`."""
        return TopicHealth(self._log, watched, seconds=seconds, unread=unread)

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. The high watermarks."""
        now = self._log.look()
        return Upstream(unit=Unit.OFFSETS, at=dict(now.high.items()), open=now.open_offsets)

    def close(self) -> None:
        """See :meth:`..core.ports.Source.close`. Nothing stays open between two questions."""

    def _first(self, now: Log) -> dict[int, int]:
        """Return where the first run begins."""
        match self._start:
            case str() as place if place in (EARLIEST, LATEST):
                return dict(now.beginning if place == EARLIEST else now.end)
            case datetime() as time:
                return self._log.at(time, now)
            case dict() as offsets:
                strange = sorted(set(offsets) - set(now.end))
                if strange:
                    raise SourceRefused(
                        f"Topic {self._declared.topic} has no partition {strange[0]}, where it is to begin."
                    )
                return self._held({**now.beginning, **offsets}, now)
        raise AssertionError(self._start)

    def _next(self, now: Log, last: LogWindow) -> dict[int, int]:
        """Return where the last run ended; a new partition from its beginning."""
        gone = set(last.end) - set(now.end)
        if gone or not identity.is_same(last.topic_id, now.topic_id):
            raise identity.replaced(self._declared.topic)
        if added := sorted(set(now.end) - set(last.end)):
            log.info(
                "Partitions added to topic %s since its last plan: %s. They are read from their beginning.",
                self._declared.topic,
                ", ".join(map(str, added)),
            )
        return self._held({**now.beginning, **last.end}, now)

    def _held(self, starts: dict[int, int], now: Log) -> dict[int, int]:
        """Return the places, each moved to the log's beginning where the loss is accepted; else refuse, and name it."""
        topic = self._declared.topic
        behind = [partition for partition, start in starts.items() if start > now.high[partition]]
        if behind:
            at = behind[0]
            raise SourceRefused(
                f"Partition {at} of topic {topic} ends at offset {now.high[at]}, before offset {starts[at]} where "
                "reading is to go on: the log was cut off or restored."
            )
        lost = [partition for partition, start in starts.items() if start < now.beginning[partition]]
        for partition in lost:
            sentence = loss(topic, partition, starts[partition], now.beginning[partition])
            if not self._declared.accept_loss:
                raise SourceRefused(f"{sentence} Set accept_loss=True on the source to go on without them.")
            log.warning("%s Going on without them, as accepted.", sentence)
        return {partition: max(start, now.beginning[partition]) for partition, start in starts.items()}

    def _part(self) -> str:
        """Return the identity's suffix: other columns of a topic are another source."""
        chosen = [self._declared.key, self._declared.format, list((self._declared.fields or {}).items())]
        if chosen == ["bytes", "json", []]:
            return ""
        columns = [[column.name, column.type] for column in self._columns]
        return "#" + hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:12]
