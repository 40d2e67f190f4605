"""Ranges of offsets: bounded, without gap or overlap, and as JSON."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.messages import Window
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow, pack_pieces
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.exceptions import InvalidDeclaration

PARTITIONS = st.dictionaries(
    st.integers(0, 40), st.tuples(st.integers(0, 50), st.integers(0, 60)).map(lambda pair: (pair[0], sum(pair)))
)


def window(partitions: dict[int, tuple[int, int]]) -> LogWindow:
    """Return a window of these pieces."""
    start, end = ({part: ends[side] for part, ends in partitions.items()} for side in (0, 1))
    return LogWindow(topic="t", topic_id="id", start=start, end=end)


@given(partitions=PARTITIONS, offsets=st.integers(1, 70), most_pieces=st.integers(1, 5))
def test_packed_ranges_cover_the_window_once(
    partitions: dict[int, tuple[int, int]], offsets: int, most_pieces: int
) -> None:
    """Every offset is in one range, none is larger than asked for, and a partition's pieces come in order."""
    whole = window(partitions)
    ranges = list(pack_pieces(whole.pieces(), offsets=offsets, most_pieces=most_pieces))
    seen = [(part, at) for bounds in ranges for part, start, end in bounds.pieces for at in range(start, end)]
    assert seen == [(part, at) for part, (start, end) in sorted(partitions.items()) for at in range(start, end)]
    assert all(bounds.offsets <= offsets and len(bounds.pieces) <= most_pieces for bounds in ranges)
    assert whole.total == sum(bounds.offsets for bounds in ranges)


def test_short_partitions_share_a_range() -> None:
    """As few ranges as the bound allows."""
    ranges = pack_pieces(window({0: (5, 12), 1: (0, 0), 2: (1, 4)}).pieces(), offsets=5)
    assert [bounds.pieces for bounds in ranges] == [((0, 5, 10),), ((0, 10, 12), (2, 1, 4))]


def test_bounds_and_window_survive_json() -> None:
    """What is written down is what is read."""
    bounds = OffsetBounds(pieces=((0, 5, 9), (3, 0, 1)))
    assert bounds_from_json(bounds.to_json()) == bounds
    assert str(bounds) == "0 [5, 9), 3 [0, 1)"
    whole = window({0: (5, 9), 3: (0, 1)})
    assert LogWindow.from_window(whole.window(None)) == whole
    begun = replace(whole, origin={0: 5}, marks={3: "0@7/abc"})
    assert LogWindow.from_window(begun.window(None)) == begun
    other = LogWindow.from_window(replace(whole, origin={}).window(None))
    assert other != whole, "an origin that names no partition is one"
    assert LogWindow.from_window(Window(column="updated_at", after=None, upto="{}")) is None
    assert LogWindow.from_window(None) is None


@pytest.mark.parametrize("pieces", [(), ((0, 5, 5),), ((0, -1, 5),), ((0, 0, 1), (0, 1, 2))])
def test_bounds_that_hold_nothing_are_refused(pieces: tuple[tuple[int, int, int], ...]) -> None:
    """An empty piece, and a partition twice."""
    with pytest.raises(InvalidDeclaration):
        OffsetBounds(pieces=pieces)


@pytest.mark.statement("M2")
def test_a_commit_counts_offsets_of_a_log() -> None:
    """M2: markers and compacted records leave offsets without a row, and progress reaches the total all the same."""
    record = RangeRecord(
        hydration_id="h",
        plan_id="p",
        seq=0,
        bounds=OffsetBounds(pieces=((0, 10, 20), (1, 0, 5))),
        state=RangeState.ADMITTED,
        planned_rows=15,
        planned_bytes=1,
    )
    assert record.progress(rows=3) == 15
