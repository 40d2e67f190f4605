"""Ranges of a log whose keys are cut into parts: what each of them waits for, and what cannot be cut."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.planning.topic_key_order import check_parts, check_record_keys, cut_by_keys
from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds, Part, bounds_from_json
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import (
    LogWindow,
    find_start_positions,
    in_order,
    moves,
    pack_pieces,
    side_by_side,
    unread_offsets,
)
from airflow_provider_backpressure.core.transitions.range_transitions import LOOK_AHEAD, Request, find_ready
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused, SourceRefused
from tests.conformance.ledger.support import make_plan

pytestmark = pytest.mark.statement("X1")

PARTITIONS = st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 50), st.integers(1, 40)), max_size=6)
SIDE = st.booleans()


def window(partitions: dict[int, tuple[int, int]], parts: int) -> LogWindow:
    """Return a window of these pieces, each a start and a length."""
    start = {partition: first for partition, (first, _) in partitions.items()}
    end = {partition: first + length for partition, (first, length) in partitions.items()}
    return LogWindow(topic="t", topic_id="id", start=start, end=end, parts=parts)


def plan(whole: LogWindow, offsets: int, *, side: bool) -> dict[int, RangeRecord]:
    """Return the ranges of a window by number, cut by keys."""
    cut = pack_pieces(whole.pieces(), offsets=offsets)
    ranges = (PlannedRange(seq=n, bounds=one, rows=one.offsets, bytes=9 * one.offsets) for n, one in enumerate(cut))
    found = cut_by_keys((side_by_side if side else in_order)(ranges), whole.parts)
    return {
        each.seq: RangeRecord(
            hydration_id="h",
            plan_id="p",
            seq=each.seq,
            bounds=each.bounds,
            state=RangeState.PLANNED,
            planned_rows=each.rows,
            planned_bytes=each.bytes,
        )
        for each in found
    }


def bounds_of(record: RangeRecord) -> OffsetBounds:
    """Return its bounds."""
    assert isinstance(record.bounds, OffsetBounds)
    return record.bounds


@given(partitions=PARTITIONS, offsets=st.integers(1, 50), parts=st.integers(2, 5), side=SIDE)
def test_every_offset_is_in_one_range_of_each_part(
    partitions: dict[int, tuple[int, int]], offsets: int, parts: int, side: bool
) -> None:
    """X1: numbered without a gap, each behind one of its part, and together they count each offset once."""
    whole = window(partitions, parts)
    ranges = plan(whole, offsets, side=side)
    assert list(ranges) == list(range(len(ranges)))
    seen = Counter(
        (bounds_of(each).part, partition, at)
        for each in ranges.values()
        for partition, start, end in bounds_of(each).pieces
        for at in range(start, end)
    )
    assert seen == Counter(
        (part, partition, at)
        for part in whole.list_parts()
        for partition, start, end in whole.pieces()
        for at in range(start, end)
    )
    assert sum(each.progress(rows=7) for each in ranges.values()) == whole.total
    for each in ranges.values():
        assert (each.is_side_by_side, each.is_alone) == (True, False)
        assert bounds_of(each).offsets <= offsets
        if each.waits_for is not None:
            assert bounds_of(ranges[each.waits_for]).part == bounds_of(each).part


@given(
    partitions=PARTITIONS,
    choices=st.lists(st.integers(0, 7), max_size=120),
    credits=st.integers(1, 5),
    parts=st.integers(2, 4),
    side=SIDE,
)
def test_a_range_begins_when_its_part_of_every_partition_is_where_it_starts(
    partitions: dict[int, tuple[int, int]], choices: list[int], credits: int, parts: int, side: bool
) -> None:
    """X1: whichever ends first, the target would take it; what counts as committed is in, of all parts."""
    whole = window(partitions, parts)
    left = plan(whole, 6, side=side)
    request = Request(lane="l", session_id="s", lease_seconds=9, memory_bytes=0, memory_limit=None, seq=None)
    flying: dict[int, RangeRecord] = {}
    there: dict[str, int] = find_start_positions(whole, {}, target="t", increment=False)
    order = iter(choices)
    while any(each.state is not RangeState.COMMITTED for each in left.values()):
        states = {seq: each.state for seq, each in left.items()}
        planned = [each for each in left.values() if each.state is RangeState.PLANNED][:LOOK_AHEAD]
        found, now = find_ready(planned, states), datetime(2026, 1, 1, tzinfo=UTC)
        admitted = found and request.admit(found, in_flight=len(flying), credits=credits, now=now)
        if admitted:
            flying[admitted.seq] = left[admitted.seq] = admitted
            continue
        assert flying, "nothing is stuck"
        ended = flying.pop(sorted(flying)[next(order, 0) % len(flying)])
        left[ended.seq] = replace(ended, state=RangeState.COMMITTED)
        for step in moves(ended.bounds.to_json(), whole.window(None)):
            assert there[step.stream] == step.start
            there[step.stream] = step.end
        still = [bounds_of(each) for each in left.values() if each.state is not RangeState.COMMITTED]
        least = {
            partition: min(there[whole.stream(partition, part)] for part in whole.list_parts())
            for partition in whole.end
        }
        assert unread_offsets(whole, still, whole=True) == least
        for number in range(1, len(still)):
            seen = unread_offsets(whole, still[:number], whole=False)
            assert all(seen[partition] <= least[partition] for partition in least)
    assert set(there.values()) <= set(whole.end.values())


def test_a_partition_is_as_far_as_the_last_of_its_parts() -> None:
    """X1: also where only some of the open ranges are asked for, those of a rebuilt plan part by part."""
    whole = window({0: (0, 9), 1: (0, 9)}, 2)

    def open_at(part: Part, partition: int, start: int) -> OffsetBounds:
        return OffsetBounds(pieces=((partition, start, 9),), ordered=True, part=part)

    still = [open_at((0, 2), 0, 6), open_at((0, 2), 1, 3), open_at((1, 2), 0, 4), open_at((1, 2), 1, 0)]
    assert unread_offsets(whole, still, whole=True) == {0: 4, 1: 0}
    assert unread_offsets(whole, still[:2], whole=False) == {0: 0, 1: 0}
    assert unread_offsets(whole, still[:3], whole=False) == {0: 4, 1: 0}


def test_partitions_that_may_hold_one_key_keep_their_order_in_each_part() -> None:
    """X1: a part goes from partition to partition as a topic does that is not cut."""
    ranges = plan(window({0: (0, 4), 1: (0, 8)}, 2), 8, side=False)
    assert [(str(each.bounds), each.waits_for) for each in ranges.values()] == [
        ("0 [0, 4), 1 [0, 4) of part 1 of 2", None),
        ("0 [0, 4), 1 [0, 4) of part 2 of 2", None),
        ("1 [4, 8) of part 1 of 2", 0),
        ("1 [4, 8) of part 2 of 2", 1),
    ]


def test_parts_survive_json_and_are_left_out_where_there_are_none() -> None:
    """X1: plans and markers of earlier releases stay what they are."""
    bounds = OffsetBounds(pieces=((0, 5, 9),), ordered=True, behind=2, part=(1, 3))
    assert bounds_from_json(bounds.to_json()) == bounds != replace(bounds, part=(2, 3))
    assert "part" not in replace(bounds, part=None).to_json()
    whole = window({0: (5, 4)}, 3)
    assert LogWindow.from_text(whole.to_text()) == whole
    assert "parts" not in replace(whole, parts=1).to_text()


@pytest.mark.parametrize("part", [(3, 3), (-1, 3)])
def test_a_part_that_there_is_not_is_refused(part: Part) -> None:
    """X1."""
    with pytest.raises(InvalidDeclaration, match="of a part that there is not"):
        OffsetBounds(pieces=((0, 0, 1),), part=part)


@pytest.mark.parametrize("part", [None, (0, 2), (1, 4)])
def test_a_range_of_other_parts_than_its_plan_moves_nothing(part: Part | None) -> None:
    """X1: its keys are cut in another way, so that one of them would be in two parts."""
    bounds = OffsetBounds(pieces=((0, 5, 9),), ordered=True, part=part)
    with pytest.raises(InvalidDeclaration, match="of other parts than its plan, which has 3"):
        moves(bounds.to_json(), window({0: (5, 4)}, 3).window(None))


@pytest.mark.parametrize(("before", "now"), [(1, 4), (4, 1), (4, 3)])
def test_other_parts_begin_where_all_parts_ended(before: int, now: int) -> None:
    """X1: the target's positions of a partition go along, however it was cut, so that a restored ledger is noticed."""
    first, then = window({0: (0, 9), 1: (3, 4)}, before), window({0: (9, 5), 1: (7, 1)}, now)
    start = find_start_positions(first, {}, target="t", increment=False)
    assert len(start) == 2 * before
    ended = {stream: 9 if stream.startswith("t/0") else 7 for stream in start}
    there = find_start_positions(then, ended, target="t", increment=True)
    for part in then.list_parts():
        assert (there[then.stream(0, part)], there[then.stream(1, part)]) == (9, 7)
    later = {
        stream: 14 if stream in (then.stream(0, part) for part in then.list_parts()) else at
        for stream, at in there.items()
    }
    for parts in (1, 3, 4):
        with pytest.raises(SinkRefused, match="t has partition 0 up to offset 14, and the plan would begin again at 9"):
            find_start_positions(replace(then, parts=parts), later, target="t", increment=True)
        again = find_start_positions(replace(then, parts=parts, start={0: 14, 1: 7}), later, target="t", increment=True)
        assert {again[name] for name in again if name.startswith("t/0")} == {14}


