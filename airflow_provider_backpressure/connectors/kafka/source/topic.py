"""A Kafka topic as a source, opened."""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow_provider_backpressure.connectors.kafka import cluster_metadata as identity
from airflow_provider_backpressure.connectors.kafka.connect import NEEDED, SUBSTITUTE
from airflow_provider_backpressure.connectors.kafka.debezium_envelope import ENVELOPE
from airflow_provider_backpressure.connectors.kafka.errors import loss, shortfall
from airflow_provider_backpressure.connectors.kafka.record_columns import KEY, METADATA, VALUE, check_chosen
from airflow_provider_backpressure.connectors.kafka.source.config import (
    EARLIEST,
    LATEST,
    columns_of,
    parse_start,
)
from airflow_provider_backpressure.connectors.kafka.source.formats import Format
from airflow_provider_backpressure.connectors.kafka.source.partition_offsets import (
    ASSUMED_BYTES,
    Log,
    Mark,
    Marks,
    TopicLog,
)
from airflow_provider_backpressure.connectors.kafka.source.retention_and_lag import TopicHealth
from airflow_provider_backpressure.connectors.kafka.source.schema_versions import Pinned, pin, to_columns, to_key
from airflow_provider_backpressure.connectors.kafka.source.topic_identity import identity_suffix
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.ports import ChangeLog, Health, Keeper, Unread
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, OffsetBounds, Values
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice, Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, Offsets, pack_pieces
from airflow_provider_backpressure.exceptions import RESTART, InvalidDeclaration, SourceRefused

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.kafka.source.config import KafkaSource

log = logging.getLogger(__name__)

KIND = "kafka"
KEPT = "The range cannot be read again, and its rows stay in the target."


