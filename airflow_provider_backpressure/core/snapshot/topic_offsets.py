"""Offsets of a log's partitions: what one plan reads of it, as the window that travels with the plan."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airflow_provider_backpressure.core.snapshot.bounds import (
    FIRST,
    LogBounds,
    OffsetBounds,
    Part,
    Piece,
    bounds_from_json,
    name_part,
)
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window, WriteSpec
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed, SinkRefused

COLUMN = "partition, offset"
"""What stands for the rising column in a :class:`Window` of offsets."""
PLACE = ("partition", "offset")
"""Columns with the position of a row in a log."""
HIDDEN_PLACE = {
    "partition": Column(name="backpressure_partition", type="integer", nullable=False),
    "offset": Column(name="backpressure_offset", type="bigint", nullable=False),
}
"""Columns, behind the others, in which the position comes for an ordered plan where it is not chosen; no target has
them."""
TOMBSTONE = "backpressure_tombstone"
"""Column, behind the others, in which a reader marks tombstones for an ordered plan; no target has it."""
MOST_PIECES = 256
"""Most partitions in one range: each costs its reader a place in every request."""

T = TypeVar("T")
Offsets = Mapping[int, int]
"""An offset by partition."""


@dataclass(frozen=True, kw_only=True)
class LogWindow:
    """From where to where a plan reads, by partition, half-open; both have the same partitions."""

    topic: str
    topic_id: str
    """Distinguishes a topic from one of the same name that was created after a deletion."""
    start: Offsets
    end: Offsets
    marks: Mapping[int, str] = field(default_factory=dict)
    """What marks the last record before the end, as the log's reader writes it. Partitions without one are left out."""
    origin: Offsets | None = None
    """Where the first plan began, of a log that is read from its end on. A partition that is not named was added later.

    ``None``: it began elsewhere, or in an earlier release."""
    schemas: Mapping[str, int] = field(default_factory=dict)
    """Id of the schema that keys and values are read by, where a registry has it."""
    key_form: str = ""
    """Digest of what decides the text of a key of several fields; empty: a key's text needs no schema."""
    parts: int = 1
    """Into how many parts keys are cut, each with ranges and a frontier of its own."""

    @property
    def total(self) -> int:
        """Offsets in all."""
        return sum(self.end[partition] - self.start[partition] for partition in self.end)

    def pieces(self) -> list[Piece]:
        """Return what there is to read, without the partitions where nothing is."""
        parts = ((partition, self.start[partition], self.end[partition]) for partition in sorted(self.end))
        return [(partition, start, end) for partition, start, end in parts if start < end]

    def bounds(self) -> OffsetBounds:
        """Return all of it; ``InvalidDeclaration`` where it is empty."""
        return OffsetBounds(pieces=tuple(self.pieces()))

    def window(self, after: str | None) -> Window:
        """Return it as the window of a plan that follows the one whose ``upto`` was ``after``."""
        return Window(column=COLUMN, after=after, upto=self.to_text())

    def list_parts(self) -> list[Part | None]:
        """Return the parts that keys are cut into; ``None`` alone where they are not."""
        return [(number, self.parts) for number in range(self.parts)] if self.parts > 1 else [None]

    def stream(self, partition: int, part: Part | None = None) -> str:
        """Return the name of a partition, or of a part of its keys, under which a sink keeps its position."""
        name = f"{self.topic}/{partition}"
        return name if part is None else f"{name}#{part[0]}/{part[1]}"

    def to_text(self) -> str:
        """Return it as JSON."""
        value: dict[str, Any] = {"topic": self.topic, "topic_id": self.topic_id}
        value |= {"start": _to_json_keys(self.start), "end": _to_json_keys(self.end)}
        if self.marks:
            value["marks"] = _to_json_keys(self.marks)
        if self.origin is not None:
            value["origin"] = _to_json_keys(self.origin)
        if self.schemas:
            value["schemas"] = dict(self.schemas)
        if self.key_form:
            value["key_form"] = self.key_form
        if self.parts > 1:
            value["parts"] = self.parts
        return json.dumps(value)

    @classmethod
    def from_text(cls, text: str) -> "LogWindow":
        """Read what :meth:`to_text` wrote."""
        value = json.loads(text)
        return cls(
            topic=value["topic"],
            topic_id=value["topic_id"],
            start=_to_partitions(value["start"]),
            end=_to_partitions(value["end"]),
            marks=_to_partitions(value.get("marks", {})),
            origin=_to_partitions(value["origin"]) if "origin" in value else None,
            schemas=value.get("schemas", {}),
            key_form=value.get("key_form", ""),
            parts=value.get("parts", 1),
        )

    @classmethod
    def from_window(cls, window: Window | None) -> "LogWindow | None":
        """Return the offsets that a plan's window is about; ``None`` for that of a rising column."""
        return cls.from_text(window.upto) if window is not None and window.column == COLUMN else None


