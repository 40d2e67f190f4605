"""Ranges of offsets: bounded, without gap or overlap, and as JSON."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import (
    LogWindow,
    pack_pieces,
    side_by_side,
    unread_offsets,
)
from airflow_provider_backpressure.core.transitions.range_transitions import LOOK_AHEAD, Request, find_ready
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


def plan(whole: LogWindow, offsets: int) -> list[PlannedRange]:
    """Return the ranges of a window, of which those of different partitions go in side by side."""
    cut = pack_pieces(whole.pieces(), offsets=offsets)
    ranges = (PlannedRange(seq=n, bounds=one, rows=one.offsets, bytes=7 * one.offsets) for n, one in enumerate(cut))
    return list(side_by_side(ranges))


def record(planned: PlannedRange, state: RangeState = RangeState.PLANNED) -> RangeRecord:
    """Return a range as the ledger has it."""
    sizes = {"planned_rows": planned.rows, "planned_bytes": planned.bytes}
    return RangeRecord(hydration_id="h", plan_id="p", seq=planned.seq, bounds=planned.bounds, state=state, **sizes)


@given(partitions=PARTITIONS, offsets=st.integers(1, 70))
def test_ranges_that_go_in_side_by_side_cover_the_window_once(
    partitions: dict[int, tuple[int, int]], offsets: int
) -> None:
    """Every offset is in one range, none is too large, and a partition's ranges wait for each other in its order."""
    whole = window(partitions)
    ranges = plan(whole, offsets)
    assert [each.seq for each in ranges] == list(range(len(ranges)))
    assert all(each.rows <= offsets and each.bytes == 7 * each.rows for each in ranges)
    assert all(isinstance(each.bounds, OffsetBounds) and each.bounds.ordered for each in ranges)
    ends = {part: start for part, start, _ in whole.pieces()}
    last: dict[int, int] = {}
    for each in ranges:
        assert isinstance(each.bounds, OffsetBounds)
        found = record(each)
        assert (found.is_alone, found.is_side_by_side) == (False, True)
        before = {last[part] for part, *_ in each.bounds.pieces if part in last}
        assert before == ({found.waits_for} - {None})
        for part, start, end in each.bounds.pieces:
            assert ends[part] == start
            ends[part], last[part] = end, each.seq
    assert ends == {part: end for part, _, end in whole.pieces()}


def test_partitions_take_turns_and_short_ones_share_ranges() -> None:
    """So the first ranges are of different partitions."""
    ranges = plan(window({0: (0, 25), 1: (5, 9), 2: (0, 20), 3: (0, 3)}), 10)
    assert [(str(each.bounds), record(each).waits_for) for each in ranges] == [
        ("1 [5, 9), 3 [0, 3)", None),
        ("0 [0, 10)", None),
        ("2 [0, 10)", None),
        ("0 [10, 20)", 1),
        ("2 [10, 20)", 2),
        ("0 [20, 25)", 3),
    ]


@given(partitions=PARTITIONS, choices=st.lists(st.integers(0, 5), max_size=80), credits=st.integers(1, 4))
def test_a_range_begins_when_the_one_before_it_in_its_partition_is_in(
    partitions: dict[int, tuple[int, int]], choices: list[int], credits: int
) -> None:
    """Whichever ends first: a partition has one range in flight, nothing is stuck, and the frontier is never ahead."""
    whole = window(partitions)
    left = {each.seq: record(each) for each in plan(whole, 5)}
    request = Request(lane="l", session_id="s", lease_seconds=9, memory_bytes=0, memory_limit=None, seq=None)
    flying: dict[int, RangeRecord] = {}
    committed: dict[int, int] = {part: start for part, start, _ in whole.pieces()}
    order = iter(choices)
    while any(each.state is not RangeState.COMMITTED for each in left.values()):
        states = {seq: each.state for seq, each in left.items()}
        planned = [each for each in left.values() if each.state is RangeState.PLANNED][:LOOK_AHEAD]
        found = find_ready(planned, states)
        now = datetime(2026, 1, 1, tzinfo=UTC)
        admitted = found and request.admit(found, in_flight=len(flying), credits=credits, now=now)
        if admitted:
            flying[admitted.seq] = left[admitted.seq] = admitted
            continue
        busy = [part for each in flying.values() for part, *_ in each.bounds.pieces]  # type: ignore[union-attr]
        assert busy, "somebody is in flight, or nothing ever will be"
        assert len(busy) == len(set(busy))
        ended = flying.pop(sorted(flying)[next(order, 0) % len(flying)])
        left[ended.seq] = replace(ended, state=RangeState.COMMITTED)
        for part, start, end in ended.bounds.pieces:  # type: ignore[union-attr]
            assert committed[part] == start
            committed[part] = end
        still = [each.bounds for each in left.values() if each.state is not RangeState.COMMITTED]
        unread = unread_offsets(whole, still, whole=True)  # type: ignore[arg-type]
        assert {part: unread[part] for part in committed} == committed
        for number in range(1, len(still)):
            seen = unread_offsets(whole, still[:number], whole=False)  # type: ignore[arg-type]
            assert all(seen[part] <= committed[part] for part in committed)


def test_bounds_and_window_survive_json() -> None:
    """What is written down is what is read."""
    bounds = OffsetBounds(pieces=((0, 5, 9), (3, 0, 1)))
    assert bounds_from_json(bounds.to_json()) == bounds
    assert "behind" not in bounds.to_json(), "a marker of an earlier release is the same"
    last = replace(bounds, ordered=True, behind=4)
    assert bounds_from_json(last.to_json()) == last
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