def write(**changes: object) -> WriteSpec:
    """Return where a plan of parts writes, by a key of several types."""
    columns = tuple(
        Column(name=type_, type=type_)
        for type_ in ("bigint", "text", "uuid", "character varying(20)", "character(3)", "bytea", "date", "numeric")
    )
    key = tuple(column.name for column in columns[:-1])
    return replace(make_plan().write, **{"kind": "postgres", "columns": columns, "key": key, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "how", "sentence"),
    [
        ({}, {}, ""),
        ({}, {"ordered": False}, "to which rows are added: use mode='upsert'"),
        ({}, {"transformed": True}, "A transform may give the rows"),
        ({"kind": "delta"}, {}, "is written by one commit after another"),
        ({"kind": "spark_table"}, {}, "is written by one commit after another"),
        ({"key": ("bigint", "numeric")}, {}, "in parts by numeric: two values of type numeric may be equal"),
    ],
)
def test_what_cannot_be_cut_by_keys_is_refused(changes: dict[str, object], how: dict[str, bool], sentence: str) -> None:
    """X1: in one sentence, when it is planned."""
    given = {"ordered": True, "transformed": False, **how}
    if not sentence:
        check_parts(write(**changes), **given)
        return
    with pytest.raises(SinkRefused, match=sentence):
        check_parts(write(**changes), **given)