def pack_pieces(found: Iterable[Piece], *, offsets: int, most_pieces: int = MOST_PIECES) -> Iterator[OffsetBounds]:
    """Yield bounds of at most ``offsets`` offsets that cover these pieces: long ones cut, short ones together.

    Pieces of one partition come in the order in which they are given, and never two of it in one range.
    """
    pieces: list[Piece] = []
    room = offsets
    for partition, start, end in found:
        if pieces and pieces[-1][0] == partition:
            yield OffsetBounds(pieces=tuple(pieces))
            pieces, room = [], offsets
        while start < end:
            to = min(end, start + room)
            pieces.append((partition, start, to))
            room -= to - start
            start = to
            if not room or len(pieces) == most_pieces:
                yield OffsetBounds(pieces=tuple(pieces))
                pieces, room = [], offsets
    if pieces:
        yield OffsetBounds(pieces=tuple(pieces))


def _pack_whole(found: Iterable[Piece], *, offsets: int) -> Iterator[OffsetBounds]:
    """Yield bounds of at most ``offsets`` offsets that hold these pieces, none of which is longer, without a cut."""
    pieces: list[Piece] = []
    room = offsets
    for piece in found:
        size = piece[2] - piece[1]
        if size > room or len(pieces) == MOST_PIECES:
            yield OffsetBounds(pieces=tuple(pieces))
            pieces, room = [], offsets
        pieces.append(piece)
        room -= size
    if pieces:
        yield OffsetBounds(pieces=tuple(pieces))


def find_missing(window: LogWindow, committed: Iterable[OffsetBounds]) -> Iterator[Piece]:
    """Yield what of a window is in none of these bounds, partition by partition in its order."""
    taken: dict[int, list[tuple[int, int]]] = {}
    for partition, first, last in (piece for bounds in committed for piece in bounds.pieces):
        taken.setdefault(partition, []).append((first, last))
    for partition, start, end in window.pieces():
        at = start
        for first, last in sorted(taken.get(partition, ())):
            if at < first:
                yield partition, at, first
            at = max(at, last)
        if at < end:
            yield partition, at, end


