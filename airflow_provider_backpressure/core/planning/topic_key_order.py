"""The order in which ranges of a log go in: what each of them waits for, and which of its keys it holds."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from airflow_provider_backpressure.core.connector_kinds import PARTED
from airflow_provider_backpressure.core.snapshot.bounds import FIRST, OffsetBounds
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, in_order, side_by_side
from airflow_provider_backpressure.exceptions import SinkRefused, SourceRefused

_WRITTEN_ONE_WAY = re.compile(r"smallint|integer|bigint|date|uuid|bytea|text|character( varying)?(\(\d+\))?")
"""Types whose equal values have one written form, so that they are hashed to one part (``kafka/tasks/key_parts.py``).
Values of other types have several: ``1.0`` and ``1.00``."""


def put_in_order(ranges: Iterable[PlannedRange], snapshot: Snapshot) -> Iterator[PlannedRange]:
    """Yield ranges of offsets with what they wait for; one for each part where the snapshot's keys are in parts."""
    ordered = side_by_side(ranges) if snapshot.side_by_side else in_order(ranges)
    parts = count_parts(snapshot)
    return cut_by_keys(ordered, parts) if parts > 1 else ordered


def cut_by_keys(ranges: Iterable[PlannedRange], parts: int) -> Iterator[PlannedRange]:
    """Yield in place of each ordered range one for each part of the keys, which goes in after those of its own part.

    A key is in one part, whatever its partition, so that nothing but the order within a part can be seen in the end.
    """
    for planned in ranges:
        bounds, seq = planned.bounds, planned.seq
        assert isinstance(bounds, OffsetBounds), "only a log has an order"
        assert bounds.ordered, "what has no order is not cut"
        before = seq - 1 if bounds.behind is None else bounds.behind
        for number in range(parts):
            behind = FIRST if before == FIRST else before * parts + number
            part = replace(bounds, behind=behind, part=(number, parts))
            yield PlannedRange(
                seq=seq * parts + number,
                bounds=part,
                rows=max(1, part.share),
                bytes=planned.bytes // parts,
            )


def count_parts(snapshot: Snapshot) -> int:
    """Return into how many parts the keys of a log are cut; 1 for what is no log."""
    window = LogWindow.from_window(snapshot.window)
    return 1 if window is None else window.parts


def check_record_keys(snapshot: Snapshot, key: Sequence[str], *, transformed: bool) -> None:
    """Raise ``SourceRefused`` where rows go by their records' own key, and that is written in another way than before.

    ``key``: columns that the sink names, empty for the records' own key. A transform may make a row's key of it.
    """
    if snapshot.rekeyed and (transformed or not key or set(key) & set(snapshot.key)):
        raise SourceRefused(snapshot.rekeyed)


def check_parts(write: WriteSpec, *, ordered: bool, transformed: bool) -> None:
    """Raise ``SinkRefused`` where records cannot be cut into parts by the key of their rows in the target.

    Two records of one row must always be in one part. So the key has to be known where they are read, and all values
    of it that the target takes for equal have to be the same there.
    """
    if not ordered:
        raise SinkRefused(f"upsert_parts has no meaning for {write.fence}, to which rows are added: use mode='upsert'.")
    if write.kind not in PARTED:
        raise SinkRefused(
            f"{write.fence} is written by one commit after another, so upsert_parts has no use there: leave it out."
        )
    if transformed:
        raise SinkRefused(
            f"A transform may give the rows of {write.fence} other keys than their records have, by which "
            "upsert_parts cuts the topic: leave out one of both."
        )
    types = {column.name: column.type for column in write.columns}
    for name in write.key:
        if not _WRITTEN_ONE_WAY.fullmatch(types[name]):
            raise SinkRefused(
                f"{write.fence} cannot be upserted in parts by {name}: two values of type {types[name]} may be equal "
                "and written differently, so that one row would be in two parts. Leave out upsert_parts."
            )
