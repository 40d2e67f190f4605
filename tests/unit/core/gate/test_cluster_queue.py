"""When each source in the queue is expected to start."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.gate.cluster_queue import QueueEntry, Work, estimate_seconds, estimate_starts

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


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_the_starts_of_five_queued_hydrations_are_foreseen(seed: int, concurrency: int) -> None:
    """L9, H9: within 20 %, by a simulation in which each one's speed is near that of the others but not the same."""
    chance = random.Random(seed)
    entries = queue("abcd"[:concurrency], "vwxyz")
    rows = {entry.hydration_id: chance.uniform(5e5, 5e6) for entry in entries}
    rates = {name: 20_000 * chance.uniform(0.9, 1.1) for name in rows}
    works = {
        entry.hydration_id: Work(
            left=rows[entry.hydration_id], rate=rates[entry.hydration_id] if entry.running else None
        )
        for entry in entries
    }
    foreseen = estimate_starts(entries, estimate_seconds(entries, works), concurrency=concurrency)
    ends = sorted(rows[name] / rates[name] for name in "abcd"[:concurrency])
    for name in "vwxyz":
        start = ends.pop(0)
        ends = sorted([*ends, start + rows[name] / rates[name]])
        assert foreseen[name] == pytest.approx(start, rel=0.2)


def test_without_any_rate_nothing_is_foreseen() -> None:
    entries = queue("a", "x")
    assert estimate_seconds(entries, {"a": Work(left=10.0), "x": Work(left=None)}) == {"a": None, "x": None}