@pytest.mark.statement("R2")
@pytest.mark.parametrize(
    ("key", "transformed", "refused"),
    [((), False, True), (("key",), False, True), (("id",), False, False), (("id",), True, True)],
)
def test_keys_that_are_written_in_another_way_stop_what_goes_by_them(
    key: tuple[str, ...], transformed: bool, refused: bool
) -> None:
    """R2: a transform may make a row's key of its record's."""
    snapshot = Snapshot(
        source_identity="kafka://k/t",
        columns=(Column(name="key", type="text"),),
        key=("key",),
        split=(),
        unique=False,
        frontier={},
        total=0,
        total_exact=True,
        row_bytes=1.0,
        consistency=Consistency.OFFSETS,
        rekeyed="Schema 2 writes keys in another way.",
    )
    check_record_keys(replace(snapshot, rekeyed=""), key, transformed=transformed)
    with pytest.raises(SourceRefused, match="Schema 2 writes") if refused else nullcontext():
        check_record_keys(snapshot, key, transformed=transformed)


@pytest.mark.parametrize(
    "type_", ["citext", "interval", "jsonb", "double precision", "name", "timestamp with time zone"]
)
def test_keys_that_are_equal_in_several_spellings_are_refused(type_: str) -> None:
    """X1: 24 hours are a day."""
    with pytest.raises(SinkRefused, match="may be equal and written differently"):
        check_parts(write(columns=(Column(name="k", type=type_),), key=("k",)), ordered=True, transformed=False)
