"""Positions of each stream of a log in a target that keeps its order: where plans begin, what ranges move.

A stream is a partition of a topic, or a database's log as one hydration replays it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, OffsetBounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.messages import Window
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed, SinkRefused


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
    return tuple(
        Move(stream=log.stream(partition), start=start, end=end, where=f"offset {start} of partition {partition}")
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

    ``SinkRefused`` where an increment would begin before what the target has: then ledger and target are not of each
    other. Its attempts could only write old rows over newer ones.
    """
    for partition, start in sorted(window.start.items()):
        at = there.get(window.stream(partition), start)
        if increment and at > start:
            raise SinkRefused(
                f"{target} has partition {partition} up to offset {at}, and the plan would begin again at {start}: the "
                'ledger was restored. Trigger the DAG with {"backpressure": "restart"} to read the topic again.'
            )
    return {window.stream(partition): start for partition, start in sorted(window.start.items())}
