"""When each source in the queue is expected to start."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.gate.queue import QueueEntry, estimate_starts

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def queue(running: str, waiting: str) -> list[QueueEntry]:
    """Return a cluster's entries, each named by a letter, in the order in which they were ready."""
    return [
        QueueEntry(
            hydration_id=name,
            cluster="spark",
            priority=0,
            ready_at=NOON + timedelta(seconds=number),
            running=name in running,
        )
        for number, name in enumerate(running + waiting)
    ]


@pytest.mark.statement("H9")
@pytest.mark.parametrize(
    ("running", "concurrency", "left", "expected"),
    [
        ("ab", 2, {"a": 30.0, "b": 12.5}, {"x": 12.5, "y": 30.0, "z": None}),
        ("ab", 3, {"a": 30.0, "b": 12.5}, {"x": 0.0, "y": 12.5, "z": 30.0}),
        ("ab", 1, {"a": 30.0, "b": 12.5}, {"x": 30.0, "y": None, "z": None}),
        ("ab", 2, {"a": 30.0, "b": None}, {"x": 30.0, "y": None, "z": None}),
        ("ab", 2, {"a": 30.0, "b": 0.0}, {"x": 0.0, "y": 30.0, "z": None}),
        ("", 2, {}, {"x": 0.0, "y": 0.0, "z": None}),
    ],
)
def test_each_end_lets_the_next_one_in(
    running: str, concurrency: int, left: Mapping[str, float | None], expected: Mapping[str, float | None]
) -> None:
    """H9: in seconds from now; whoever ends this moment lets one in too."""
    assert estimate_starts(queue(running, "xyz"), left, concurrency=concurrency) == expected