class KafkaTopic:
    """Implements :class:`..core.ports.Source`. Threads may share it; it connects for each question."""

    modules: tuple[str, ...] = (NEEDED,)
    increments = True
    increment_column: str | None = None

    def __init__(self, declared: "KafkaSource", endpoint: Endpoint) -> None:
        self._declared = declared
        self._pinned: dict[str, Pinned] = {}
        """The schemas of the latest snapshot, by ``key`` and ``value``."""
        self._endpoint = endpoint
        if not declared.registered:
            columns_of(declared)
        self._start = parse_start(declared.start)
        self._log = TopicLog(endpoint=endpoint, topic=declared.topic)
        self._marks = Marks(endpoint=endpoint, topic=declared.topic)
        self._compared: dict[int, str] = {}
        self.identity = f"kafka://{endpoint.host}/{declared.topic}{identity_suffix(declared)}"

    def snapshot(
        self,
        consistency: Consistency | None = None,
        *,
        after: str | None = None,
        previous: Window | None = None,
        counted: bool = True,
    ) -> Snapshot:
        """See :meth:`..core.ports.Source.snapshot`. Its end is frozen here, behind the last transaction that is over.

        ``after``: the ``upto`` of the window that was read last. ``previous`` matters where reading begins at the end.
        """
        now = self._log.look()
        if now.open_offsets:
            log.info(
                "Open transactions hold back %s offsets at the end of topic %s; a later run reads them.",
                now.open_offsets,
                self._declared.topic,
            )
        last = LogWindow.from_text(after) if after is not None else None
        columns = self._columns(last)
        if last is not None:
            starts, origin = self._next(now, last), last.origin
        elif self._start == LATEST:
            starts, origin = self._latest(now, LogWindow.from_window(previous))
        else:
            starts, origin = self._first(now), None
        # A start may lie in what is held back: then nothing is read of that partition, and nothing goes back either.
        ends = {partition: max(end, starts[partition]) for partition, end in now.end.items()}
        schemas = {part: pinned.latest.id for part, pinned in self._pinned.items()}
        window = LogWindow(
            topic=self._declared.topic,
            topic_id=now.topic_id,
            start=starts,
            end=ends,
            origin=origin,
            schemas=schemas,
            key_form=self._pinned[KEY].key_form if KEY in self._pinned else "",
            parts=self._declared.upsert_parts,
        )
        if counted:
            window = replace(window, marks=self._marks_of(window, now, last))
        return Snapshot(
            source_identity=self.identity,
            columns=columns,
            key=(KEY,) if any(column.name == KEY for column in columns) else (),
            split=(),
            unique=False,
            frontier={str(partition): end for partition, end in ends.items()},
            total=window.total,
            total_exact=True,
            row_bytes=self._log.record_bytes(starts, ends) if counted else ASSUMED_BYTES,
            consistency=Consistency.OFFSETS,
            window=window.window(after),
            defaults=self._pinned[VALUE].defaults if VALUE in self._pinned else (),
            rekeyed=self._describe_rekeying(last),
            side_by_side=self._may_go_side_by_side(now, last or LogWindow.from_window(previous)),
        )

    def _may_go_side_by_side(self, now: Log, last: LogWindow | None) -> bool:
        """Whether no key is in two partitions of what is read; a partition that was added takes keys from others.

        ``last``: the window of the plan before.
        """
        grown = last is not None and last.topic == self._declared.topic and set(now.end) > set(last.end)
        if self._declared.one_partition_per_key and grown:
            log.warning(
                "Topic %s has more partitions than before, so keys may have moved to others: this run upserts its "
                "ranges one after another.",
                self._declared.topic,
            )
            return False
        return self._declared.one_partition_per_key

    def ranges(self, snapshot: Snapshot, *, rows: int, bytes: int) -> Iterator[PlannedRange]:
        """See :meth:`..core.ports.Source.ranges`. Of offsets, each counted as a record."""
        window = LogWindow.from_window(snapshot.window)
        assert window is not None, "every snapshot of a topic has one"
        most = max(1, min(rows, int(bytes / snapshot.row_bytes)))
        for seq, bounds in enumerate(pack_pieces(window.pieces(), offsets=most)):
            size = int(bounds.offsets * snapshot.row_bytes)
            yield PlannedRange(seq=seq, bounds=bounds, rows=bounds.offsets, bytes=size)

    def cut(self, read: ReadSpec, bounds: Bounds, *, parts: int) -> Sequence[Bounds]:
        """See :meth:`..core.ports.Source.cut`. By offsets; the broker is not asked."""
        assert isinstance(bounds, OffsetBounds), "a range of a topic"
        pieces = pack_pieces(bounds.pieces, offsets=-(-bounds.offsets // parts))
        return [replace(piece, part=bounds.part) for piece in pieces]

    def in_order(self, read: ReadSpec, columns: Sequence[str], values: Sequence[Values]) -> list[Values]:
        """See :meth:`..core.ports.Source.in_order`. A log has no key."""
        raise SourceRefused("A topic is cut by offsets, not by a key.")

    def keep(self, plan: Plan) -> Keeper:
        """See :meth:`..core.ports.Source.keep`. A log needs none."""
        raise SourceRefused("A topic is read by offsets, which need no snapshot.")

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        return ReadSpec(
            kind=KIND,
            conn_id=self._declared.conn_id,
            columns=snapshot.columns,
            window=snapshot.window,
            decoding={**{part: pinned.to_json() for part, pinned in self._pinned.items()}, **self._envelope()},
            holds_deletes=self._declared.envelope is not None,
            substitutes=(SUBSTITUTE,) if find_spec(SUBSTITUTE.package) else (),
        )

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        """See :meth:`..core.ports.Source.slice`. Asks nothing."""
        declared = self._declared
        query = {"topic": declared.topic, "accept_loss": declared.accept_loss}
        if declared.fields is not None:
            query["fields"] = True
        if declared.bad_timestamps == "null":
            query["null_timestamps"] = True
        if (window := LogWindow.from_window(read.window)) is not None:
            query["topic_id"] = window.topic_id
        return Slice(slice_id=slice_id, query=json.dumps(query), bounds=bounds.to_json())

    def check_range(self, plan: Plan, bounds: Bounds) -> None:
        """See :meth:`..core.ports.Source.check_range`. By the topic's id, the ends of its partitions, and its policy.

        A loss that is accepted is one of records that were not read yet: it does not count here.
        """
        assert isinstance(bounds, OffsetBounds), "a range of a topic"
        now, planned = self._log.look(), LogWindow.from_window(plan.read.window)
        assert planned is not None, "every plan of a topic has one"
        self._check_same(planned, now)
        topic = self._declared.topic
        for partition, start, end in bounds.pieces:
            if end > now.high[partition]:
                raise SourceRefused(f"{shortfall(topic, partition, now.high[partition], end)} {KEPT}")
            if start < now.beginning[partition]:
                sentence = loss(topic, partition, start, min(end, now.beginning[partition]))
                raise SourceRefused(f"{sentence} {KEPT}")
        self._check_marks(planned, [partition for partition, _, _ in bounds.pieces])
        if "compact" in self._log.config().get("cleanup.policy", ""):
            raise SourceRefused(
                f"Topic {topic} is compacted, so records of the range may be gone without a trace. {KEPT}"
            )

    def log(self, hydration_id: str) -> ChangeLog:
        """See :meth:`..core.ports.Source.log`. A topic is a log itself."""
        raise SourceRefused("A topic is read by offsets, so there is nothing to be replayed.")

    def health(self, watched: Sequence[Watched], *, seconds: float, unread: Unread | None = None) -> Health:
        return TopicHealth(self._log, watched, seconds=seconds, unread=unread)

    def upstream(self) -> Upstream:
        """See :meth:`..core.ports.Source.upstream`. The high watermarks."""
        now = self._log.look()
        return Upstream(unit=Unit.OFFSETS, at=dict(now.high.items()), open=now.open_offsets)

    def close(self) -> None:
        """See :meth:`..core.ports.Source.close`. Nothing stays open between two questions."""

    def _columns(self, last: LogWindow | None) -> tuple[Column, ...]:
        """Return the columns, by the schemas as they are now; ``SourceRefused`` where they do not fit the last plan's.

        Asked behind the end of what is read: the schema of every record before it is registered by then.
        """
        declared = self._declared
        found = {
            part: pin(
                format_,
                declared.subject(part),
                part,
                self._registry(format_),
                None if part == KEY else declared.columns,
            )
            for part, format_ in declared.formats.items()
            if part != KEY or declared.reads_keys
        }
        for part, pinned in found.items():
            pinned.check_against(last.schemas.get(part) if last is not None else None)
        self._pinned = found
        if not found:
            return columns_of(declared)
        key, values = found.get(KEY), found.get(VALUE)
        if values is not None and declared.columns is not None:
            check_chosen(declared.columns, (*METADATA, *values.every_name), declared.topic)
        return columns_of(declared, to_columns(values) if values else None, to_key(key) if key else None)

    def _describe_rekeying(self, last: LogWindow | None) -> str:
        """Return why rows that go by the text of their key have another one than in the last plan."""
        if last is None or KEY not in self._pinned:
            return ""
        return self._pinned[KEY].describe_rekeying(last.schemas.get(KEY), last.key_form)

    def _envelope(self) -> dict[str, Any]:
        envelope = self._declared.envelope
        return {} if envelope is None else {ENVELOPE: envelope.to_json()}

    def _registry(self, format_: Format) -> Endpoint:
        place = self._endpoint.related.get(format_.registry_conn_id)
        if place is None:
            raise InvalidDeclaration(f"The connection {format_.registry_conn_id} of the schema registry was not given.")
        return place

    def _first(self, now: Log) -> dict[int, int]:
        """Return where the first run begins."""
        match self._start:
            case str() as place if place == EARLIEST:
                return dict(now.beginning)
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

    def _latest(self, now: Log, previous: LogWindow | None) -> tuple[dict[int, int], Offsets]:
        """Return where a new plan begins that leaves out what came before its hydration, and where that one began.

        The present end is right for the first plan only: a later one would leave out newer records. A partition
        or a topic that was created since the first plan is read from offset 0, since all of its records are newer.
        """
        topic = self._declared.topic
        if previous is None or previous.topic != topic:
            log.info("Topic %s is read from its end on: earlier records are left out, as start='latest' says.", topic)
            return dict(now.end), dict(now.end)
        if not self._is_same(previous, now):
            log.info("Topic %s was created again since its last plan. It is read from its beginning.", topic)
            return self._held(_from_zero(now), now), {}
        if previous.origin is None:
            raise SourceRefused(
                f"It is not known where the first run of topic {topic} began: that was in an earlier release, or with "
                "another start. start='latest' would leave out newer records. Set start to a time or to offsets."
            )
        return self._held({**_from_zero(now), **previous.origin}, now), previous.origin

    def _next(self, now: Log, last: LogWindow) -> dict[int, int]:
        """Return where the last run ended; a new partition from its beginning."""
        self._check_same(last, now)
        if added := sorted(set(now.end) - set(last.end)):
            log.info(
                "Partitions added to topic %s since its last plan: %s. They are read from their beginning.",
                self._declared.topic,
                ", ".join(map(str, added)),
            )
        starts = self._held({**_from_zero(now), **last.end}, now)
        self._check_marks(last, [partition for partition, end in last.end.items() if end < now.high[partition]])
        return starts

    def _check_same(self, planned: LogWindow, now: Log) -> None:
        """Raise ``SourceRefused`` where the topic is another one than planned."""
        if not self._is_same(planned, now):
            raise identity.topic_replaced_error(self._declared.topic)

    @staticmethod
    def _is_same(planned: LogWindow, now: Log) -> bool:
        """Whether the topic is the one that was planned. It may have more partitions."""
        return set(planned.end) <= set(now.end) and identity.is_same(planned.topic_id, now.topic_id)

    def _check_marks(self, read: LogWindow, partitions: Iterable[int]) -> None:
        """Raise ``SourceRefused`` where a log was cut off behind what was read, and has grown past that again.

        A mark that was compared is not compared again.
        """
        marks = {
            at: read.marks[at] for at in partitions if at in read.marks and self._compared.get(at) != read.marks[at]
        }
        others = self._marks.find_others({at: Mark.parse(text) for at, text in marks.items()})
        if others:
            raise SourceRefused(
                f"Partition {others[0]} of topic {self._declared.topic} is not the log any more that was read up to "
                f"offset {read.end[others[0]]}: it was cut off or restored, and other records took the offsets before "
                f"that. What is committed stays; {RESTART}."
            )
        self._compared |= marks

    def _marks_of(self, window: LogWindow, now: Log, last: LogWindow | None) -> dict[int, str]:
        """Return what marks the records before a window's end; of a partition that has not moved it is known."""
        known = dict(last.marks) if last is not None else {}
        if last is not None and not window.total:
            return known
        ends = {at: end for at, end in window.end.items() if at not in known or window.start[at] < end}
        return known | {at: str(mark) for at, mark in self._marks.read(now.beginning, ends).items()}

    def _held(self, starts: dict[int, int], now: Log) -> dict[int, int]:
        """Return the places, moved to the log's beginning where the loss is accepted; otherwise refuse and name it."""
        topic = self._declared.topic
        behind = [partition for partition, start in starts.items() if start > now.high[partition]]
        if behind:
            sentence = shortfall(topic, behind[0], now.high[behind[0]], starts[behind[0]])
            raise SourceRefused(f"{sentence} Set start to where reading is to begin, and {RESTART}.")
        lost = [partition for partition, start in starts.items() if start < now.beginning[partition]]
        for partition in lost:
            sentence = loss(topic, partition, starts[partition], now.beginning[partition])
            if not self._declared.accept_loss:
                raise SourceRefused(f"{sentence} Set accept_loss=True on the source to continue without them.")
            log.warning("%s Continuing without them, as accepted.", sentence)
        return {partition: max(start, now.beginning[partition]) for partition, start in starts.items()}


def _from_zero(now: Log) -> dict[int, int]:
    """Return where partitions begin that no plan has read: the log's beginning would hide what retention removed."""
    return dict.fromkeys(now.end, 0)
