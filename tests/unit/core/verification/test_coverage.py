"""Coverage: pieces in any order cover a plan once, and a lost, doubled or moved one is found."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.snapshot.bounds import (
    BlockBounds,
    Bounds,
    KeyBounds,
    LogBounds,
    LogPosition,
    OffsetBounds,
    cover,
)
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.core.verification.completeness_check import Coverage
from tests.conformance.ledger.support import make_plan

ENDS = st.lists(st.integers(1, 98), unique=True, min_size=2, max_size=8).map(sorted)


def at(place: int) -> LogPosition:
    """Return a place of a log."""
    return LogPosition(text=str(place), at=place)


def planned(window: Window | None = None) -> Plan:
    """Return a plan that reads this window."""
    plan = make_plan()
    return replace(plan, read=replace(plan.read, window=window))


def by_key(ends: Sequence[int]) -> tuple[Plan, list[Bounds]]:
    """Pieces of a key of two columns."""
    return planned(), list(cover(("a", "b"), ((str(end), "x") for end in ends)))


def by_blocks(ends: Sequence[int]) -> tuple[Plan, list[Bounds]]:
    """Pieces of the blocks of two partitions."""
    places = [(0, 0), *((end, 0) for end in ends), None]
    return planned(), [
        BlockBounds(table=table, file=7, start=start, end=end)
        for table in ("public.p1", "public.p2")
        for start, end in pairwise(places)
        if start is not None
    ]


def by_offset(ends: Sequence[int]) -> tuple[Plan, list[Bounds]]:
    """Pieces of two partitions of a topic, read from 0 up to 100."""
    window = LogWindow(topic="t", topic_id="1", start={0: 0, 1: 0}, end={0: 100, 1: 100})
    places = [0, *ends, 100]
    pairs = list(pairwise(places))
    pieces = [OffsetBounds(pieces=((0, start, end),)) for start, end in pairs]
    return planned(window.window(None)), [*pieces, *(OffsetBounds(pieces=((1, *pair),)) for pair in pairs)]


def by_part(ends: Sequence[int]) -> tuple[Plan, list[Bounds]]:
    """Pieces of a partition from 0 to 100, each once for each of three parts of the keys."""
    window = LogWindow(topic="t", topic_id="1", start={0: 0}, end={0: 100}, parts=3)
    pieces = [((0, start, end),) for start, end in pairwise([0, *ends, 100])]
    parts = [(number, 3) for number in range(3)]
    return planned(window.window(None)), [OffsetBounds(pieces=one, part=part) for one in pieces for part in parts]


def by_log(ends: Sequence[int]) -> tuple[Plan, list[Bounds]]:
    """Windows of a log from 0 to 100."""
    places = [0, *ends, 100]
    window = ReplayWindow(stream="s", start=at(0), end=at(100), goal=at(50))
    pieces = [LogBounds(stream="s", start=at(start), end=at(end)) for start, end in pairwise(places)]
    return planned(window.window(None)), list(pieces)


KINDS: list[Callable[[Sequence[int]], tuple[Plan, list[Bounds]]]] = [by_key, by_blocks, by_offset, by_part, by_log]


def faults(plan: Plan, pieces: Sequence[Bounds]) -> list[str]:
    """Return what is found of pieces that come in another order."""
    coverage = Coverage()
    for piece in random.Random(len(pieces)).sample(pieces, len(pieces)):
        coverage.add(piece)
    return list(coverage.faults(plan))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(ends=ENDS, which=st.integers(0, 100))
def test_a_lost_doubled_or_shortened_piece_is_found(kind: Any, ends: list[int], which: int) -> None:
    """Whatever piece it is, first and last included."""
    plan, pieces = kind(ends)
    assert faults(plan, pieces) == []
    chosen = pieces[which % len(pieces)]
    others = [piece for piece in pieces if piece is not chosen]
    assert faults(plan, others)
    assert faults(plan, [*pieces, chosen])
    _, finer = kind([*ends, 99])
    (shorter,) = [piece for piece in finer if piece not in pieces][:1]
    assert faults(plan, [*pieces, shorter])


def test_nothing_at_all_is_a_gap_where_the_plan_names_what_to_read() -> None:
    """A topic's plan without any range, and a log's."""
    for kind in (by_offset, by_log):
        assert faults(kind([50])[0], [])


def test_pieces_in_order_take_no_memory() -> None:
    """A million ranges come in the order of their numbers."""
    coverage = Coverage()
    for piece in cover(("id",), ((str(end),) for end in range(10_000))):
        coverage.add(piece)
    assert sum(map(len, coverage._open.values())) == 2


def test_the_rows_without_a_key_are_missed_where_there_may_be_some() -> None:
    """Only a key that may be NULL has them."""
    coverage = Coverage()
    coverage.add(KeyBounds.of_column(column="id", start=None, end=None))
    plan = planned()
    for nullable in (True, False):
        read = replace(plan.read, columns=(Column(name="id", type="bigint", nullable=nullable),))
        assert coverage.lacks_rows_without_key(replace(plan, read=read)) is nullable