def find_place(columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the columns with the position of each row of an ordered plan that reads these."""
    chosen = {column.name for column in columns}
    return tuple(name if name in chosen else hidden.name for name, hidden in HIDDEN_PLACE.items())


def list_marks(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return what the rows of an ordered plan have behind these columns: positions that are hidden, and tombstones."""
    return _make_marks(find_place(columns))


def list_marks_of(write: WriteSpec) -> tuple[Column, ...]:
    """Return what rows have behind the columns of a target: nothing unless the plan is ordered."""
    return _make_marks(write.place) if write.ordered else ()


def _make_marks(place: Sequence[str]) -> tuple[Column, ...]:
    hidden = (column for column in HIDDEN_PLACE.values() if column.name in place)
    return (*hidden, Column(name=TOMBSTONE, type="boolean", nullable=False))


def take_marks(columns: Iterable[Column], place: Sequence[str] = PLACE) -> tuple[Column, ...]:
    """Return what a transform makes but for the marks of an ordered plan; ``SinkRefused`` where one does not arrive."""
    found = {column.name: column for column in columns}
    mark = found.pop(TOMBSTONE, None)
    if mark is None or mark.type != "boolean":
        raise SinkRefused(
            f"Rows of a log cannot be upserted without {TOMBSTONE}, which says whose row is to be deleted: let the "
            "transform keep this column. It does not go into the target."
        )
    for hidden in (column.name for column in HIDDEN_PLACE.values() if column.name in place):
        position = found.pop(hidden, None)
        if position is None or position.type not in _WHOLE:
            raise SinkRefused(
                f"Rows of a log can only be upserted by its order, and {hidden} of each record does not arrive as a "
                "whole number: let the transform keep this column. It does not go into the target."
            )
    return tuple(found.values())


_WHOLE = ("smallint", "integer", "bigint")


def order_by_log(write: WriteSpec, place: Sequence[str] = PLACE) -> WriteSpec:
    """Return what makes rows of a log go in by its order; ``SinkRefused`` where the target cannot keep it.

    ``place``: the columns with the position of each row.
    """
    arriving = {column.name: column.type for column in write.columns}
    visible = [name for name in PLACE if name in place]
    lacking = [name for name in visible if name not in arriving]
    if lacking:
        raise SinkRefused(
            f"Rows of a log can only be upserted by its order, and {' and '.join(lacking)} of each record does not "
            "arrive: let the transform keep it."
        )
    for name in visible:
        if arriving[name] not in _WHOLE:
            raise SinkRefused(
                f"Rows of a log can only be upserted by its order, and {name} is {arriving[name]}: let the transform "
                "keep its type."
            )
    if not write.frontier_table:
        raise SinkRefused(f"{write.fence} cannot be upserted from a log: a {write.kind} sink does not keep its order.")
    return replace(write, ordered=True, place=tuple(place))


def in_order(ranges: Iterable[PlannedRange]) -> Iterator[PlannedRange]:
    """Yield ranges of offsets that are to be committed one after another."""
    for planned in ranges:
        assert isinstance(planned.bounds, OffsetBounds), "only a log has an order"
        yield replace(planned, bounds=replace(planned.bounds, ordered=True))


def side_by_side(ranges: Iterable[PlannedRange]) -> Iterator[PlannedRange]:
    """Yield ranges of offsets of which those of different partitions may be committed side by side, cut again.

    A range of a long partition goes in after the one before it; short partitions go together into ranges that go in
    after none. The partitions take turns, so that the first ranges are of different ones.
    """
    spans: dict[int, tuple[int, int]] = {}
    most = rows = size = 0
    for planned in ranges:
        assert isinstance(planned.bounds, OffsetBounds), "only a log has an order"
        most, rows, size = max(most, planned.bounds.offsets), rows + planned.rows, size + planned.bytes
        for partition, start, end in planned.bounds.pieces:
            spans[partition] = (spans.get(partition, (start,))[0], end)
    pieces = [(partition, *span) for partition, span in spans.items()]
    short = _pack_whole((piece for piece in pieces if piece[2] - piece[1] <= most), offsets=most)
    long = [pack_pieces([piece], offsets=most) for piece in pieces if piece[2] - piece[1] > most]
    seq, queues = 0, [(found, FIRST) for found in (short, *long)]
    while queues:
        left = []
        for found, before in queues:
            if (bounds := next(found, None)) is not None:
                bounds = replace(bounds, ordered=True, behind=before)
                yield PlannedRange(seq=seq, bounds=bounds, rows=bounds.offsets, bytes=bounds.offsets * size // rows)
                left.append((found, before if found is short else seq))
                seq += 1
        queues = left


def unread_offsets(
    window: LogWindow, still: Sequence[OffsetBounds], *, whole: bool, cut: Sequence[OffsetBounds] = ()
) -> dict[int, int]:
    """Return from which offset on each partition has not been committed yet.

    ``still``: the first ranges that are not committed, in the plan's order; ``whole``: these are all of them. As ranges
    are cut partition by partition, one that is not among them and is before their last is committed. Where partitions
    or parts take turns, a partition is known once each of its parts is among them. ``cut``: all open ones that took the
    place of another one later, and so have no order.
    """
    first: dict[int, int] = {}
    for partition, start, _ in (piece for bounds in (*still, *cut) for piece in bounds.pieces):
        first[partition] = min(start, first.get(partition, start))
    known = window.end.keys() if whole else _find_known(window, still)
    return {
        partition: first.get(partition, end) if partition in known else window.start[partition]
        for partition, end in window.end.items()
    }


def _find_known(window: LogWindow, still: Sequence[OffsetBounds]) -> set[int]:
    """Return the partitions of which the first open range is among these, or none is open."""
    if not any(bounds.behind is not None or bounds.part is not None for bounds in still):
        last = max((partition for bounds in still for partition, _, _ in bounds.pieces), default=-1)
        return {partition for partition in window.end if partition <= last}
    seen = {(partition, bounds.part) for bounds in still for partition, _, _ in bounds.pieces}
    return {partition for partition in window.end if all((partition, part) in seen for part in window.list_parts())}


def lag(unread: Offsets, high: Offsets) -> dict[int, int]:
    """Return how many offsets of each partition lie between what was committed and the log's end."""
    return {partition: max(0, end - unread.get(partition, 0)) for partition, end in high.items()}


def _to_json_keys(values: Mapping[int, T]) -> dict[str, T]:
    return {str(partition): values[partition] for partition in sorted(values)}


def _to_partitions(values: Mapping[str, T]) -> dict[int, T]:
    return {int(name): value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Move:
    """One stream's way through a range: from the position that the target must have, to its next one."""

    stream: str
    start: int
    end: int
    where: str
    """How people call the start: ``offset 7 of partition 0``."""

    def refusal(self, target: str) -> RangeFailed:
        """Return the error of a target that is not at the start."""
        return RangeFailed(
            f"{target} is not at {self.where}: the range before this one is not in, or this one is in already."
        )


def keyless(partition: int, offset: int, key: Sequence[str], target: str) -> SinkRefused:
    """Return the error of a record without a key, which could take no row's place."""
    return SinkRefused(
        f"The record at offset {offset} of partition {partition} has no {' and '.join(key)}, by which {target} is "
        "upserted (a tombstone has nothing but the message's key)."
    )


def moves(bounds: Mapping[str, Any], window: Window | None) -> tuple[Move, ...]:
    """Return what a range's bounds, as JSON has them, move; ``InvalidDeclaration`` where it is no log."""
    found, log = bounds_from_json(dict(bounds)), LogWindow.from_window(window)
    if isinstance(found, LogBounds):
        where = f"{found.start.label} of {found.stream}"
        return (Move(stream=found.stream, start=found.start.at, end=found.end.at, where=where),)
    if not isinstance(found, OffsetBounds) or log is None:
        raise InvalidDeclaration("Only rows of a log can be written by its order.")
    if found.part not in log.list_parts():
        raise InvalidDeclaration(f"The range {found} is of other parts than its plan, which has {log.parts}.")
    of = "" if found.part is None else f", {name_part(found.part)}"
    return tuple(
        Move(
            stream=log.stream(partition, found.part),
            start=start,
            end=end,
            where=f"offset {start} of partition {partition}{of}",
        )
        for partition, start, end in found.pieces
    )


def move_streams(there: Mapping[str, int], steps: tuple[Move, ...], target: str) -> dict[str, int]:
    """Return the positions of the streams after a range; ``RangeFailed`` where one of its own is not at its start."""
    late = next((step for step in steps if there.get(step.stream) != step.start), None)
    if late is not None:
        raise late.refusal(target)
    return {**there, **{step.stream: step.end for step in steps}}


def find_start_positions(
    window: LogWindow, there: Mapping[str, int], *, target: str, increment: bool
) -> dict[str, int]:
    """Return where a plan that reads this window begins, by stream.

    ``there``: the target's positions. Those of a partition that was cut into other parts before are moved along, so
    that each says how far the partition is. ``SinkRefused`` where an increment would begin before what the target has:
    then ledger and target are not of each other. Its attempts could only write old rows over newer ones.
    """
    found: dict[str, int] = {}
    for partition, start in sorted(window.start.items()):
        name = window.stream(partition)
        known = [stream for stream in there if stream == name or stream.startswith(f"{name}#")]
        at = max((there[stream] for stream in known), default=start)
        if increment and at > start:
            raise SinkRefused(
                f"{target} has partition {partition} up to offset {at}, and the plan would begin again at {start}: the "
                'ledger was restored. Trigger the DAG with {"backpressure": "restart"} to read the topic again.'
            )
        streams = (window.stream(partition, part) for part in window.list_parts())
        found |= dict.fromkeys((*streams, *known), start)
    return found


Key = int | str
Frontier = Mapping[Key, int]


def difference(later: Frontier, earlier: Frontier) -> int:
    """Return how much lies between two frontiers, bounded below by zero key by key.

    ``sum over keys k of later of max(0, later[k] - earlier.get(k, 0))``: a key that appears counts from zero, one that
    vanished counts nothing, and a key that went back takes nothing from the others.
    """
    return sum(max(0, position - earlier.get(key, 0)) for key, position in later.items())


def meet(frontiers: Iterable[Frontier]) -> dict[Key, int]:
    """Return the greatest frontier that every given one has reached; a key absent from one is at zero there."""
    all_of_them = list(frontiers)
    keys = {key for frontier in all_of_them for key in frontier}
    return {key: min(frontier.get(key, 0) for frontier in all_of_them) for key in keys}


def rate(later: Frontier, earlier: Frontier, seconds: float) -> float:
    """Return units per second between two frontiers seen ``seconds`` apart."""
    if seconds <= 0:
        raise InvalidDeclaration(f"A rate needs a span above 0 seconds, not {seconds}.")
    return difference(later, earlier) / seconds


def percentage(done: Frontier, total: Frontier) -> float:
    """Return how much of ``total`` is ``done``, 0 to 100; an empty total is all done."""
    whole = difference(total, {})
    if whole == 0:
        return 100.0
    return 100.0 * (whole - difference(total, done)) / whole
