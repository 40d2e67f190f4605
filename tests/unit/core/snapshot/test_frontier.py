"""Frontier difference (statement M1, all of it) and what is derived from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.snapshot.topic_offsets import difference, meet, percentage, rate
from airflow_provider_backpressure.exceptions import InvalidDeclaration

pytestmark = pytest.mark.statement("M1")

frontiers = st.dictionaries(st.integers(0, 5), st.integers(0, 2**64 - 1), max_size=6)


@pytest.mark.parametrize(
    ("later", "earlier", "expected"),
    [
        ({0: 150, 1: 170}, {0: 100, 1: 150}, 70),
        ({0: 100, 1: 100}, {0: 0}, 200),
        ({0: 100}, {0: 0, 1: 50}, 100),
        ({"t1": 110, "t2": 15}, {"t1": 100, "t2": 10}, 15),
        ({"lsn": 100_100}, {"lsn": 100_050}, 50),
        ({0: 1010, 1: 10}, {0: 1000, 1: 0}, 20),
    ],
    ids=["offsets", "partition appeared", "partition vanished", "rows", "bytes of WAL", "transactions"],
)
def test_difference_of_each_kind_of_frontier(later, earlier, expected):
    """M1: the six exact examples."""
    assert difference(later, earlier) == expected


def test_rate_in_units_per_second():
    """M1: {0:10} -> {0:70} in 60 s is one offset a second."""
    assert rate({0: 70}, {0: 10}, 60) == 1.0


def test_percentage_of_a_total():
    """M1: {t1:50} of {t1:100} is 50 %."""
    assert percentage({"t1": 50}, {"t1": 100}) == 50.0


def test_percentage_of_an_empty_total_is_complete():
    """M1, M10: an empty snapshot is at 100 %, without a division by zero."""
    assert percentage({}, {}) == 100.0
    assert percentage({}, {"t1": 0}) == 100.0


def test_rate_over_no_time_is_refused():
    """M1: a rate over zero seconds is an error, not infinity."""
    with pytest.raises(InvalidDeclaration, match="above 0 seconds"):
        rate({0: 1}, {0: 0}, 0)


@given(frontiers, frontiers)
def test_difference_is_never_negative_and_zero_for_what_is_reached(later, earlier):
    """M1: the lower bound holds key by key."""
    assert difference(later, earlier) >= 0
    assert difference(later, later) == 0


@given(frontiers, frontiers)
def test_one_key_that_went_back_takes_nothing_from_the_others(later, earlier):
    """M1: the sum is over keys, each bounded below by itself."""
    assert difference(later, earlier) == sum(difference({key: later[key]}, earlier) for key in later)


@given(frontiers, frontiers)
def test_meet_lies_behind_both(first, second):
    """M8: nothing is between a frontier and the meet on the meet's side."""
    together = meet([first, second])
    assert difference(together, first) == 0
    assert difference(together, second) == 0
